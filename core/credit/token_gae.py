"""GAE over sampled tokens, chained across the steps of a trajectory; prompt and tool tokens are skipped.

The recursion of ``step_gae`` with one value per sampled token. A step's reward is on its last token; the token
after it is the first of the step's successor (``step_gae``). Whitened over all sampled tokens.
(Agent-R1, StepPO.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from core.credit.base import Estimator, Option
from core.credit.chain import token_flow, token_rewards, whiten_tokens
from core.credit.step_gae import GAMMA, LAMBDA
from core.credit.types import Credit, CreditInput, Needs


def needs(settings: Mapping[str, Any]) -> Needs:
    """A critic value per response token, and all steps of a trajectory."""
    return Needs(rewards=True, exact_tokens=True, fields=("token_values",), contiguous=True, chained=True)


def compute(settings: Mapping[str, Any], batch: CreditInput) -> Credit:
    """Token-level GAE."""
    assert batch.token_value is not None, "checked by needs"
    flow, gamma = token_flow(batch), settings["gamma"]
    delta = token_rewards(batch) + gamma * flow.next(batch.token_value) - batch.token_value
    advantage = flow.discounted(delta, gamma * settings["lam"])
    returns = advantage + batch.token_value
    if settings["whiten"] == "tokens":
        advantage = whiten_tokens(advantage)
    return Credit(np.full(len(batch.step_reward), np.nan), None, token=advantage, token_return=returns)


ESTIMATOR = Estimator(
    name="token_gae",
    title="Token GAE",
    formula="GAE over sampled tokens across steps; whitened over tokens",
    needs=needs,
    options={
        "gamma": GAMMA,
        "lam": LAMBDA,
        "whiten": Option(
            "tokens",
            "tokens: (A − mean) / √(var + 1e-8) over all sampled tokens (verl, default); none",
            choices=("tokens", "none"),
        ),
    },
    compute=compute,
)
