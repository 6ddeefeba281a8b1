"""GAE over steps: a step is one action, its critic value that of the state before its first response token.

δ_k = r_k + γ·V_{k+1} − V_k, A_k = δ_k + γλ·A_{k+1}, V after the last step is 0; return = A + V before whitening. A is
whitened over all steps and applies to all response tokens of its step. (Agent-R1, StepPO; GAE, arXiv 1506.02438.)
Step k+1 is the successor of step k. Choices of one call and forks have the same predecessor, not each other;
if a step has several successors, V_{k+1} and A_{k+1} are their means.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.credit.base import Estimator, Option
from core.credit.chain import step_flow, step_rewards, whiten_steps
from core.credit.types import Credit, CreditInput, Needs

GAMMA = Option(1.0, "Discount (1.0, verl and ClawGym II; Agent-R1's scripts use 0.99)", minimum=0, maximum=1)
LAMBDA = Option(1.0, "λ of GAE (1.0, verl and ClawGym II)", minimum=0, maximum=1)


def needs(settings: Mapping[str, Any]) -> Needs:
    """A critic value per step, and all steps of a trajectory."""
    return Needs(rewards=True, exact_tokens=True, fields=("value",), contiguous=True, chained=True)


def compute(settings: Mapping[str, Any], batch: CreditInput) -> Credit:
    """Step-level GAE."""
    assert batch.value is not None, "checked by needs"
    flow, gamma = step_flow(batch), settings["gamma"]
    delta = step_rewards(batch) + gamma * flow.next(batch.value) - batch.value
    advantage = flow.discounted(delta, gamma * settings["lam"])
    returns = advantage + batch.value
    if settings["whiten"] == "steps":
        advantage = whiten_steps(advantage)
    return Credit(step=advantage, trajectory=None, step_return=returns)


ESTIMATOR = Estimator(
    name="step_gae",
    title="Step GAE",
    formula="δ_k = r_k + γ·V_(k+1) − V_k; A_k = δ_k + γλ·A_(k+1); whitened over steps",
    needs=needs,
    options={
        "gamma": GAMMA,
        "lam": LAMBDA,
        "whiten": Option(
            "steps",
            "steps: (A − mean) / (std + 1e-8) over all steps (Agent-R1, StepPO, default); none",
            choices=("steps", "none"),
        ),
    },
    compute=compute,
)
