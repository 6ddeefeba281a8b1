"""Credit assignment: one estimator per file behind a plain dict."""

from __future__ import annotations

from core.credit import dr_grpo, grpo, rloo, sft
from core.credit.base import Credit, CreditInput, Estimator, Needs, Option
from core.errors import InvalidInput

REGISTRY: dict[str, Estimator] = {module.ESTIMATOR.name: module.ESTIMATOR for module in (grpo, dr_grpo, rloo, sft)}

__all__ = ["REGISTRY", "Credit", "CreditInput", "Estimator", "Needs", "Option", "get"]


def get(name: str) -> Estimator:
    """The estimator of that name, or InvalidInput that lists the names."""
    if name not in REGISTRY:
        raise InvalidInput(f"no algorithm {name!r}", field="algorithm", hint=f"one of {', '.join(REGISTRY)}")
    return REGISTRY[name]
