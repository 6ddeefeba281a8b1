from __future__ import annotations

import numpy as np
import pytest

from core.batch.plan import count_plan, estimate, plan
from core.batch.recipe import parse_recipe
from core.batch.whatif import credit_of, sweep
from core.errors import InvalidInput
from core.types import View
from tests.batch.keeping_all import SFT_ALL

from .conftest import done, rollout


@pytest.fixture
def filled(pool):
    for number, group in enumerate("ABC"):
        steps = [
            step
            for k in range(3)
            for step in rollout(
                f"{group}{k}", group, rewards=[0.25, float(k)], at=10 * number + k, policy_version=number
            )
        ]
        pool.steps.append(steps, completions=done(*(f"{group}{k}" for k in range(3))))
    return pool


def test_a_sweep_is_a_plan_for_each_value(filled):
    recipe = parse_recipe({"algorithm": "grpo", "policy_version": 2})
    outcomes = sweep(filled, View(), recipe, "max_staleness", [0, 1, 2, None])
    assert [(one.value, one.n_groups, one.n_steps) for one in outcomes] == [
        (0, 1, 6),
        (1, 2, 12),
        (2, 3, 18),
        (None, 3, 18),
    ]
    (wrong,) = sweep(filled, View(), recipe, "n_rollouts", [1])
    assert "at least 2" in wrong.error
    with pytest.raises(InvalidInput, match="no field 'size'"):
        sweep(filled, View(), recipe, "size", [1])


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"batch_size": 2, "order": "newest"},
        {"n_rollouts": 2, "balance": "spread"},
        {"max_staleness": 1, "policy_version": 2},
        {**SFT_ALL, "max_response_tokens": 1},
        {"algorithm": "dpo", "require_complete": False},
        {"algorithm": "step_gae"},
        {"loss": "last_step", "drop_flat_groups": True},
        {"rewards": ["human"]},
        {"token_budget": 5},
    ],
)
def test_counting_a_plan_is_the_plans_counts(filled, fields):
    recipe = parse_recipe(fields)
    for view in (View(), View({"prompt_uid": "B"}), View({"prompt_uid": "nobody"})):
        assert count_plan(filled, view, recipe) == plan(filled, view, recipe).counts


def test_credit_side_by_side_is_each_plans_own(filled):
    recipe = parse_recipe({"algorithm": "turn_discount", "options": {"discount": 0.5}, "batch_size": 1})
    names = ["grpo", "turn_discount", "reinforce_plus_plus", "step_gae", "sft"]
    credits = {one.algorithm: one for one in credit_of(filled, View(), recipe, names, "B2")}
    for name, options in (("grpo", {}), ("turn_discount", {"discount": 0.5})):
        made = plan(filled, View(), parse_recipe({"algorithm": name, "options": options}))
        rows = [row for row in made.steps.to_pylist() if row["trajectory_uid"] == "B2"]
        assert credits[name].steps.tolist() == [row["advantage"] for row in rows]
        assert credits[name].tokens.tolist() == pytest.approx([row["advantage"] for row in rows for _ in range(2)])
    assert credits["grpo"].level == "trajectory" and credits["turn_discount"].level == "step"
    assert len(credits["reinforce_plus_plus"].tokens) == 4
    assert "value" in credits["step_gae"].error
    assert np.isnan(credits["sft"].steps).all()


@pytest.mark.parametrize("fields", [{}, {"algorithm": "turn_discount"}, {"algorithm": "sft"}, {"algorithm": "dpo"}])
def test_an_estimate_is_the_plans_and_reads_no_facts(filled, fields, monkeypatch):
    recipe = parse_recipe(fields)
    made = plan(filled, View(), recipe)
    monkeypatch.setattr(filled.training, "facts_hashes", None)
    plain = estimate(filled, View(), recipe)
    assert plain.trajectory_uids.to_pylist() == made.trajectories["trajectory_uid"].to_pylist()
    assert list(plain.batch.step_uids) == made.steps["step_uid"].to_pylist()
    assert (plain.lacks, plain.excluded) == (made.lacks, made.excluded)
    advantages = made.steps["advantage"].to_pylist()
    assert advantages == ([None] * len(made.steps) if plain.credit is None else plain.credit.step.tolist())
