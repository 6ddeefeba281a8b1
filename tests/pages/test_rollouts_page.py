"""The Rollouts page from runs that are on disk: figures, tiles, the table, one attempt with its diff and its output."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from core.packs.model import PackFile
from core.rollouts import Attempt, Outcome, Run, RunSettings
from core.service import Service

NASTY = "<img src=x onerror=alert(1)>"


@pytest.fixture
def stopped(service: Service, tmp_path: Path) -> Run:
    """A run of two tasks, two attempts each: solved, failed, crashed, and one that was not begun."""
    run = service.rollouts.runs.create(
        RunSettings(
            run="first",
            pack="pack",
            pack_version="0" * 12,
            pack_path="/p",
            task_ids=("a", NASTY),
            harness="demo",
            model="m",
            attempts=2,
            workers=3,
            created_at=1.0,
        )
    )
    space = tmp_path / "space"
    space.mkdir()
    (space / "a.txt").write_text(f"new {NASTY}\n")
    digest = service.rollouts.workspaces.put(space, {"a.txt": PackFile(b"old\n")})
    level = {"level": "strict", "layer": "bubblewrap", "network": "gateway-only"}
    with run.writer() as writer:
        ends: list[tuple[str, int, Outcome, float | None, str | None]] = [
            ("a", 0, "solved", 1.0, None),
            ("a", 1, "failed", 0.25, None),
            (NASTY, 0, "crashed", None, f"the agent ended with code 1: {NASTY}"),
        ]
        for task, number, outcome, score, reason in ends:
            one = Attempt(
                "first", "pack", "0" * 12, task, "demo", number, 0, f"first:{task}:{number}", "done", outcome, reason,
                score, {"values": {f"check {NASTY}": 0.25}}, level, 2.0, 0.5, 1 << 20, 0.1, digest, None, 10.0, 12.5,
            )  # fmt: skip
            writer.write(replace(one, log=run.write_log(one, f"output {NASTY}".encode())))
    return run


def test_without_a_run_the_page_has_the_form(service, open_page):
    page = open_page("rollouts")
    assert page.failures == []
    assert "No rollouts yet" in page.html
    assert [one.label for one in page.app.selectbox] == ["Task pack", "Tasks", "Agent", "Minimum isolation"]


def test_a_run_with_its_attempts(stopped, open_page):
    page = open_page("rollouts")
    assert page.failures == []
    figures = dict(re.findall(r'<div class="l">(.*?)</div><div class="v">(.*?)</div>', page.html))
    assert (figures["State"], figures["Ended"], figures["Solved"]) == ("stopped", "3 of 4", "1")
    assert (figures["Mean score"], figures["Unscored"]) == ("0.625", "1")
    for kind, n in (("good", 1), ("bad", 1), ("warn", 1), ("open", 1)):
        assert page.html.count(f'<a class="{kind}"') == n
    labels = [button.label for button in page.app.button]
    assert "Resume: 1 attempt left" in labels and "Retry 1 crashed" in labels
    assert NASTY not in page.html
    (table,) = page.app.dataframe
    assert list(table.value["Task"]) == [NASTY, "a", "a"]
    assert table.value["Score"].isna().tolist() == [True, False, False]


def test_one_attempt(stopped, open_page):
    page = open_page("rollouts", run="first", attempt=f"0.0.{NASTY}")
    assert page.failures == []
    assert NASTY not in page.html
    assert "strict (bubblewrap)" in page.html
    codes = [one.value for one in page.app.code]
    assert codes == [f"@@ -1 +1 @@\n-old\n+new {NASTY}", f"output {NASTY}"]


def test_a_run_that_does_not_exist(stopped, open_page):
    page = open_page("rollouts", run="second")
    assert "There is no run second" in page.html
