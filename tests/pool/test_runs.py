"""Runs: how trajectories get theirs, and their figures against counting in Python."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

import duckdb
import pytest

from core.errors import InvalidInput
from core.pool import Pool
from core.types import Step, View

RUNS = ("base", "new prompt", None)


@pytest.fixture(scope="module")
def varied(tmp_path_factory: pytest.TempPathFactory) -> Any:
    chance = random.Random(5)
    pool = Pool.open(tmp_path_factory.mktemp("runs") / "p.duckdb", memory="512MB", threads=1)
    steps, rewards = [], {}
    for n in range(90):
        run = chance.choice(RUNS)
        for index in range(chance.randint(1, 4)):
            steps.append(
                Step(
                    f"t{n}.{index}", f"t{n}", f"g{n % 7}", index, 1e9 + 100 * n + index, agent=chance.choice("ab"),
                    model="m", policy_version=chance.choice((None, 1, 2)), status=chance.choice(("ok", "ok", "error")),
                    prompt_ids=[1] * chance.randint(1, 9), response_ids=[2],
                    metadata={} if run is None else {"run": run, "task": f"task {n % 7}"},
                )
            )  # fmt: skip
        if n % 3:
            rewards[f"t{n}"] = chance.choice((0.0, 0.6, 1.0))
    pool.steps.append(steps, completions=[{"trajectory_uid": uid, "reward": value} for uid, value in rewards.items()])
    yield pool, steps, rewards
    pool.close()


def run_of(step: Step) -> str | None:
    return step.metadata.get("run")  # type: ignore[no-any-return]


def mean(values: list[float]) -> Any:
    return pytest.approx(fmean(values)) if values else None


def test_every_figure_of_a_run_is_that_of_its_trajectories(varied: Any) -> None:
    pool, steps, rewards = varied
    members: dict[str, dict[str, list[Step]]] = defaultdict(lambda: defaultdict(list))
    for step in steps:
        if run_of(step) is not None:
            members[run_of(step)][step.trajectory_uid].append(step)  # type: ignore[index]
    rows = pool.runs.page(order="run").to_pylist()
    assert [row["run"] for row in rows] == sorted(members) == ["base", "new prompt"]
    assert pool.runs.count() == 2
    for row in rows:
        own = members[row["run"]]
        calls = [step for trajectory in own.values() for step in trajectory]
        known = [rewards[uid] for uid in own if uid in rewards]
        assert (row["n_trajectories"], row["n_scored"], row["n_steps"]) == (len(own), len(known), len(calls))
        assert row["n_groups"] == len({step.prompt_uid for step in calls})
        assert row["reward_mean"] == mean(known) and row["success_rate"] == mean([one > 0.5 for one in known])
        assert row["n_steps_mean"] == mean([len(trajectory) for trajectory in own.values()])
        assert row["n_tokens_mean"] == pytest.approx(
            sum(len(step.prompt_ids or ()) + len(step.response_ids or ()) for step in calls) / len(own)
        )
        assert row["error_rate"] == pytest.approx(sum(step.status == "error" for step in calls) / len(calls))
        assert row["agents"] == sorted({own[uid][-1].agent for uid in own}) and row["models"] == ["m"]
        assert row["started_at"].timestamp() == min(step.created_at for step in calls)


def test_a_view_narrows_runs_and_pages_are_ordered(varied: Any) -> None:
    pool, steps, _ = varied
    errors = {step.trajectory_uid for step in steps if step.status == "error" and run_of(step) == "base"}
    row = pool.runs.page(View({"status": "error", "run": "base"})).to_pylist()
    assert [(one["run"], one["n_trajectories"]) for one in row] == [("base", len(errors))]
    assert pool.runs.page(order="run desc", limit=1, offset=1)["run"].to_pylist() == ["base"]
    with pytest.raises(InvalidInput, match="order by"):
        pool.runs.page(order="colour")


def test_attempts_of_a_run_name_the_task_of_their_metadata(varied: Any) -> None:
    pool, steps, rewards = varied
    rows = pool.runs.attempts("base").to_pylist()
    own = defaultdict(list)
    for step in steps:
        if run_of(step) == "base":
            own[step.trajectory_uid].append(step)
    assert Counter(row["task"] for row in rows) == Counter(one[0].metadata["task"] for one in own.values())
    assert sorted(row["reward"] for row in rows if row["reward"] is not None) == sorted(
        rewards[uid] for uid in own if uid in rewards
    )
    assert sum(row["n_failed"] for row in rows) == sum(one.status == "error" for each in own.values() for one in each)
    tokens = pool.runs.tokens("base").to_pylist()
    assert sum(row["n_prompt_tokens"] for row in tokens) == sum(
        len(step.prompt_ids or ()) for each in own.values() for step in each
    )
    assert all(row["known"] for row in tokens)


def test_steps_facets_conditions_and_trends_know_the_run(varied: Any) -> None:
    pool, steps, _ = varied
    counted = Counter(run_of(step) for step in steps)
    assert dict(pool.stats.facets(View(), ["run", "agent"])["run"]) == counted
    assert dict(pool.stats.facets(View(), ["run"])["run"]) == counted
    by_trajectory = Counter({step.trajectory_uid: run_of(step) for step in steps}.values())
    assert dict(pool.stats.trajectory_facets(View(), ["run"])["run"]) == by_trajectory
    for view in (View({"run": "base"}), View(where="run = 'base'")):
        assert pool.steps.count(view) == counted["base"]
        assert pool.trajectories.count(view) == by_trajectory["base"]
    assert pool.steps.count(View({"run": [None]})) == counted[None]
    parts = Counter()
    for row in pool.stats.trends(by="run").to_pylist():
        parts[row["part"]] += row["n_trajectories"]
    assert parts == by_trajectory
    assert pool.steps.get(steps[0].step_uid)["run"] == run_of(steps[0])


def test_the_report_of_the_producer_counts_then_the_first_step_that_names_one() -> None:
    pool = Pool.open(":memory:")
    pool.steps.append(
        [
            Step("a0", "a", "p", 0, 1.0, metadata={"run": {"no": "name"}}),
            Step("a1", "a", "p", 1, 2.0, metadata={"learning_run": "r1"}),
            Step("a2", "a", "p", 2, 3.0, metadata={"run": "r2"}),
            Step("b0", "b", "p", 0, 1.0, metadata={"run": 7}),
            Step("c0", "c", "p", 0, 1.0, metadata={"run": ""}),
            Step("d0", "d", "p", 0, 1.0, metadata={"run": "x" * 300}),
        ],
    )

    def runs() -> dict[str, Any]:
        return {row["trajectory_uid"]: row["run"] for row in pool.trajectories.page().to_pylist()}

    assert runs() == {"a": "r1", "b": "7", "c": None, "d": "x" * 256}
    pool.steps.append([], completions=[{"trajectory_uid": "a", "reward": 1.0, "metadata": {"run": "named later"}}])
    assert runs()["a"] == "named later"
    assert {row["run"] for row in pool.steps.page(View({"trajectory_uid": "a"})).to_pylist()} == {"named later"}
    pool.close()


def test_a_pool_from_before_gets_the_runs_of_its_metadata(tmp_path: Path) -> None:
    path = tmp_path / "pool.duckdb"
    pool = Pool.open(path)
    pool.steps.append(
        [
            Step("a0", "a", "p", 0, 1.0, metadata={"run": "one"}),
            Step("b0", "b", "p", 0, 1.0, metadata={"learning_run": "two"}),
            Step("c0", "c", "p", 0, 1.0),
        ],
        completions=[{"trajectory_uid": "c", "metadata": {"run": "three"}}],
    )
    kept = pool.runs.page(order="run").to_pylist(), pool.steps.page(order="step_uid")["run"].to_pylist()
    pool.close()
    # As it was before the migration.
    with duckdb.connect(str(path)) as connection:
        for table in ("steps", "step_state", "trajectory_state"):
            connection.execute(f"ALTER TABLE {table} DROP COLUMN run")
        connection.execute("DELETE FROM schema_migrations WHERE name = '0018_runs.sql'")
    pool = Pool.open(path)
    assert (pool.runs.page(order="run").to_pylist(), pool.steps.page(order="step_uid")["run"].to_pylist()) == kept
    assert [row["run"] for row in kept[0]] == ["one", "three", "two"]
    pool.close()
