"""Solve rates from runs on disk, beside counts by hand; only attempts at the same content count."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.errors import InvalidInput
from core.packs import Pack, PackTask
from core.packs.library import PackLibrary
from core.rollouts import RunStore
from core.synthesis import Choice, filtered
from core.synthesis.behaviour import SameAs
from core.synthesis.difficulty import BAND, difficulty_of, in_band
from tests.report.made_run import make_run


@pytest.fixture
def place(tmp_path):
    tasks = [PackTask(name, f"Do {name}.") for name in ("easy", "fair", "hard", "new")]
    return RunStore(tmp_path / "runs"), PackLibrary(tmp_path / "packs"), tasks


def test_attempts_of_all_runs_at_the_same_content_count(place):
    runs, packs, tasks = place
    pack = Pack("p", tasks)
    make_run(runs, packs, None, pack, {"easy": [1.0, 1.0], "fair": [1.0, 0.25, None], "hard": [0.0]}, run="one")
    make_run(runs, packs, None, pack, {"fair": [0.75, 0.0]}, run="two", harness="other", version=4)
    edited = Pack("p", [replace(tasks[1], query="Do it otherwise."), *tasks[2:]])
    make_run(runs, packs, None, edited, {"fair": [1.0, 1.0], "hard": [0.5]}, run="three", version=5)
    measured = difficulty_of(tasks, runs.all(), packs)
    assert {name: one.solve_rate for name, one in measured.items()} == {
        "easy": 1.0,
        "fair": 0.5,
        "hard": 0.0,
        "new": None,
    }
    fair = measured["fair"]
    assert (fair.n_solved, fair.n_scored) == (2, 4)
    assert fair.by_model == {"demo, model-1": [1, 2], "other, model-1": [1, 2]}
    assert fair.solved == ["one:fair:0", "two:fair:0"]
    # 0.5 is not above the threshold of the run, 0.5.
    assert (measured["hard"].n_solved, measured["hard"].n_scored) == (0, 2)
    names = [one.task_id for one in filtered(tasks, Choice(min_solve_rate=0.1, max_solve_rate=0.9), measured)]
    assert names == ["fair"]
    assert len(filtered(tasks, Choice(), measured)) == 4
    same = {"fair": SameAs("easy", 1.0)}
    kept = filtered(tasks, Choice(distinct_behaviour=True), measured, same)
    assert [one.task_id for one in kept] == ["easy", "hard", "new"]


def test_the_band_holds_both_ends():
    rates = {"a": 0.1, "b": 0.9, "c": 0.05, "d": 0.95, "e": None}
    assert in_band(rates, BAND) == {"a", "b"}
    assert in_band(rates, (0.0, 1.0)) == set(rates)
    for band in ((0.9, 0.1), (-0.1, 1.0), (0.0, 1.5)):
        with pytest.raises(InvalidInput):
            in_band(rates, band)
