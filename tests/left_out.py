"""What a run leaves out, always with its reason, listed at the end of the run. With ``CI`` set nothing is left out."""

from __future__ import annotations

import os
from collections import Counter
from typing import NoReturn

import pytest

IN_CI = bool(os.environ.get("CI"))


def only_in_ci(why: str) -> pytest.MarkDecorator:
    """The mark of a test that is too heavy for every run; ``why`` says what it takes."""
    return pytest.mark.skipif(not IN_CI, reason=f"{why}: .ci/run runs it, or CI=1 pytest")


def missing(what: str) -> NoReturn:
    """Leave out a test for want of something that ``.ci/run`` installs: there it is a failure."""
    if IN_CI:
        pytest.fail(what)
    pytest.skip(what)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many tests were left out, for each reason."""
    reports = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports)
    if reasons:
        terminalreporter.section("left out")
    for reason, n_tests in reasons.most_common():
        terminalreporter.line(f"{n_tests:3} × {reason}")
