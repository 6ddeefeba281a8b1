"""Browser tests of review by keyboard, selections across pages, and comparisons."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from core.pool import Pool
from tests.browser.conftest import start_studio
from tests.browser.test_lab_walk import QUIET, click_cell, fill


@pytest.fixture
def desk(tmp_path, browser):
    """A studio of its own on a filled pool."""
    fill(tmp_path)
    running = start_studio(tmp_path, env=QUIET)
    yield running
    running.stop()


def test_a_review_by_keys_alone(desk, watch, tmp_path):
    page = watch(f"{desk.url}/curate?tab=review&order=uncertain").page
    item, place = page.locator(".st-key-review-item code").first, page.locator(".cs-review b")
    expect(place).to_have_text("1")
    expect(page.get_by_role("button", name="Good")).to_be_enabled()
    seen = [item.inner_text()]
    for key, number in (("g", "2"), ("b", "3"), ("u", "4")):
        page.keyboard.press(key)
        expect(place).to_have_text(number)
        expect(item).not_to_have_text(seen[-1])
        seen.append(item.inner_text())
    assert len(set(seen)) == 4
    expect(page.locator(".cs-review")).to_contain_text("3 labelled")
    page.keyboard.press("y")
    expect(page.locator(".st-key-review-correct button[kind=primary]")).to_be_visible()
    page.keyboard.press("t")
    expect(page.get_by_role("button", name="Trainable: off")).to_be_visible()
    page.keyboard.press("z")
    expect(page.get_by_role("button", name="Trainable: on")).to_be_visible()
    page.keyboard.press("k")
    expect(place).to_have_text("3")
    page.keyboard.press("j")
    expect(item).to_have_text(seen[3])
    expect(page).to_have_url(re.compile(f"item={seen[3]}"))
    page.goto("about:blank")
    desk.stop()
    pool = Pool.open(desk.data_dir / "pool.duckdb")
    assert [pool.review.standing("trajectory", uid)["quality"] for uid in seen[:3]] == ["good", "bad", "unsure"]
    last = pool.review.standing("trajectory", seen[3])
    assert last["correct"] is True and last["trainable"] is True
    pool.close()


def test_picks_outlive_paging_opening_and_filtering_then_compare(desk, watch):
    page = watch(f"{desk.url}/inspect?level=steps").page
    picked = page.locator(".st-key-pick-bar .cs-note b")
    expect(page.get_by_text(re.compile(r"1–50 of \d+ steps"))).to_be_visible()
    click_cell(page, 0, 16)
    expect(picked).to_have_text("1")
    page.get_by_role("button", name="Next page").click()
    expect(page.get_by_text(re.compile(r"51–\d+ of \d+ steps"))).to_be_visible()
    click_cell(page, 1, 120)
    expect(page.locator("button.row.on")).to_be_visible()
    page.get_by_role("button", name="All trajectories").click()
    expect(picked).to_have_text("1")
    click_cell(page, 2, 16)
    expect(picked).to_have_text("2")
    page.locator("button.value[data-facet=agent]").first.click()
    expect(page).to_have_url(re.compile("agent="))
    expect(picked).to_have_text("2")
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(page.get_by_text("First difference")).to_be_visible()
    expect(page.locator("article.sampled")).to_have_count(2)


def test_from_a_group_to_the_token_where_two_siblings_part(desk, watch):
    page = watch(f"{desk.url}/inspect?group=prompt-1").page
    expect(page.locator(".line")).to_have_count(4)
    expect(page.locator(".cell.parts")).to_have_count(3)
    page.locator(".acts button", has_text="compare").first.click()
    expect(page.get_by_text("First difference")).to_be_visible()
    page.get_by_role("radio", name="Tokens", exact=False).first.click()
    expect(page.locator(".t.parts")).to_have_count(2)
    one, other = page.locator(".t.parts").all_inner_texts()
    assert one != other
    page.get_by_role("button", name="Advantage").first.click()
    expect(page.locator(".bar .legend").first).to_contain_text("+")
