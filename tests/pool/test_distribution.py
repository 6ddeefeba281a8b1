"""Bins of a column against counting in Python."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from core.errors import InvalidInput
from core.pool import Pool, stats
from core.pool.query.columns import STEP_COLUMNS
from core.pool.query.distribution import by_sql
from core.types import Annotation, Step, View


@pytest.fixture
def spread(tmp_path):
    chance = random.Random(3)
    pool = Pool.open(tmp_path / "p.duckdb")
    steps = [
        Step(
            step_uid=f"s{n}",
            trajectory_uid=f"t{n % 7}",
            prompt_uid="g",
            step_index=n % 5,
            created_at=1e9 + n,
            agent=chance.choice(("a", "b", "c", "d", None)),
            reward=chance.choice((None, chance.random())),
            latency_s=0.5,
        )
        for n in range(200)
    ]
    pool.steps.append(steps)
    yield pool, steps
    pool.close()


def test_every_known_value_is_in_its_bin_and_part(spread):
    pool, steps = spread
    rows = pool.stats.distribution(View(), "reward", by="agent", bins=10).to_pylist()
    known = [step for step in steps if step.reward is not None]
    counted: Counter = Counter()
    for step in known:
        edges = [row for row in rows if row["part"] == step.agent and row["low"] - 1e-12 <= step.reward < row["high"]]
        edges = edges or [row for row in rows if row["part"] == step.agent and abs(row["high"] - step.reward) < 1e-9]
        assert edges
        counted[edges[-1]["low"], step.agent] += 1
    assert sum(row["n_steps"] for row in rows) == len(known)
    assert {(row["low"], row["part"]): row["n_steps"] for row in rows} == dict(counted)
    assert len({row["low"] for row in rows}) <= 10


def test_whole_numbers_stand_in_the_middle_of_their_bins(spread):
    pool, steps = spread
    rows = pool.stats.distribution(View(), "step_index").to_pylist()
    assert [(row["low"], row["high"]) for row in rows] == [(k - 0.5, k + 0.5) for k in range(5)]
    assert [row["n_steps"] for row in rows] == [sum(step.step_index == k for step in steps) for k in range(5)]


def test_rare_parts_are_the_others_and_the_view_counts(spread):
    pool, steps = spread
    rows = pool.stats.distribution(View({"trajectory_uid": "t1"}), "step_index", by="agent", parts=2).to_pylist()
    own = Counter(step.agent for step in steps if step.trajectory_uid == "t1")
    assert sum(row["n_steps"] for row in rows) == own.total()
    assert {row["part"] for row in rows} <= {"(others)", None, *own}
    assert len({row["part"] for row in rows} - {"(others)", None}) <= 2


def test_one_value_and_none_at_all(spread):
    pool, steps = spread
    (row,) = pool.stats.distribution(View(), "latency_s").to_pylist()
    assert row["low"] <= 0.5 <= row["high"] and row["n_steps"] == len(steps)
    assert len(pool.stats.distribution(View({"agent": "nobody"}), "reward")) == 0


@pytest.mark.parametrize(
    ("column", "by"), [("agent", None), ("nothing", None), ("reward", "latency_s"), ("reward", "x")]
)
def test_what_cannot_be_spread_is_refused(spread, column, by):
    with pytest.raises(InvalidInput):
        spread[0].stats.distribution(View(), column, by=by)


@pytest.mark.parametrize("view", [View(), View({"agent": ["a"]}), View({"step_index": [0, 1], "agent": ["b", "c"]})])
def test_what_a_label_reaches(spread, view):
    pool, steps = spread
    hit = [
        step
        for step in steps
        if ("agent" not in view.filters or step.agent in view.filters["agent"])
        and ("step_index" not in view.filters or step.step_index <= 1)
    ]
    uids = {step.trajectory_uid for step in hit}
    assert pool.stats.reach(view, "step") == {
        "n_groups": 1,
        "n_trajectories": len(uids),
        "n_steps": len(hit),
        "n_tokens": 0,
    }
    whole = [step for step in steps if step.trajectory_uid in uids]
    assert pool.stats.reach(view, "trajectory")["n_steps"] == len(whole)
    assert pool.stats.reach(View({"agent": "nobody"}), "trajectory") == dict.fromkeys(
        ("n_groups", "n_trajectories", "n_steps", "n_tokens"), 0
    )


def test_a_distribution_is_computed_once_until_the_next_write(spread, monkeypatch):
    pool, steps = spread
    computed = []
    compute = stats.distribution
    monkeypatch.setattr(stats, "distribution", lambda *given: computed.append(given) or compute(*given))
    first = pool.stats.distribution(View(), "step_index", by="agent")
    assert pool.stats.distribution(View(), "step_index", by="agent").equals(first)
    assert len(computed) == 1
    assert pool.stats.distribution(View(), "step_index").num_rows == 5
    assert pool.stats.distribution(View({"agent": "a"}), "step_index", by="agent").column_names == first.column_names
    assert len(computed) == 3
    pool.steps.append([Step(step_uid="late", trajectory_uid="t0", prompt_uid="g", step_index=9, created_at=2e9)])
    rows = pool.stats.distribution(View(), "step_index", by="agent").to_pylist()
    counted = Counter((step.step_index, step.agent) for step in steps) + Counter({(9, None): 1})
    assert {(row["low"] + 0.5, row["part"]): row["n_steps"] for row in rows} == dict(counted)


@pytest.fixture
def varied(tmp_path):
    """Steps whose columns have few values, many, none, whole ones and unknown ones."""
    chance = random.Random(5)
    pool = Pool.open(tmp_path / "v.duckdb")
    steps = [
        Step(
            step_uid=f"s{n}",
            trajectory_uid=f"t{n % 11}",
            prompt_uid=f"g{n % 3}",
            step_index=n // 11,
            created_at=1e9 + n,
            channel=chance.choice(("train", "train", "val")),
            agent=chance.choice(("a", "b", "(others)", "ä", None)),
            model=chance.choice((None, *(f"m{k}" for k in range(9)))),
            reward=chance.choice((None, -0.5, chance.random())),
            latency_s=chance.choice((None, chance.expovariate(1))),
            policy_version=chance.choice((None, 3, 4, 90)),
            prompt_ids=list(range(chance.randrange(400))),
            response_ids=[1, 2],
        )
        for n in range(300)
    ]
    done = [{"kind": "complete", "trajectory_uid": f"t{k}", "reward": k / 4 if k % 3 else None} for k in range(11)]
    pool.steps.append(steps, completions=done)
    yield pool
    pool.close()


def of_sql(pool: Pool, view: View, column: str, by: str | None, parts: int):
    with pool.stats._reader.reading(view) as (cursor, seen):
        return by_sql(cursor, seen, column, by, 7, parts)


@pytest.mark.parametrize("by", [None, "agent", "model", "trainable"])
@pytest.mark.parametrize("view", [View(), View({"agent": ["a", "ä"]}, "step_index = 0 OR reward < 0")])
def test_counts_in_memory_are_those_of_sql(varied, by, view):
    numbers = [one.name for one in STEP_COLUMNS.values() if one.kind == "number"]
    for _ in range(2):
        for column in numbers:
            for parts in (1,) if by is None else (1, 3):
                counted = varied.stats.distribution(view, column, by=by, bins=7, parts=parts)
                expected = of_sql(varied, view, column, by, parts)
                assert counted.schema.equals(expected.schema)
                assert counted.to_pylist() == expected.to_pylist(), column
        varied.labels.annotate(
            [
                Annotation("reward", 0.75, "ann", "human", 2e9, trajectory_uid="t3"),
                Annotation("trainable", False, "ann", "human", 2e9, step_uid="s7"),
            ],
            label="two",
        )


def test_a_preview_counts_what_is_not_written(varied):
    label = Annotation("reward", 7.0, "ann", "human", 2e9, trajectory_uid="t3")
    before = varied.stats.distribution(View(), "trajectory_reward")
    with varied.labels.previewing([label]):
        assert max(varied.stats.distribution(View(), "trajectory_reward")["high"].to_pylist()) >= 7
    assert varied.stats.distribution(View(), "trajectory_reward").equals(before)
