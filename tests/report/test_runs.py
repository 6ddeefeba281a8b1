"""Two runs compared: every number against numpy and scipy over the raw rows."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats

from core.errors import NotFound
from core.pool import Pool
from core.report.runs import MEASURES, compare_runs
from core.scoring.prices import Price
from core.types import Step, View

PRICES = {"m": Price(3e-6, 15e-6), "n": Price(1e-6, 2e-6)}


def made(runs: Sequence[tuple[str, range]], seed: int) -> tuple[Pool, list[dict[str, Any]]]:
    """A pool of runs over ranges of tasks, and one dict per trajectory with its own count of everything."""
    chance = random.Random(seed)
    steps, attempts, rewards = [], [], {}
    for run, tasks in runs:
        for task in tasks:
            for n in range(chance.randint(1, 3)):
                uid, calls = f"{run}-{task}-{n}", chance.randint(1, 4)
                one: dict[str, Any] = {"run": run, "task": task, "n_steps": calls, "tokens": 0, "failed": 0, "cost": 0}
                for index in range(calls):
                    n_prompt, model = chance.randint(1, 40), chance.choice("mn")
                    failed = chance.random() < 0.3
                    one["tokens"] += n_prompt + 3
                    one["failed"] += failed
                    one["cost"] += n_prompt * PRICES[model].prompt_usd + 3 * PRICES[model].response_usd
                    # Of two agents a task has two prompt groups; its name is the same.
                    steps.append(
                        Step(
                            f"{uid}.{index}", uid, f"{task}@{run}", index, 1e9 + len(steps), model=model,
                            status="error" if failed else "ok", prompt_ids=[1] * n_prompt, response_ids=[1, 2, 3],
                            metadata={"run": run, "task": str(task)},
                        )
                    )  # fmt: skip
                one["reward"] = chance.choice((None, 0.0, 0.6, 1.0)) if run == "a" else chance.choice((None, 0.6, 1.0))
                if one["reward"] is not None:
                    rewards[uid] = one["reward"]
                attempts.append(one)
    pool = Pool.open(":memory:", memory="512MB", threads=1)
    pool.steps.append(steps, completions=[{"trajectory_uid": uid, "reward": value} for uid, value in rewards.items()])
    return pool, attempts


def task_means(attempts: list[dict[str, Any]], run: str) -> dict[str, dict[int, float]]:
    """Measure -> task -> mean of its attempts."""
    of_task = defaultdict(list)
    for one in attempts:
        if one["run"] == run:
            of_task[one["task"]].append(one)
    means: dict[str, dict[int, float]] = defaultdict(dict)
    for task, members in of_task.items():
        rewards = np.array([one["reward"] for one in members if one["reward"] is not None])
        if rewards.size:
            means["reward"][task], means["success_rate"][task] = rewards.mean(), (rewards > 0.5).mean()
        means["n_steps"][task] = np.mean([one["n_steps"] for one in members])
        means["n_tokens"][task] = np.mean([one["tokens"] for one in members])
        means["cost_usd"][task] = np.mean([one["cost"] for one in members])
        means["error_rate"][task] = sum(one["failed"] for one in members) / sum(one["n_steps"] for one in members)
    return means


@pytest.mark.parametrize("overlap", [12, 0])
def test_values_differences_and_bands(overlap: int) -> None:
    pool, attempts = made((("a", range(20)), ("b", range(20 - overlap, 44 - overlap))), seed=overlap)
    compared = compare_runs(pool.runs, "a", "b", price=PRICES.get)
    means = task_means(attempts, "a"), task_means(attempts, "b")
    assert compared.n_attempts == tuple(sum(one["run"] == run for one in attempts) for run in "ab")
    assert (compared.n_tasks, compared.n_common) == ((20, 24), overlap)
    assert [row.measure for row in compared.rows] == list(MEASURES)
    for row in compared.rows:
        a, b = (of_run[row.measure] for of_run in means)
        assert row.first is not None and row.second is not None and row.difference is not None
        assert row.first.value == pytest.approx(np.mean(list(a.values())))
        assert row.second.value == pytest.approx(np.mean(list(b.values())))
        common = sorted(a.keys() & b.keys())
        assert row.paired == (overlap > 0)
        if overlap:
            differences = np.array([b[task] - a[task] for task in common])
            expected = differences.mean(), stats.ttest_1samp(differences, 0).confidence_interval(0.95)
        else:
            both = list(b.values()), list(a.values())
            expected = (
                np.mean(both[0]) - np.mean(both[1]),
                stats.ttest_ind(*both, equal_var=False).confidence_interval(0.95),
            )
        assert row.difference.value == pytest.approx(expected[0])
        assert (row.difference.low, row.difference.high) == pytest.approx(tuple(expected[1]), rel=1e-6)
    pool.close()


def test_what_is_unknown_stays_unknown() -> None:
    pool, _ = made((("a", range(3)), ("b", range(3))), seed=1)
    rows = {row.measure: row for row in compare_runs(pool.runs, "a", "b", price={"m": PRICES["m"]}.get).rows}
    costs = rows["cost_usd"]
    assert costs.first is None or costs.first.n_tasks < 3, "a task with a call of unknown price has no cost"
    none = {row.measure: row for row in compare_runs(pool.runs, "a", "b", price=lambda _: None).rows}["cost_usd"]
    assert (none.first, none.second, none.difference) == (None, None, None)
    pool.close()


def test_one_task_has_a_difference_without_a_band_and_no_trajectory_is_named() -> None:
    pool, _ = made((("a", range(1)), ("b", range(1))), seed=2)
    lengths = {row.measure: row for row in compare_runs(pool.runs, "a", "b", price=PRICES.get).rows}["n_steps"]
    assert lengths.difference is not None and lengths.difference.low is None
    with pytest.raises(NotFound, match="'nobody'"):
        compare_runs(pool.runs, "a", "nobody", price=PRICES.get)
    with pytest.raises(NotFound, match="'a'"):
        compare_runs(pool.runs, "a", "b", price=PRICES.get, view=View({"agent": "absent"}))
    pool.close()
