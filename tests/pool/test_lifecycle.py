"""A step's life against a log of what was done to it."""

from __future__ import annotations

import pytest

from core.errors import NotFound
from core.pool import Pool
from core.pool.query.lifecycle import STAGES
from core.types import Annotation, Step

START = 1_790_000_000.0


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def curated_pool(tmp_path):
    clock = Clock()
    pool = Pool.open(tmp_path / "p.duckdb", clock=clock)
    step = Step(
        step_uid="s", trajectory_uid="t", prompt_uid="g", step_index=0, created_at=START - 60, latency_s=2.5,
        token_source="engine", prompt_ids=[1, 2], response_ids=[3], response_logprobs=[-0.5],
    )  # fmt: skip
    pool.steps.append([step])
    yield pool, clock
    pool.close()


def say(pool, clock, kind: str, value, **target):
    return pool.labels.annotate([Annotation(kind, value, "me", "human", clock.now, **target)])


def test_a_life_that_goes_as_planned(curated_pool):
    pool, clock = curated_pool
    wanted: dict[str, float | None] = dict.fromkeys(STAGES)
    wanted |= {"generated": START - 60, "captured": START - 57.5, "ingested": START}
    assert pool.steps.stage_times("s") == wanted
    clock.now += 10
    pool.steps.append([], completions=[{"trajectory_uid": "t"}])
    wanted["completed"] = clock.now
    assert pool.steps.stage_times("s") == wanted
    clock.now += 10
    say(pool, clock, "reward", 1.0, trajectory_uid="t")
    wanted |= {"scored": clock.now, "ready": clock.now}
    assert pool.steps.stage_times("s") == wanted
    clock.now += 10
    say(pool, clock, "quality", "good", step_uid="s")
    wanted["curated"] = clock.now
    assert pool.steps.stage_times("s") == wanted


def test_what_was_undone_counts_for_nothing(curated_pool):
    pool, clock = curated_pool
    pool.steps.append([], completions=[{"trajectory_uid": "t"}])
    action = say(pool, clock, "reward", 1.0, trajectory_uid="t")
    assert pool.steps.stage_times("s")["ready"] is not None
    pool.labels.undo(action)
    assert pool.steps.stage_times("s")["scored"] is None and pool.steps.stage_times("s")["ready"] is None
    clock.now += 5
    off = say(pool, clock, "trainable", False, step_uid="s")
    pool.labels.redo(action)
    assert pool.steps.stage_times("s")["ready"] is None and pool.steps.stage_times("s")["curated"] == clock.now
    pool.labels.undo(off)
    assert pool.steps.stage_times("s")["ready"] == START and pool.steps.stage_times("s")["curated"] is None


def test_a_reward_that_came_with_the_completion_counts_from_then(curated_pool):
    pool, clock = curated_pool
    clock.now += 7
    pool.steps.append([], completions=[{"trajectory_uid": "t", "reward": 0.5}])
    clock.now += 7
    say(pool, clock, "reward", 1.0, trajectory_uid="t")
    assert pool.steps.stage_times("s")["scored"] == START + 7


def test_nobodys_life(curated_pool):
    with pytest.raises(NotFound):
        curated_pool[0].steps.stage_times("nobody")
