"""REINFORCE++: discounted returns of every sampled token, whitened over all sampled tokens.

G_t = r_t + γ·G_{t+1}; A = (G − mean) / √(var + 1e-8) over the tokens of the batch. (arXiv 2501.03262; verl.)
Rewards are on the last token of their step. verl restarts the return at every masked-out token and StepPO at every
step; ``chain`` selects this, or one return per trajectory. With γ = 1 all tokens of a step have the same value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from core.credit.base import Estimator, Option
from core.credit.chain import UnitChain, step_flow, step_rewards, token_flow, token_rewards, whiten_tokens
from core.credit.types import Credit, CreditInput, Needs


def needs(settings: Mapping[str, Any]) -> Needs:
    """Rewards and exact ids; groups are not compared."""
    return Needs(rewards=True, exact_tokens=True, chained=True)


def compute(settings: Mapping[str, Any], batch: CreditInput) -> Credit:
    """Whitened discounted returns."""
    gamma, n_tokens = settings["gamma"], batch.n_tokens
    if gamma == 1.0:
        returns = step_rewards(batch)
        if settings["chain"] == "trajectory":
            returns = step_flow(batch).discounted(returns, 1.0)
        return Credit(step=whiten_tokens(returns, n_tokens), trajectory=None, step_return=returns)
    across = settings["chain"] == "trajectory"
    flow = token_flow(batch) if across else UnitChain(np.cumsum(n_tokens) - n_tokens, n_tokens)
    token_return = flow.discounted(token_rewards(batch), gamma)
    token = whiten_tokens(token_return)
    return Credit(np.full(len(n_tokens), np.nan), None, token=token, token_return=token_return)


CHAIN = Option(
    "trajectory",
    "Extent of a return. trajectory: includes rewards of later steps (default); step: within each step (verl, StepPO)",
    choices=("trajectory", "step"),
)

ESTIMATOR = Estimator(
    name="reinforce_plus_plus",
    title="REINFORCE++",
    formula="G_t = r_t + γ·G_(t+1); A = whitened G over all sampled tokens",
    needs=needs,
    options={
        "gamma": Option(1.0, "Discount per sampled token (1.0, verl)", minimum=0, maximum=1),
        "chain": CHAIN,
    },
    compute=compute,
)
