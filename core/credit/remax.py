"""ReMax: the return minus the reward of a greedy rollout of the same prompt.

A_k = Σ_{j ≥ k} r_j − b. (arXiv 2310.10505; verl, where rewards are on a step's last token, so that all tokens of a step
have the same value.) b is ``metadata.reward_baseline``, or the mean reward of the group's greedy rollouts. Greedy
rollouts are not trained on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.credit.base import Estimator, Option, always
from core.credit.chain import step_flow, step_rewards
from core.credit.types import Credit, CreditInput, Needs


def needs(settings: Mapping[str, Any]) -> Needs:
    """A greedy baseline per trajectory."""
    return Needs(rewards=True, exact_tokens=True, fields=("baseline",), chained=settings["returns"] == "to_go")


def compute(settings: Mapping[str, Any], batch: CreditInput) -> Credit:
    """Returns minus the greedy baseline."""
    assert batch.baseline is not None, "checked by needs"
    if settings["returns"] == "total":
        total = batch.reward - batch.baseline
        return Credit(step=total[batch.step_trajectory], trajectory=total)
    to_go = step_flow(batch).discounted(step_rewards(batch), 1.0)
    return Credit(step=to_go - batch.baseline[batch.step_trajectory], trajectory=None, step_return=to_go)


ESTIMATOR = Estimator(
    name="remax",
    title="ReMax",
    formula="A_k = Σ_(j ≥ k) r_j − reward of a greedy rollout",
    needs=needs,
    options={
        "returns": Option(
            "to_go",
            "What the baseline is subtracted from. to_go: rewards from this step on (verl, default); total: R",
            choices=("to_go", "total"),
        )
    },
    compute=compute,
    within_group=always,
)
