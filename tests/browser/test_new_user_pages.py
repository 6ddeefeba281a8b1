"""Every page on the demo data: axe-core in light and dark, and no cut text or overlapping control at 1280 and 1440.

Each page is loaded once; the browser then changes the colour scheme and the width. ``.ci/run`` puts axe-core into
``.cache/axe``; by hand, ``npm pack axe-core`` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from core.packs import read_pack
from core.packs.library import PackLibrary
from core.rollouts import RunStore
from core.tasks.demo import DEMO_DATA
from tests.browser.conftest import ROOT, Watched
from tests.browser.walk import idle
from tests.left_out import missing
from tests.report.made_run import make_run

pytestmark = pytest.mark.timeout(300)

AXE = ROOT / ".cache" / "axe" / "axe.min.js"
LAYOUT = (Path(__file__).parent / "page_checks.js").read_text(encoding="utf-8")
WIDTHS = (1280, 1440)
PATHS = (
    "",
    "collect",
    "tasks",
    "tasks?task=demo_005",
    "tasks?view=report&run=run-1",
    "rollouts",
    "inspect",
    "inspect?level=groups",
    "inspect?level=steps",
    "inspect?group=demo-fix-typos",
    "inspect?step=odd-2%3A0&tab=tokens",
    "inspect?trajectory=odd-1",
    "inspect?trajectory=odd-1&tab=transcript",
    "curate",
    "curate?tab=review",
    "curate?tab=history",
    "datasets?tab=freeze",
    "datasets?tab=versions",
    "sql",
    "optimise",
    "batch",
    "batch?tab=export&format=trl_dpo&recipe=%7B%22algorithm%22%3A%22dpo%22%7D",
    "consume",
    "consume?tab=metrics",
    "learn",
    "cluster",
    "settings",
)
RUN = """
() => axe.run(document, {resultTypes: ['violations'], runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa']})
    .then((result) => result.violations.filter((one) => ['serious', 'critical'].includes(one.impact))
        .flatMap((one) => one.nodes.map((node) => [one.id, node.target.flat().join(' '), node.html.slice(0, 200),
            (node.any[0] ?? node.all[0] ?? node.none[0] ?? {}).message ?? ''])))
"""
NOT_OURS = (("list", 'data-testid="stSidebarNavItems"'), ("listitem", '<li class="st-emotion'))
"""(rule, part of the element's HTML): findings in Streamlit's own navigation that no setting changes."""


@pytest.fixture(scope="module")
def opened(demo, browser: Browser) -> Iterator[tuple[str, Watched]]:
    """A browser page on the demo data, with a pack and a finished run."""
    packs = PackLibrary(demo[0].data_dir / "packs")
    scores = {"demo_005": [1.0, 0.0, 1.0, None], "demo_006": [0.25], "demo_021": [1.0, 1.0]}
    make_run(RunStore(demo[0].data_dir / "rollouts"), packs, None, read_pack(DEMO_DATA / "pack"), scores)
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    yield demo[0].url, Watched(context.new_page())
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


@pytest.mark.parametrize("path", PATHS)
def test_a_page_is_accessible_and_fits(opened, axe, path):
    url, watched = opened
    page = watched.page
    page.emulate_media(color_scheme="light", reduced_motion="reduce")
    page.goto(f"{url}/{path}")
    page.locator(".cs-head").wait_for()
    idle(page)
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
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(400)
        problems += [f"{width} px: {problem}" for problem in page.evaluate(LAYOUT)]
    watched.check()
    assert not problems, "\n".join(problems)
