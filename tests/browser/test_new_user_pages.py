"""Every page with data: axe-core in light and dark; no cut text, heading of a table or figure, no
overlapping control at 1280, 1440 and 1920 pixels.

Each page is loaded once; the browser then changes the colour scheme and the width. ``.ci/run`` puts axe-core into
``.cache/axe``; by hand, ``npm pack axe-core`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from core.client import StudioClient
from studio.nav import PAGES
from tests.browser.conftest import ROOT, Watched, start_studio
from tests.browser.filled import PATHS, REFUSED, fill
from tests.browser.walk import idle
from tests.left_out import missing

pytestmark = pytest.mark.timeout(300)

AXE = ROOT / ".cache" / "axe" / "axe.min.js"
LAYOUT = (Path(__file__).parent / "page_checks.js").read_text(encoding="utf-8")
HEADINGS = (Path(__file__).parent / "headings.js").read_text(encoding="utf-8")
WIDTHS = (1280, 1440, 1920)
SCROLLS = ("sql", "synthesis?view=pack")
"""Addresses whose tables have as many columns as the user asks for, or a text that ends with the table."""
CHARTS_ARE_DRAWN = """
() => [...document.querySelectorAll("[data-testid=stPlotlyChart]")].every((chart) => chart.querySelector(".main-svg"))
"""
OVERFLOW = """
() => [...document.querySelectorAll(".dvn-scroller")].map((table) => table.scrollWidth - table.clientWidth)
    .filter((px) => px > 0).map((px) => `a table has columns beyond its right edge: ${px} px`)
"""
RUN = """
() => axe.run(document, {resultTypes: ['violations'], runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa']})
    .then((result) => result.violations.filter((one) => ['serious', 'critical'].includes(one.impact))
        .flatMap((one) => one.nodes.map((node) => [one.id, node.target.flat().join(' '), node.html.slice(0, 200),
            (node.any[0] ?? node.all[0] ?? node.none[0] ?? {}).message ?? ''])))
"""
FAINT_LABELS = (Path(__file__).parent / "axis_labels.js").read_text(encoding="utf-8")
NOT_OURS = (
    ("list", 'data-testid="stSidebarNavItems"'),
    ("listitem", '<li class="st-emotion'),
    # A code block that scrolls. Chromium and Firefox let the keyboard reach it; axe-core asks for an attribute.
    ("scrollable-region-focusable", '<pre class="st-emotion'),
)
"""(rule, part of the element's HTML): findings in Streamlit's own elements that no setting changes."""
EMPTY = ("tasks", "synthesis", "rollouts", "inspect", "datasets", "sql", "batch", "consume", "learn", "settings")
"""Pages of a studio in which nothing was done yet."""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[str]:
    """The address of a studio that has something to show on each page."""
    running = start_studio(tmp_path_factory.mktemp("filled"))
    page = browser.new_page()
    page.goto(running.url)
    page.get_by_role("button", name="Load demo data").click()
    page.locator(".js-plotly-plot").first.wait_for(timeout=120_000)
    page.close()
    fill(running.data_dir, StudioClient(running.gateway_url))
    yield running.url
    running.stop()


@pytest.fixture
def watched(browser: Browser) -> Iterator[Watched]:
    """A browser page whose console is watched."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.add_init_script(HEADINGS)
    yield Watched(context.new_page())
    context.close()


@pytest.fixture(scope="module")
def axe() -> str:
    """The script of axe-core."""
    if not AXE.exists():
        missing("axe-core is not in .cache/axe: .ci/run installs it, or npm pack axe-core")
    return AXE.read_text(encoding="utf-8")


def is_ours(finding: list[Any]) -> bool:
    """Whether a finding is about something that this project draws or can set."""
    rule, _, html, _ = finding
    return not any(rule == known and part in html for known, part in NOT_OURS)


def problems_of(watched: Watched, axe: str, address: str, act: Callable[[Page], None] | None = None) -> list[str]:
    """What is wrong with a page in both colour schemes and at all widths, after ``act``; fails on console errors."""
    page = watched.page
    page.emulate_media(color_scheme="light", reduced_motion="reduce")
    page.goto(address)
    page.locator(".cs-head").wait_for()
    idle(page)
    if act is not None:
        act(page)
    page.wait_for_function(CHARTS_ARE_DRAWN)
    page.evaluate(f"{axe};0")
    problems = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_function(
            "dark => (getComputedStyle(document.querySelector('.stApp')).colorScheme === 'dark') === dark",
            arg=scheme == "dark",
        )
        page.wait_for_timeout(300)
        problems += [f"{scheme}: {' | '.join(one)}" for one in page.evaluate(RUN) if is_ours(one)]
        problems += [f"{scheme}: {label}" for label in page.evaluate(FAINT_LABELS)]
    for width in WIDTHS:
        page.evaluate("forgetHeadings()")
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(400)
        whole = not any(f"/{path}" in address for path in SCROLLS)
        found = [*page.evaluate(LAYOUT), *page.evaluate("whole => cutHeadings(whole)", whole)]
        found += page.evaluate(OVERFLOW) if whole else []
        problems += [f"{width} px: {problem}" for problem in found]
    return problems + watched.problems


def test_every_page_of_the_studio_is_looked_at():
    looked_at = {urlsplit(path).path for path in (*PATHS, *REFUSED)}
    assert looked_at == {info.url_path for info in PAGES.values()}


@pytest.mark.parametrize("path", PATHS)
def test_a_page_is_accessible_and_fits(filled, watched, axe, path):
    problems = problems_of(watched, axe, f"{filled}/{path}")
    watched.check()
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("path", REFUSED)
def test_a_page_with_an_error_is_accessible_and_fits(filled, watched, axe, path):
    problems = problems_of(watched, axe, f"{filled}/{path}")
    expect(watched.page.locator(".cs-callout.bad")).to_be_visible()
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("path", EMPTY)
def test_a_page_without_data_is_accessible_and_fits(shared_studio, watched, axe, path):
    problems = problems_of(watched, axe, f"{shared_studio.url}/{path}")
    watched.check()
    assert not problems, "\n".join(problems)


def test_a_dry_run_of_a_redaction_is_accessible_and_fits(filled, watched, axe):
    def try_it(page: Page) -> None:
        page.get_by_role("combobox", name="Redact", exact=True).click()
        page.get_by_role("option", name="email", exact=True).click()
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Try the redaction").click()
        expect(page.locator(".cs-table code", has_text="ada0@example.org")).to_be_visible()
        idle(page)

    problems = problems_of(watched, axe, f"{filled}/datasets?tab=freeze&into=compared", try_it)
    watched.check()
    assert not problems, "\n".join(problems)


def test_an_added_engine_is_accessible_and_fits(filled, watched, axe):
    def add(page: Page) -> None:
        page.get_by_text("Add an engine", exact=True).click()
        panel = page.locator(".st-key-engine-add-panel")
        panel.get_by_role("textbox", name="Name").fill("second")
        panel.get_by_role("textbox", name="Address").fill("http://127.0.0.1:9/v1")
        panel.get_by_role("textbox", name="Models").fill("second-*")
        panel.get_by_role("button", name="Add", exact=True).click()
        engine = page.locator(".st-key-engine-second")
        engine.get_by_role("button", name="Test").click()
        expect(engine.get_by_role("status")).to_be_visible()
        engine.get_by_role("button", name="Pause").click()
        expect(engine.get_by_role("button", name="Resume")).to_be_visible()
        idle(page)

    problems = problems_of(watched, axe, f"{filled}/settings", add)
    watched.check()
    assert not problems, "\n".join(problems)
