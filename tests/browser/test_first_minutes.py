"""Browser tests of the first minutes: load the demo data, run the demo agent, follow the numbers."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import settled_box
from tests.conftest import eventually


def test_demo_data_then_from_the_funnel_to_curate(studio, watch):
    page = watch(studio.url).page
    page.get_by_role("button", name="Load demo data").click()
    bars = page.locator(".js-plotly-plot").first.locator(".point path")
    expect(bars).to_have_count(6)
    bar = settled_box(bars.nth(3))
    page.mouse.click(bar["x"] + 12, bar["y"] + bar["height"] / 2)
    expect(page).to_have_url(re.compile(r"/curate\?.*trainable=true"))
    expect(page.locator(".cs-head h1")).to_have_text("Curate")


def test_the_demo_agent_arrives_live_without_a_jump(studio, watch):
    page = watch(f"{studio.url}/collect").page
    page.get_by_role("button", name="Run the demo agent live").first.click()
    expect(page.get_by_text(re.compile(r"Demo agent: \d+ of \d+ rollouts"))).to_be_visible()
    calls = page.locator(".cs-fig", has_text="since the start").locator(".v")
    eventually(lambda: calls.inner_text() != "0")
    before = int(calls.inner_text().replace(",", ""))
    expect(page.locator("[data-testid=stDataFrame]")).to_be_visible()
    heights = page.evaluate(
        """async () => {
            const main = document.querySelector('[data-testid=stMain]'), seen = new Set(), start = performance.now();
            while (performance.now() - start < 3000) {
                await new Promise(done => requestAnimationFrame(done));
                seen.add(main.scrollHeight);
            }
            return [...seen];
        }"""
    )
    assert len(heights) <= 2, heights  # once more while the engine table gains the demo engine's row
    eventually(lambda: int(calls.inner_text().replace(",", "")) > before)
    table = settled_box(page.locator("[data-testid=stDataFrame]"))
    page.mouse.click(table["x"] + 150, table["y"] + 80)
    expect(page).to_have_url(re.compile(r"/inspect\?step="))


@pytest.mark.parametrize(("agent", "mark"), [("Claude Code", "ANTHROPIC_BASE_URL"), ("opencode", "opencode.ai")])
def test_the_chosen_agent_is_in_the_url(shared_studio, watch, agent, mark):
    page = watch(shared_studio.url).page
    page.get_by_test_id("stMain").get_by_role("radio", name=agent, exact=True).click()
    code = page.get_by_test_id("stCode").first
    expect(code).to_contain_text(mark)
    expect(code).to_contain_text(shared_studio.gateway_url)
    expect(page).to_have_url(re.compile("connect=" + agent.replace(" ", r"(\+|%20)")))
    page.reload()
    expect(code).to_contain_text(mark)
