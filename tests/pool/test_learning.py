"""Reward by policy version: bands against statsmodels' formula and a simulation, curves against a brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest

from core.pool import Pool
from core.pool.learning import Run, band, curves, gain
from core.types import RUN_KEY, PolicyEvent, Step


def test_wilson_interval_of_independent_attempts():
    # statsmodels.stats.proportion.proportion_confint(19, 60, method="wilson")
    low, high = band(19 / 60, 60, 60, (19 / 60) * (41 / 60) / 60, is_binary=True)
    assert (low, high) == pytest.approx((0.2131, 0.4422), abs=5e-4)
    assert band(0.0, 60, 60, 0.0, is_binary=True) == pytest.approx((0.0, 0.0602), abs=5e-4)


def test_attempts_of_one_task_widen_the_band():
    """Groups of 8 equal attempts tell as much as 8 attempts, not as 64."""
    sums = np.array([8, 8, 8, 0, 0, 0, 0, 8.0])
    mean = sums.sum() / 64
    variance = float(((sums - mean * 8) ** 2).sum()) * 8 / 7 / 64**2
    low, high = band(mean, 64, 8, variance, is_binary=True)
    independent = band(mean, 8, 8, mean * (1 - mean) / 8, is_binary=True)
    assert low is not None and high is not None
    assert high - low >= independent[1] - independent[0]
    assert band(0.5, 64, 1, None, is_binary=False) == (None, None)


def test_the_band_covers_the_truth():
    """95 % bands over simulated tasks with different success rates, eight attempts each."""
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        rates = rng.choice([0.1, 0.5, 0.9], 24)
        sums = rng.binomial(8, rates).astype(float)
        mean = sums.sum() / 192
        variance = float(((sums - mean * 8) ** 2).sum()) * 24 / 23 / 192**2
        low, high = band(mean, 192, 24, variance, is_binary=True)
        covered += low <= 0.5 <= high
    assert 0.90 <= covered / 400 <= 0.99


def steps_of(version: int, channel: str, group: int, k: int) -> Step:
    uid = f"{channel}-{version}-{group}-{k}"
    return Step(
        step_uid=f"{uid}:0",
        trajectory_uid=uid,
        prompt_uid=f"{channel}-{group}",
        step_index=0,
        created_at=100.0 + version,
        channel=channel,
        identity_source="path",
        policy_version=version,
        token_source="engine",
        prompt_ids=[1, 2],
        response_ids=[3],
        response_logprobs=[-0.5],
        messages=[{"role": "user", "content": "task"}],
        response_message={"role": "assistant", "content": "answer"},
    )


def completed(step: Step, reward: float | None) -> dict[str, object]:
    return {"trajectory_uid": step.trajectory_uid, "reward": reward, "outcome": None, "at": 200.0}


def test_curves_are_the_means_of_complete_scored_trajectories():
    pool = Pool.open(":memory:")
    rng = np.random.default_rng(1)
    truth: dict[tuple[str, int], list[float]] = {}
    for version in range(6):
        steps, completions = [], []
        for channel in ("train", "val"):
            for group in range(3):
                for k in range(4):
                    step = steps_of(version, channel, group, k)
                    reward = [None, 0.0, 0.5, 1.0][rng.integers(4)]
                    steps.append(step)
                    completions.append(completed(step, reward))
                    if reward is not None:
                        truth.setdefault((channel, version), []).append(reward)
        pool.steps.append(steps, completions=completions)
    pool.steps.append([steps_of(6, "val", 0, 0)])  # open: it counts nowhere
    points = pool.learning.by_version()
    assert {(one.channel, one.version) for one in points} == set(truth)
    for one in points:
        rewards = truth[one.channel, one.version]
        assert (one.n_trajectories, one.mean) == (len(rewards), pytest.approx(math.fsum(rewards) / len(rewards)))
    assert [one.version for one in pool.learning.by_version("val")] == list(range(6))

    runs = [Run("first", 0, 3, {}), Run("second", 4, None, {})]
    drawn = curves(points, runs)
    assert [(curve["run"].name, curve["channel"]) for curve in drawn] == [
        ("first", "train"), ("first", "val"), ("second", "train"), ("second", "val"),
    ]  # fmt: skip
    assert [update for _, update in drawn[3]["points"]] == [0, 1]
    assert gain(drawn[1]) == pytest.approx(np.mean(truth["val", 3]) - np.mean(truth["val", 0]))

    newest = pool.learning.newest("val")
    assert [(row["version"], row["reward"]) for row in newest] == [(6, None)]
    assert {row["version"] for row in pool.learning.newest("val", last=3)} == {3}
    pairs = pool.learning.pairs("val", 0, 3)
    assert all(pair["before_version"] < pair["after_version"] <= 3 for pair in pairs)
    pool.close()


def test_runs_begin_where_a_policy_event_names_them():
    pool = Pool.open(":memory:")
    assert [(run.name, run.first_version, run.last_version) for run in pool.learning.runs()] == [
        ("all versions", 0, None)
    ]
    events = [
        PolicyEvent(0, "sync_finished", 1.0, {RUN_KEY: {"name": "run-0", "seed": 3}}),
        PolicyEvent(1, "sync_finished", 2.0),
        PolicyEvent(2, "sync_finished", 3.0, {RUN_KEY: {"name": "run-2", "control": "shuffled rewards"}}),
    ]
    pool.steps.append([], policy_events=events)
    assert [(run.name, run.first_version, run.last_version) for run in pool.learning.runs()] == [
        ("run-0", 0, 1), ("run-2", 2, None),
    ]  # fmt: skip
    pool.close()


def test_versions_before_the_first_named_run_stay():
    pool = Pool.open(":memory:")
    pool.steps.append([], policy_events=[PolicyEvent(4, "sync_finished", 1.0, {RUN_KEY: {"name": "run-4"}})])
    runs = pool.learning.runs()
    assert [(run.name, run.first_version, run.last_version) for run in runs] == [
        ("earlier versions", 0, 3), ("run-4", 4, None),
    ]  # fmt: skip
    pool.close()
