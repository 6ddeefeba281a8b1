"""GRPO: the trajectory's score, normalised over its prompt group.

A = (R − mean) / (std + eps). R is the reward of the whole trajectory, so each trajectory counts once, and all its
steps get the same advantage. (DeepSeekMath, arXiv 2402.03300; std with ddof = 1 as in verl; ClawGym II uses ddof = 0.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from core.credit.base import EPS, SINGLETON, Estimator, Option, centred, group_size_needs, with_singletons
from core.credit.types import Credit, CreditInput


def compute(settings: Mapping[str, Any], batch: CreditInput) -> Credit:
    """Group-normalised scores."""
    deviation, sizes = centred(batch)
    if settings["std"] == "none":
        return with_singletons(settings, batch, sizes, deviation)
    square = np.bincount(batch.group, weights=deviation**2, minlength=len(sizes))
    if settings["std"] == "batch":
        # Pooled over all groups' deviations, as in Lite PPO: more stable for small groups.
        spread = np.sqrt(square.sum() / max(int(sizes.sum()) - settings["ddof"], 1))
        return with_singletons(settings, batch, sizes, deviation / (spread + settings["eps"]))
    std = np.sqrt(square / np.maximum(sizes - settings["ddof"], 1))
    return with_singletons(settings, batch, sizes, deviation / (std[batch.group] + settings["eps"]))


def within_group(settings: Mapping[str, Any]) -> bool:
    """Unless the std is that of the batch."""
    return bool(settings["std"] != "batch")


DDOF = Option(
    1,
    "Delta degrees of freedom of the std: 1 (verl, default) or 0 (ClawGym II)",
    minimum=0,
    integer=True,
)
STD = Option(
    "group",
    "Divisor. group: the group's std (verl, default); batch: the std of all deviations; none: 1 (Dr. GRPO)",
    choices=("group", "batch", "none"),
)

ESTIMATOR = Estimator(
    name="grpo",
    title="GRPO",
    formula="A = (R − mean) / (std + eps), per prompt group",
    needs=group_size_needs,
    options={
        "ddof": DDOF,
        "eps": Option(EPS, "Added to the std (1e-6, verl)", minimum=0),
        "std": STD,
        "singleton": SINGLETON,
    },
    compute=compute,
    within_group=within_group,
)
