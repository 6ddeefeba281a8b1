"""Turn discount: returns over turns, with a discount factor per turn.

G_k = r_k + d·G_{k+1} (AReaL's ``apply_reward_discount``). AReaL turns returns into advantages by its reward
normalisation. Here ``baseline`` does so: it subtracts the group's mean of G, in which each trajectory counts once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from core.credit.base import EPS, Estimator, Option, always
from core.credit.chain import step_flow, step_rewards
from core.credit.types import Credit, CreditInput, Needs


def needs(settings: Mapping[str, Any]) -> Needs:
    """Two trajectories per group, if the baseline is a group's."""
    least = 1 if settings["baseline"] == "none" else 2
    return Needs(rewards=True, exact_tokens=True, min_group_size=least, chained=True)


def compute(settings: Mapping[str, Any], batch: CreditInput) -> Credit:
    """Discounted returns minus the group's baseline."""
    n, n_groups = len(batch.reward), len(batch.prompt_uids)
    returns = step_flow(batch).discounted(step_rewards(batch), settings["discount"])
    if settings["baseline"] == "none":
        return Credit(step=returns, trajectory=None, step_return=returns)
    owner, group = batch.step_trajectory, batch.group[batch.step_trajectory]
    weight = 1.0 / np.bincount(owner, minlength=n)[owner]
    votes = np.bincount(group, weights=weight, minlength=n_groups)
    mean = np.bincount(group, weights=weight * returns, minlength=n_groups) / np.maximum(votes, 1)
    advantage = returns - mean[group]
    if settings["baseline"] == "group_norm":
        square = np.bincount(group, weights=weight * advantage**2, minlength=n_groups) / np.maximum(votes, 1)
        advantage = advantage / (np.sqrt(square)[group] + EPS)
    return Credit(step=advantage, trajectory=None, step_return=returns)


ESTIMATOR = Estimator(
    name="turn_discount",
    title="Turn discount",
    formula="G_k = r_k + d·G_(k+1); A = G − group mean",
    needs=needs,
    options={
        "discount": Option(1.0, "Discount factor per turn, d (1.0, AReaL)", minimum=0, maximum=1),
        "baseline": Option(
            "group_mean",
            "group_mean: minus the group's mean G (default); group_norm: also divided by its std; none: G (AReaL)",
            choices=("group_mean", "group_norm", "none"),
        ),
    },
    compute=compute,
    within_group=always,
)
