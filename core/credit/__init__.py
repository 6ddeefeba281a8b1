"""Credit assignment: one advantage estimator per file, registered by name in a dict."""

from __future__ import annotations

from core.credit import (
    dapo,
    distill,
    dpo,
    dr_grpo,
    gigpo,
    grpo,
    kto,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    remax,
    rloo,
    sft,
    step_gae,
    token_gae,
    turn_discount,
)
from core.credit.base import Estimator, Option
from core.credit.fields import FIELDS
from core.credit.types import Credit, CreditInput, Needs, Pairs
from core.errors import InvalidInput

REGISTRY: dict[str, Estimator] = {
    module.ESTIMATOR.name: module.ESTIMATOR
    for module in (
        grpo,
        dr_grpo,
        rloo,
        dapo,
        reinforce_plus_plus,
        reinforce_plus_plus_baseline,
        remax,
        step_gae,
        token_gae,
        gigpo,
        turn_discount,
        sft,
        dpo,
        kto,
        distill,
    )
}

__all__ = ["FIELDS", "REGISTRY", "Credit", "CreditInput", "Estimator", "Needs", "Option", "Pairs", "get"]


def get(name: str) -> Estimator:
    """The estimator with this name. Raises InvalidInput, which lists the names, if there is none."""
    if name not in REGISTRY:
        raise InvalidInput(f"no algorithm {name!r}", field="algorithm", hint=f"one of {', '.join(REGISTRY)}")
    return REGISTRY[name]
