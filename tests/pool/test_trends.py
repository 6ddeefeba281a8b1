"""Trends and what needs attention, against counting in Python."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from core.batch.attention import CHECKS, attention
from core.batch.recipe import parse_recipe
from core.errors import InvalidInput
from core.pool import Pool
from core.types import Step, View
from studio.widgets.overview.trends import view_of

AGENTS = ("a", "b", None)


@pytest.fixture(scope="module")
def varied(tmp_path_factory):
    chance = random.Random(11)
    pool = Pool.open(tmp_path_factory.mktemp("trends") / "p.duckdb", memory="512MB", threads=1)
    steps = []
    for n in range(60):
        began, agent, version = 1e9 + chance.random() * 5000, chance.choice(AGENTS), chance.choice((None, 1, 2, 5))
        for index in range(chance.randint(1, 4)):
            steps.append(
                Step(
                    f"t{n}.{index}", f"t{n}", f"g{n % 9}", index, began + index, agent=agent, policy_version=version,
                    status=chance.choice(("ok", "ok", "ok", "error", "aborted")), prompt_ids=[1] * chance.randint(1, 9),
                    response_ids=[2], response_message={"role": "assistant", "content": chance.choice("xyz")},
                )
            )  # fmt: skip
    rewards = {f"t{n}": chance.choice((None, 0.0, 1.0, 0.6)) for n in range(0, 60, 2)}
    pool.steps.append(
        steps, completions=[{"trajectory_uid": uid, "reward": value} for uid, value in rewards.items()]
    )  # fmt: skip
    yield pool, steps
    pool.close()


def mean(values):
    known = [value for value in values if value is not None]
    return pytest.approx(sum(known) / len(known)) if known else None


@pytest.mark.parametrize("axis", ["time", "policy_version"])
@pytest.mark.parametrize("by", [None, "agent"])
def test_every_number_is_the_trajectories_of_its_interval(varied, axis, by):
    pool, steps = varied
    of_trajectory = defaultdict(list)
    for step in steps:
        of_trajectory[step.trajectory_uid].append(step)
    members = pool.trajectories.page(order="trajectory_uid", limit=None).to_pylist()
    rows = pool.stats.trends(axis=axis, by=by, points=12).to_pylist()
    n_seen = 0
    for row in rows:
        inside = []
        for one in members:
            first = of_trajectory[one["trajectory_uid"]][0]
            at = first.created_at if axis == "time" else first.policy_version
            last = row is rows[-1] or row["high"] == rows[-1]["high"]
            held = (
                at is not None
                and row["low"] - 1e-6 <= at
                and (at < row["high"] - 1e-6 or (last and at <= row["high"] + 1e-6))
            )
            if held and (by is None or first.agent == row["part"]):
                inside.append(one)
        n_seen += len(inside)
        rewards = [one["reward"] for one in inside]
        assert row["n_trajectories"] == len(inside) and row["n_scored"] == sum(value is not None for value in rewards)
        assert row["reward"] == mean(rewards)
        assert row["success_rate"] == mean([None if value is None else value > 0.5 for value in rewards])
        assert row["n_steps"] == mean([one["n_steps"] for one in inside])
        calls = [step for one in inside for step in of_trajectory[one["trajectory_uid"]]]
        assert row["n_tokens"] == pytest.approx(
            sum(len(step.prompt_ids) + len(step.response_ids) for step in calls) / len(inside)
        )
        assert row["error_rate"] == pytest.approx(
            sum(step.status in ("error", "aborted") for step in calls) / len(calls)
        )
    known = sum(axis == "time" or of_trajectory[one["trajectory_uid"]][0].policy_version is not None for one in members)
    assert n_seen == known and len({row["low"] for row in rows}) <= 12
    if axis == "policy_version":
        assert [(row["low"], row["high"]) for row in rows if row["part"] == rows[0]["part"]] == [(1, 2), (2, 3), (5, 6)]


@pytest.mark.parametrize("axis", ["time", "policy_version"])
def test_the_link_of_a_dot_finds_its_trajectories(varied, axis):
    pool, _ = varied
    for row in pool.stats.trends(axis=axis, by="agent", points=7).to_pylist():
        if row["part"] is not None:
            assert pool.trajectories.count(view_of(row, axis, "agent")) == row["n_trajectories"]


def test_the_view_counts_and_unknown_names_are_refused(varied):
    pool, _ = varied
    rows = pool.stats.trends(View({"agent": "a"}), by="agent").to_pylist()
    assert {row["part"] for row in rows} == {"a"}
    assert {row["part"] for row in pool.stats.trends(by="task", parts=2).to_pylist()} >= {"(others)"}
    for wrong in ({"axis": "colour"}, {"by": "colour"}):
        with pytest.raises(InvalidInput, match="No trend over 'colour'"):
            pool.stats.trends(**wrong)


def test_attention_counts_rows_and_names_what_to_do(varied):
    pool, steps = varied
    found = {one.name: one for one in attention(pool, parse_recipe({"algorithm": "grpo", "max_staleness": 2}))}
    members = pool.trajectories.page(limit=None).to_pylist()
    assert found["Failed calls"].n == sum(step.status == "error" for step in steps)
    assert found["Complete, but unscored"].n == sum(one["complete"] and one["reward"] is None for one in members)
    assert "Uncertain trajectories" not in found and "Length mismatches" not in found
    stale = {step.prompt_uid for step in steps if step.policy_version is not None and 5 - step.policy_version > 2}
    assert found["Stale groups"].n == len(stale)
    looping = found.get("Looping agents")
    assert (looping.n if looping else 0) == sum("looping" in one["findings"] for one in members)
    assert all(one.then.endswith(".") and one.what.endswith(".") for one in found.values())
    assert list(found)[:-1] == [name for name, *_ in CHECKS if name in found], "in the order of the checks"
