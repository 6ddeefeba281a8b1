"""Credit of one trajectory, planned with its own group where that suffices, against the whole plans."""

from __future__ import annotations

import random

import numpy as np
import pytest

from core.batch import whatif
from core.batch.plan import estimate, plan
from core.batch.recipe import parse_recipe
from core.batch.whatif import credit_of
from core.credit import REGISTRY
from core.types import View

from .conftest import done, rollout

ABLE = [name for name, one in REGISTRY.items() if one.compute is not None]
RECIPES = [
    {},
    {"n_rollouts": 3, "balance": "spread", "order": "variance"},
    {"max_staleness": 1, "batch_size": 1},
    {"drop_flat_groups": True, "rewards": ["complete"]},
    {"algorithm": "grpo", "options": {"std": "batch"}, "require_complete": False},
]


@pytest.fixture
def varied(pool):
    """Groups of different sizes; most steps have all that any estimator needs, two trajectories lack some of it."""
    chance = random.Random(11)
    for number, (group, size) in enumerate((("A", 4), ("B", 3), ("C", 1), ("D", 5), ("E", 2))):
        for k in range(size):
            uid = f"{group}{k}"

            def metadata(step: int, uid: str = uid) -> dict:
                if (uid, step) == ("D1", 1):
                    return {}
                tokens = [chance.random() for _ in range(2)]
                values = {"value": chance.random(), "token_values": tokens, "teacher_logprobs": tokens}
                return {**values, "anchor": f"room {chance.randrange(2)}", "reward_baseline": chance.random()}

            steps = rollout(
                uid,
                group,
                rewards=[chance.choice((None, chance.random())) for _ in range(chance.randint(1, 4))],
                at=10 * number + k,
                policy_version=chance.choice((1, 2)),
                metadata=metadata,
            )
            ended = [] if uid == "A3" else done(uid, reward=chance.choice((0.0, 1.0, chance.random())))
            pool.steps.append(steps, completions=ended)
    return pool


@pytest.mark.parametrize("fields", RECIPES)
@pytest.mark.parametrize("view", [View(), View({"prompt_uid": ["A", "D"]}, "policy_version > 1")])
def test_each_is_the_credit_of_its_whole_plan(varied, fields, view):
    recipe = parse_recipe({"policy_version": 2, **fields})
    whole = {}
    for name in ABLE:
        options = recipe.options if name == recipe.algorithm else {}
        wanted = {**recipe.to_json(), "algorithm": name, "options": options, "batch_size": None}
        whole[name] = plan(varied, view, parse_recipe(wanted)).steps.to_pylist()
    n_assigned = 0
    for uid in ("A0", "C0", "D0", "D1"):
        for one in credit_of(varied, view, recipe, ABLE, uid):
            rows = [row for row in whole[one.algorithm] if row["trajectory_uid"] == uid]
            assert (one.error is None) == bool(rows), (one.algorithm, uid)
            if not rows:
                continue
            n_assigned += 1
            tokens = [row.get("token_advantages") or [row["advantage"]] * row["n_response_tokens"] for row in rows]
            # Equal to the last bit: what is seen is what is trained.
            assert one.tokens.tolist() == np.concatenate(tokens).astype(np.float32).tolist(), (one.algorithm, uid)
    assert n_assigned > 10


def test_only_estimators_across_groups_plan_the_whole_view(varied, monkeypatch):
    planned = []
    monkeypatch.setattr(
        whatif,
        "estimate",
        lambda pool, view, recipe: planned.append((recipe.algorithm, view)) or estimate(pool, view, recipe),
    )
    credit_of(varied, View(), parse_recipe({}), ["grpo", "gigpo", "reinforce_plus_plus", "step_gae"], "D0")
    assert [name for name, view in planned if view == View()] == ["reinforce_plus_plus", "step_gae"]
    planned.clear()
    # It lacks a value, which its own group tells.
    (one,) = credit_of(varied, View(), parse_recipe({}), ["step_gae"], "D1")
    assert "step D1.1 of trajectory D1" in one.error
    assert [view for _, view in planned] == [View({"prompt_uid": "D"})]
