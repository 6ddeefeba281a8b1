"""Browser tests of Learn: the demo from its button to its stop; marks of a user's own run that open what they show."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import settled_box
from tests.pages.test_learn_page import trained

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


@pytest.mark.timeout(600)
def test_a_mark_opens_its_attempts_or_its_batch(studio, watch):
    trained(studio.gateway_url)
    page = watch(f"{studio.url}/learn").page
    charts = page.locator(".js-plotly-plot")
    point = charts.first.locator(".scatterlayer .point")
    bar = charts.nth(1).locator(".bars .point path")
    for mark, opened in ((point, r"/inspect\?.*level=trajectories"), (bar, r"/consume\?batch=")):
        expect(mark.first).to_be_attached(timeout=2 * MINUTES_MS)
        # Some stages took so little time that their bars have hardly a height.
        largest = max(mark.all(), key=lambda one: (one.bounding_box() or {"height": 0})["height"])
        box = settled_box(largest)
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        expect(page).to_have_url(re.compile(opened), timeout=MINUTES_MS)
        page.go_back()
        expect(page).to_have_url(re.compile("/learn"))
