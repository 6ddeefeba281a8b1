"""What a recipe chooses among ready groups, and step-level credit through a real pool."""

from __future__ import annotations

import pytest

from core.batch.plan import plan
from core.batch.recipe import parse_recipe
from core.errors import InvalidInput
from core.pool import Pool
from core.types import View

from .conftest import done, rollout

GROUPS = {"easy": [1.0, 1.0, 0.75], "hard": [0.0, 0.0, 0.25], "mixed": [1.0, 0.0, 0.5], "flat": [0.5, 0.5, 0.5]}


@pytest.fixture
def graded(pool: Pool) -> Pool:
    """Four groups of three, in the order of GROUPS; trajectory ``easy-0`` has reward ``GROUPS["easy"][0]``."""
    for at, (name, rewards) in enumerate(GROUPS.items()):
        for k, reward in enumerate(rewards):
            uid = f"{name}-{k}"
            steps = rollout(uid, name, rewards=[None, None], at=100.0 * at + k, first_prompt=(1, 2, at))
            pool.steps.append(steps, completions=done(uid, reward=reward))
    return pool


def chosen(pool: Pool, **recipe: object) -> dict[str, list[str]]:
    made = plan(pool, View(), parse_recipe(recipe))
    return {g["prompt_uid"]: [t["trajectory_uid"] for t in g["trajectories"]] for g in made.to_json()["groups"]}


def spread(name: str) -> float:
    mean = sum(GROUPS[name]) / 3
    return sum((r - mean) ** 2 for r in GROUPS[name])


@pytest.mark.parametrize(
    ("order", "key"),
    [
        ("fifo", lambda name: list(GROUPS).index(name)),
        ("newest", lambda name: -list(GROUPS).index(name)),
        ("difficulty", lambda name: abs(sum(GROUPS[name]) / 3 - 0.9)),
        ("variance", lambda name: -spread(name)),
    ],
)
def test_orders(graded: Pool, order: str, key) -> None:
    expected = sorted(GROUPS, key=key)
    assert list(chosen(graded, order=order, difficulty_target=0.9)) == expected
    first = chosen(graded, order=order, difficulty_target=0.9, batch_size=1)
    assert list(first) == expected[:1]
    assert len(first[expected[0]]) == 3


def test_too_many_rollouts_leave_the_first_or_the_spread(graded: Pool) -> None:
    assert chosen(graded, n_rollouts=2)["mixed"] == ["mixed-0", "mixed-1"]
    by_spread = chosen(graded, n_rollouts=2, balance="spread")
    assert sorted(by_spread["mixed"]) == ["mixed-0", "mixed-1"], "the best and the worst"
    assert "easy-2" in by_spread["easy"], "the worst of easy is its last"


def test_partial_groups_by_rule(graded: Pool) -> None:
    graded.steps.append(rollout("few-0", "few", at=900), completions=done("few-0", reward=1.0))
    graded.steps.append(rollout("few-1", "few", at=901), completions=done("few-1", reward=0.0))
    assert "few" not in chosen(graded, n_rollouts=3)
    assert chosen(graded, n_rollouts=3, min_rollouts=2)["few"] == ["few-0", "few-1"]
    with pytest.raises(InvalidInput, match="at most n_rollouts"):
        parse_recipe({"min_rollouts": 3, "n_rollouts": 2})


def test_flat_groups_and_long_steps_leave_with_their_reason(graded: Pool) -> None:
    assert "flat" in chosen(graded)
    made = plan(graded, View(), parse_recipe({"drop_flat_groups": True}))
    assert {e.reason: e.n_groups for e in made.excluded} == {"no_spread": 1}
    # Second prompts hold 3 + 2 + 1 tokens, responses 2.
    made = plan(graded, View(), parse_recipe({"max_prompt_tokens": 5}))
    assert {e.reason: e.n_steps for e in made.excluded} == {"prompt_too_long": 12}
    made = plan(graded, View(), parse_recipe({"max_response_tokens": 1}))
    assert {e.reason: e.n_steps for e in made.excluded} == {"response_too_long": 24}


def test_step_gae_through_a_pool_gives_the_check_numbers(pool: Pool) -> None:
    """Agent-R1's recursion on two trajectories, values sent as metadata; numbers worked out by hand."""
    for uid, rewards, values in (("a", [0.0, 0.0, 1.0], [0.2, 0.4, 0.6]), ("b", [0.0, 0.0], [0.1, 0.3])):
        steps = rollout(uid, "g", rewards=rewards, metadata=lambda k, v=values: {"value": v[k]})
        pool.steps.append(steps, completions=done(uid))
    recipe = {"algorithm": "step_gae", "options": {"gamma": 1.0, "lam": 0.95}}
    made = plan(pool, View(), parse_recipe(recipe))
    advantages = dict(zip(made.steps["step_uid"].to_pylist(), made.steps["advantage"].to_pylist(), strict=True))
    expected = {"a.0": 1.080528, "a.1": 0.697028, "a.2": 0.293344, "b.0": -0.794361, "b.1": -1.276539}
    assert advantages == pytest.approx(expected, abs=1e-5)


def test_what_a_step_lacks_is_named(pool: Pool) -> None:
    pool.steps.append(rollout("a", "g", metadata=lambda k: {"value": 0.5} if k else {}), completions=done("a"))
    made = plan(pool, View(), parse_recipe({"algorithm": "step_gae"}))
    assert {e.reason: e.n_trajectories for e in made.excluded} == {"lacks_field": 1}
    assert any("a.0" in message and "metadata.value" in message for message in made.lacks)
