"""Plans over trajectories with left-out steps, choices and forks: what a step earns is what followed from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.batch.datasets import freeze_version, version_plan
from core.batch.plan import plan
from core.batch.recipe import parse_recipe
from core.pool import Pool
from core.types import Annotation, Step, View

T0 = 1_700_000_000.0


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    opened = Pool.open(tmp_path / "pool.duckdb", memory="512MB", threads=1, clock=lambda: T0 + 100)
    yield opened
    opened.close()


def step(uid: str, index: int, prompt: list[int], answer: list[int], **fields: Any) -> Step:
    own = {
        "created_at": T0 + index, "token_source": "engine", "prompt_ids": prompt, "response_ids": answer,
        "response_logprobs": [-1.0] * len(answer),
        "metadata": {"value": 0.1 * (index + 1), "anchor": f"s{index}", "reward_baseline": 0.0,
                     "token_values": [0.1] * len(answer)},
    }  # fmt: skip
    owner = uid.split(".", maxsplit=1)[0]
    return Step(uid, owner, "P", index, **{**own, **fields})


def add(pool: Pool, *steps: Step, reward: float | None = None) -> None:
    owner = steps[0].trajectory_uid
    pool.steps.append(list(steps), completions=[{"kind": "complete", "trajectory_uid": owner, "reward": reward}])


def of(pool: Pool, algorithm: str, column: str = "return", **options: Any) -> dict[str, float]:
    made = plan(pool, View(), parse_recipe({"algorithm": algorithm, "options": options}))
    return dict(zip(made.step_uids, made.steps[column].to_pylist(), strict=True))


CHAINED = {
    "reinforce_plus_plus": {},
    "remax": {},
    "turn_discount": {"baseline": "none"},
    "gigpo": {},
}


def earners(pool: Pool) -> None:
    """a earned 1 by its first step and 0 by its second; b is there to compare with."""
    add(
        pool,
        step("a.0", 0, [1], [2], reward=1.0),
        step("a.1", 1, [1, 2, 3], [4], reward=0.0, parent_step_uid="a.0", n_shared_tokens=2, transition="extends"),
    )
    add(pool, step("b.0", 0, [1], [5], reward=0.0))  # fmt: skip


@pytest.mark.parametrize("algorithm", CHAINED)
@pytest.mark.parametrize("how", ["not_trainable", "bad", "outside_the_view", "too_long"])
def test_a_left_out_step_s_reward_stays_with_it(pool, algorithm, how):
    earners(pool)
    view, recipe = View(), {"algorithm": algorithm, "options": CHAINED[algorithm]}
    if how == "outside_the_view":
        view = View(where="step_uid <> 'a.0'")
    elif how == "too_long":
        recipe["max_prompt_tokens"] = 3
        add(pool, step("c.0", 0, [1] * 9, [2], reward=1.0), step("c.1", 1, [1], [3], reward=0.0))
    else:
        kind, value = ("trainable", False) if how == "not_trainable" else ("quality", "bad")
        pool.labels.annotate([Annotation(kind, value, "me", "human", T0, step_uid="a.0")])
    made = plan(pool, view, parse_recipe(recipe))
    returns = dict(zip(made.step_uids, made.steps["return"].to_pylist(), strict=True))
    assert returns["c.1" if how == "too_long" else "a.1"] == 0.0
    assert ("c.0" if how == "too_long" else "a.0") not in returns
    assert returns["b.0"] == 0.0


def test_an_outcome_stays_with_the_end(pool):
    """A reward that was said at completion is no step's: the last step in the plan has it, less what steps earned."""
    add(pool, step("a.0", 0, [1], [2], reward=0.25), step("a.1", 1, [1, 2], [3], call_kind="retry", reward=0.5),
        step("a.2", 2, [1, 2, 3], [4]), reward=1.0)  # fmt: skip
    add(pool, step("b.0", 0, [1], [5]), reward=0.0)
    assert of(pool, "turn_discount", baseline="none") == {"a.0": 0.5, "a.2": 0.25, "b.0": 0.0}


def test_a_frozen_version_says_the_same(pool):
    earners(pool)
    pool.labels.annotate([Annotation("trainable", False, "me", "human", T0, step_uid="a.0")])
    recipe = parse_recipe({"algorithm": "remax"})
    freeze_version(pool, "v", View(), recipe, author="me")
    pool.labels.annotate([Annotation("reward", -3.0, "me", "human", T0, step_uid="a.0")])
    made = version_plan(pool, "v")
    assert dict(zip(made.step_uids, made.steps["return"].to_pylist(), strict=True)) == {"a.1": 0.0, "b.0": 0.0}


FORKED: dict[str, tuple[list[Step], list[int]]] = {
    "two choices of one call": (
        [
            step("a.0", 0, [1], [2]),
            step("a.1", 1, [1], [3], parent_step_uid="a.0", n_shared_tokens=1, transition="forked"),
            step("a.2", 2, [1, 3, 4], [5], parent_step_uid="a.1", n_shared_tokens=2, transition="extends"),
        ],
        [-1, -1, 1],
    ),
    "a fork back to an earlier state": (
        [
            step("a.0", 0, [1], [2]),
            step("a.1", 1, [1, 2, 3], [4], parent_step_uid="a.0", n_shared_tokens=2, transition="extends"),
            step("a.2", 2, [1, 2, 3, 9], [5], parent_step_uid="a.1", n_shared_tokens=3, transition="forked"),
        ],
        [-1, 0, 0],
    ),
    "a fork of a fork": (
        [
            step("a.0", 0, [1], [2]),
            step("a.1", 1, [1, 2, 3], [4], parent_step_uid="a.0", n_shared_tokens=2, transition="extends"),
            step("a.2", 2, [1, 2, 9], [5], parent_step_uid="a.1", n_shared_tokens=2, transition="forked"),
            step("a.3", 3, [1, 2, 9, 7], [6], parent_step_uid="a.2", n_shared_tokens=3, transition="forked"),
        ],
        [-1, 0, 0, 0],
    ),
    "two answers where the client forgets the thinking of the one before": (
        [
            step("a.0", 0, [1], [2, 2, 2, 2]),
            step("a.1", 1, [1, 9, 3], [4], parent_step_uid="a.0", n_shared_tokens=1, transition="realigned"),
            step("a.2", 2, [1, 9, 3], [5], parent_step_uid="a.1", n_shared_tokens=3, transition="forked"),
            step("a.3", 3, [1, 9, 3], [6], parent_step_uid="a.2", n_shared_tokens=3, transition="forked"),
        ],
        [-1, 0, 0, 0],
    ),
    "two answers after a history was made shorter": (
        [
            step("a.0", 0, [1, 2, 3, 4], [5]),
            step("a.1", 1, [8], [6], transition="compacted"),
            step("a.2", 2, [8], [7], parent_step_uid="a.1", n_shared_tokens=1, transition="forked"),
        ],
        [-1, 0, 0],
    ),
    "another answer to the first prompt, after all": (
        [
            step("a.0", 0, [1], [2]),
            step("a.1", 1, [1, 2, 3], [4], parent_step_uid="a.0", n_shared_tokens=2, transition="extends"),
            step("a.2", 2, [1], [6], parent_step_uid="a.0", n_shared_tokens=1, transition="forked"),
        ],
        [-1, 0, -1],
    ),
    "another answer beside one that is left out": (
        [
            step("a.0", 0, [1], [2]),
            step("a.1", 1, [1, 2, 3], [4], parent_step_uid="a.0", n_shared_tokens=2, transition="extends",
                 call_kind="retry"),
            step("a.2", 2, [1, 2, 3], [5], parent_step_uid="a.1", n_shared_tokens=3, transition="forked"),
        ],
        [-1, 0],
    ),
    "a history made shorter goes on": (
        [
            step("a.0", 0, [1], [2]),
            step("a.1", 1, [1, 2, 3], [4], parent_step_uid="a.0", n_shared_tokens=2, transition="extends"),
            step("a.2", 2, [8], [5], transition="compacted"),
        ],
        [-1, 0, 1],
    ),
    "a call between that is left out": (
        [
            step("a.0", 0, [1], [2]),
            step("a.1", 1, [7], [7], call_kind="auxiliary", transition="forked"),
            step("a.2", 2, [1, 2, 3], [5], parent_step_uid="a.0", n_shared_tokens=2, transition="extends"),
        ],
        [-1, 0],
    ),
    "a step that went on from one that is left out": (
        [
            step("a.0", 0, [1], [2]),
            step("a.1", 1, [1, 2, 3], [4], parent_step_uid="a.0", n_shared_tokens=2, transition="extends",
                 call_kind="retry"),
            step("a.2", 2, [1, 2, 3, 4, 6], [5], parent_step_uid="a.1", n_shared_tokens=4, transition="extends"),
        ],
        [-1, 0],
    ),
    "a producer's states, drawn anew at each step": (
        [
            step("a.0", 0, [1, 1], [2], source="whitebox"),
            step("a.1", 1, [1, 5], [4], source="whitebox", parent_step_uid="a.0", n_shared_tokens=1,
                 transition="tail_replaced"),
            step("a.2", 2, [1, 6], [5], source="whitebox", parent_step_uid="a.0", n_shared_tokens=1,
                 transition="forked"),
        ],
        [-1, 0, 1],
    ),
    "a producer's choices of one number": (
        [
            step("a.0", 0, [1], [2], source="whitebox"),
            step("a.1", 1, [1, 2], [4], source="whitebox", parent_step_uid="a.0", n_shared_tokens=2,
                 transition="extends"),
            step("a.2", 1, [1, 2], [5], source="whitebox", parent_step_uid="a.1", n_shared_tokens=2,
                 transition="forked"),
        ],
        [-1, 0, 0],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORKED)
def test_predecessors(pool, name):
    """By the critic: step_gae with γ = λ = 1 and no whitening tells for each step which values follow it."""
    steps, before = FORKED[name]
    add(pool, *steps, reward=1.0)
    kept = [one for one in steps if one.call_kind == "main"]
    values = [one.metadata["value"] for one in kept]
    after = [[j for j, b in enumerate(before) if b == k] for k in range(len(before))]

    def advantage(k: int) -> float:
        ahead = [values[j] for j in after[k]]
        now = (sum(ahead) / len(ahead) if ahead else 1.0) - values[k]
        return now + (0.5 * sum(advantage(j) for j in after[k]) / len(after[k]) if after[k] else 0.0)

    made = plan(pool, View(), parse_recipe({"algorithm": "step_gae", "options": {"whiten": "none", "lam": 0.5}}))
    assert made.step_uids == [one.step_uid for one in kept]
    assert made.steps["advantage"].to_pylist() == pytest.approx([advantage(k) for k in range(len(kept))])
