"""What a run leaves out, always with its reason, listed at the end of the run.

``make test`` leaves out what is marked ``beyond``: what needs an environment of its own, and what takes long. ``make
beyond`` runs exactly that. With ``CI`` set neither leaves anything else out.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import NoReturn

import pytest

IN_CI = bool(os.environ.get("CI"))
BEYOND = ("agents", "engines", "trainers", "long")
"""Marks of tests that are beyond ``make test``; most of the browser tests say so themselves."""


def only_in_ci(why: str) -> pytest.MarkDecorator:
    """The mark of a test that is too heavy for every run; ``why`` says what it takes."""
    return pytest.mark.long(why)


def missing(what: str) -> NoReturn:
    """Leave out a test for want of something that ``.ci/run`` installs: there it is a failure."""
    if IN_CI:
        pytest.fail(what)
    pytest.skip(what)


def mark_beyond(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is beyond ``make test``. Of it, what takes long runs in CI and where ``-m`` asks for it."""
    asked_for = IN_CI or bool(config.option.markexpr)
    for item in items:
        if any(item.get_closest_marker(name) for name in BEYOND):
            item.add_marker(pytest.mark.beyond)
        long = item.get_closest_marker("long")
        if long is not None and not asked_for:
            item.add_marker(pytest.mark.skip(reason=f"{long.args[0]}: make beyond runs it"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """How many tests were left out, for each reason."""
    reports = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports)
    beyond = config.option.markexpr == "not beyond"
    if reasons or beyond:
        terminalreporter.section("left out")
    if beyond:
        terminalreporter.line(
            "real agents, clients, engines and trainers, most walks in a browser, what takes long: see make beyond"
        )
    for reason, n_tests in reasons.most_common():
        terminalreporter.line(f"{n_tests:3} × {reason}")
