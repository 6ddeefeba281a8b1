"""Browser test of the learning demo: the button, the first curve and tiles, the comparison, the stop button."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

MINUTES_MS = 60_000


@pytest.mark.timeout(1500)
def test_a_policy_learns_on_the_page(studio, watch):
    page = watch(studio.url).page
    page.get_by_role("button", name="Watch a policy learn").click()
    expect(page).to_have_url(re.compile("/learn"), timeout=3 * MINUTES_MS)
    expect(page.get_by_text(re.compile(r"update \d+ of 15"))).to_be_visible(timeout=2 * MINUTES_MS)
    now = page.locator(".cs-fig", has_text="Reward now").locator(".v")
    expect(now).to_have_text(re.compile(r"\d+\.\d %"), timeout=5 * MINUTES_MS)
    tiles = page.locator(".cs-tiles .row a.good, .cs-tiles .row a.bad")
    expect(tiles).to_have_count(64, timeout=5 * MINUTES_MS)
    expect(page.get_by_text(re.compile(r"update [1-9]\d* of 15"))).to_be_visible(timeout=5 * MINUTES_MS)
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Watch a policy learn")).to_be_visible(timeout=MINUTES_MS)
    page.locator(".cs-tiles .row a").first.click()
    expect(page).to_have_url(re.compile(r"/inspect\?trajectory=run-0"))
