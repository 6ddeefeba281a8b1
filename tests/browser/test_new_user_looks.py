"""Parts that help to find one's way: range sliders, saved views, legends, names on axes, and panels that fold."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import settled_box
from tests.browser.walk import idle
from tests.conftest import eventually

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def visit(demo, watch):
    """Open an address of the studio and wait until it is drawn."""

    def opened(path: str) -> Page:
        page = watch(f"{demo[0].url}/{path}").page
        idle(page)
        return page

    return opened


def test_a_slider_below_a_histogram_filters_the_list(demo, visit):
    page = visit("inspect")
    page.get_by_text("Ranges", exact=True).click()
    expect(page.locator(".cs-range").first).to_contain_text("Trajectory reward")
    low = page.get_by_role("slider").first
    low.focus()
    low.press("End")
    expect(page).to_have_url(re.compile("trajectory_reward="))
    idle(page)
    steps = demo[1].call("GET", "/api/v1/steps?where=trajectory_reward%20is%20not%20null&limit=1000")["steps"]
    rewards = {}
    for step in steps:
        uid = step["trajectory_uid"]
        if uid not in rewards:
            rewards[uid] = demo[1].call("GET", f"/api/v1/trajectories/{uid}")["reward"]
    highest = sum(reward == max(rewards.values()) for reward in rewards.values())
    expect(page.get_by_text(f"1–{min(highest, 50)} of {highest} trajectories")).to_be_visible()
    expect(page.locator(".cs-range").first).to_be_visible()


def test_a_view_is_saved_on_inspect_and_opened_on_freeze(visit):
    page = visit("inspect?agent=demo-agent")
    page.get_by_role("button", name="Saved views").click()
    page.get_by_role("textbox", name="View name").fill("of-the-demo-agent")
    page.get_by_role("button", name="Save this view").click()
    expect(page.get_by_role("button", name="of-the-demo-agent")).to_be_visible()
    page = visit("datasets?tab=freeze")
    page.get_by_role("button", name="Saved views").click()
    page.get_by_role("button", name="of-the-demo-agent").click()
    expect(page).to_have_url(re.compile("agent=demo-agent"))


def test_the_trees_colour_is_in_the_url_and_the_mask_has_a_legend(visit):
    page = visit("optimise")
    page.locator("button[data-value=reward]").click()
    expect(page).to_have_url(re.compile("colour=reward"))
    page.reload()
    expect(page.locator("button[data-value=reward]")).to_have_attribute("aria-pressed", "true")
    page = visit("optimise?tab=mask")
    expect(page.locator(".legend")).to_contain_text("not visible")


def test_the_recipe_folds_and_charts_name_groups(demo, visit):
    page = visit("batch?tab=credit")
    expect(page.locator(".js-plotly-plot .xtick text", has_text="demo-fix-typos").first).to_be_visible()
    narrow = settled_box(page.locator(".cs-figs").first)["width"]
    staleness = page.get_by_role("spinbutton", name="Max staleness")
    expect(staleness).to_be_hidden()
    page.get_by_text("More settings", exact=True).click()
    staleness.fill("3")
    staleness.press("Enter")
    expect(page).to_have_url(re.compile("max_staleness"))
    expect(page.get_by_text("More settings · 1 changed")).to_be_visible()
    idle(page)
    expect(staleness).to_be_visible()
    page.get_by_role("radio", name="Hide").click()
    expect(page).to_have_url(re.compile("side=hidden"))
    expect(page.get_by_role("combobox", name="Algorithm")).to_have_count(0)
    assert settled_box(page.locator(".cs-figs").first)["width"] > 1.2 * narrow
    page = visit("batch?tab=compare")
    expect(page.locator(".js-plotly-plot .colorbar").first).to_contain_text("+ largest")


MARKS = """
() => [...document.querySelectorAll(".js-plotly-plot :is(.points path, .point, .js-line, .legendsymbols path)")]
    .map((mark) => [getComputedStyle(mark).fill, getComputedStyle(mark).stroke])
"""


@pytest.mark.parametrize("path", ["", "curate?tab=distributions"])
def test_marks_of_charts_follow_a_switch_of_the_theme(visit, path):
    def marks(page: Page) -> list[list[str]]:
        page.locator(".js-plotly-plot").first.wait_for()
        settled_box(page.locator(".js-plotly-plot").first)
        return page.evaluate(MARKS)

    page = visit(path)
    in_light = marks(page)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("() => getComputedStyle(document.querySelector('.stApp')).colorScheme === 'dark'")
    switched = marks(page)
    page.reload()
    assert switched == marks(page)
    assert switched != in_light


SCALES = """
() => [...document.querySelectorAll(".js-plotly-plot :is(.heatmaplayer image, stop, .scatterlayer .point)")]
    .map((mark) => mark.getAttribute("href") ?? mark.getAttribute("stop-color") ?? mark.getAttribute("style"))
"""


@pytest.mark.parametrize("path", ["batch?tab=compare", "batch?tab=credit", "optimise?tab=mask&colour=depth"])
def test_colour_scales_of_charts_follow_a_switch_of_the_theme(visit, path):
    page = visit(path)
    page.locator(".js-plotly-plot :is(.heatmaplayer image, .scatterlayer .point)").first.wait_for(state="attached")
    settled_box(page.locator(".js-plotly-plot").first)
    in_light = page.evaluate(SCALES)
    page.emulate_media(color_scheme="dark")
    switched = eventually(lambda: (now := page.evaluate(SCALES)) != in_light and len(now) == len(in_light) and now)
    page.reload()
    eventually(lambda: page.evaluate(SCALES) == switched)


OVERFLOW = """
() => [...document.querySelectorAll(".dvn-scroller")].map((table) => table.scrollWidth - table.clientWidth)
"""


@pytest.mark.parametrize(
    "path",
    ["inspect", "inspect?level=groups", "inspect?level=steps", "curate", "curate?level=steps"],
)
def test_the_columns_of_a_list_fit_1280_pixels(visit, path):
    page = visit(path)
    page.set_viewport_size({"width": 1280, "height": 900})
    settled_box(page.locator("[data-testid=stDataFrame] canvas").first)
    assert page.evaluate(OVERFLOW) == [0]
