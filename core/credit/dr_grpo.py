"""Dr. GRPO: GRPO without the division by the standard deviation, which weights prompts by their difficulty.

A = R − mean. (Understanding R1-Zero-like training, arXiv 2503.20783.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.credit.base import SINGLETON, Estimator, always, centred, group_size_needs, with_singletons
from core.credit.types import Credit, CreditInput


def compute(settings: Mapping[str, Any], batch: CreditInput) -> Credit:
    """Group-centred scores."""
    deviation, sizes = centred(batch)
    return with_singletons(settings, batch, sizes, deviation)


ESTIMATOR = Estimator(
    name="dr_grpo",
    title="Dr. GRPO",
    formula="A = R − mean, per prompt group",
    needs=group_size_needs,
    options={"singleton": SINGLETON},
    compute=compute,
    within_group=always,
)
