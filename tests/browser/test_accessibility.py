"""axe-core looks at every page, light and dark: no finding that it calls serious or critical.

``.ci/run`` puts axe-core into ``.cache/axe``; so does ``npm pack axe-core`` by hand.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.conftest import ROOT
from tests.browser.test_new_user import demo
from tests.browser.walk import idle
from tests.left_out import missing

__all__ = ["demo"]

pytestmark = pytest.mark.timeout(600)

AXE = ROOT / ".cache" / "axe" / "axe.min.js"
FRAME = "stApp"
PATHS = (
    "",
    "collect",
    "inspect",
    "inspect?level=groups",
    "inspect?group=demo-fix-typos",
    "inspect?step=odd-2%3A0&tab=tokens",
    "inspect?step=odd-1%3A0",
    "curate",
    "curate?tab=review",
    "datasets?tab=freeze",
    "sql",
    "optimise",
    "batch",
    "batch?tab=export",
    "consume",
    "settings",
)
RUN = """
() => axe.run(document, {resultTypes: ['violations'], runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa']})
    .then((result) => result.violations.filter((one) => ['serious', 'critical'].includes(one.impact))
        .flatMap((one) => one.nodes.map((node) => [one.id, node.target.flat().join(' '), node.html.slice(0, 200),
            (node.any[0] ?? node.all[0] ?? node.none[0] ?? {}).message ?? ''])))
"""
NOT_OURS: tuple[tuple[str, str], ...] = ()
"""(rule, part of the element's HTML): findings in Streamlit's own widgets that no setting changes."""


def is_ours(finding: list[Any]) -> bool:
    """Whether a finding is about something that this project draws or can set."""
    rule, _, html, _ = finding
    return not any(rule == known and part in html for known, part in NOT_OURS)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_has_a_serious_finding(demo, watch, scheme):
    if not AXE.exists():
        missing("axe-core is not in .cache/axe: .ci/run installs it, or npm pack axe-core")
    script = AXE.read_text(encoding="utf-8")
    page = watch(demo[0].url, color_scheme=scheme).page
    found: dict[str, list[list[Any]]] = {}
    for path in PATHS:
        page.goto(f"{demo[0].url}/{path}")
        page.locator(".cs-head").wait_for()
        idle(page)
        page.wait_for_timeout(300)
        page.evaluate(f"{script};0")
        findings = [one for one in page.evaluate(RUN) if is_ours(one)]
        if findings:
            found[path] = findings
    assert not found, "\n".join(f"{path}: {' | '.join(one)}" for path, findings in found.items() for one in findings)
