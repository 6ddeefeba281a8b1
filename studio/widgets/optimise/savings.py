"""Tokens saved by sharing prefixes, by prompt group, by step index, or by agent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.compute as pc

from core.batch.plan import Plan
from core.pool.query.reads import MAX_VALUES
from core.types import View
from studio import state
from studio.widgets.plans.current_plan import cached_answer


def savings(plan: Plan, by: str) -> list[dict[str, Any]]:
    """One row per group, step index or agent: ``name, trajectories, steps, tokens, packed, ratio, saved``.

    Sums equal those of the plan's layout: a step counts the tokens that it adds to its row.
    """
    if by == "group":  # in plan order, as the chart has them
        names, number = np.array(group_names(plan)), plan.steps["group"].to_numpy()
    elif by == "step":
        names, number = np.unique(plan.steps["step_index"].to_numpy(), return_inverse=True)
    else:
        names, number = cached_answer("agents", plan.view, plan.recipe, None, lambda: _agents(plan))
    n = len(names)
    tokens = np.bincount(number, plan.lengths, minlength=n).astype(np.int64).tolist()
    packed = np.bincount(number, plan.layout.step_packed, minlength=n).astype(np.int64).tolist()
    steps = np.bincount(number, minlength=n).tolist()
    pairs = np.unique(plan.steps["trajectory"].to_numpy().astype(np.int64) * n + number)
    trajectories = np.bincount(pairs % n, minlength=n).tolist()
    return [
        {
            "name": name,
            "trajectories": trajectories[i],
            "steps": steps[i],
            "tokens": tokens[i],
            "packed": packed[i],
            "ratio": packed[i] / tokens[i] if tokens[i] else None,
            "saved": tokens[i] - packed[i],
        }
        for i, name in enumerate(names.tolist())
    ]


def group_names(plan: Plan) -> list[str]:
    """The plan's prompt groups in plan order."""
    return list(dict.fromkeys(plan.trajectories["prompt_uid"].to_pylist()))


def _agents(plan: Plan) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Agent names, and each plan step's index into them; queried by agent, since reading all rows takes seconds."""
    pool, channel = state.service().pool, plan.recipe.channel
    uids = plan.steps["step_uid"]
    counted = pool.stats.facets(View({"channel": channel}), ["agent"])["agent"]
    known = sorted(str(agent) for agent, _ in counted if agent is not None)
    number = np.full(len(uids), len(known))
    for place, agent in enumerate(known):
        step_uids = pool.training.plan_rows(View({"agent": agent}), channel=channel)["step_uid"]
        number[pc.is_in(uids, value_set=step_uids.combine_chunks()).to_numpy(zero_copy_only=False)] = place
    used, number = np.unique(number, return_inverse=True)
    rest = "unknown" if len(counted) < MAX_VALUES else "others, and unknown"
    return np.array([*known, rest])[used], number
