"""RLOO: the score minus the mean score of the group's other trajectories.

A = (R − mean) · n / (n − 1), which equals R − mean of the others. (Back to Basics, arXiv 2402.14740.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from core.credit.base import SINGLETON, Estimator, always, centred, group_size_needs, with_singletons
from core.credit.types import Credit, CreditInput


def compute(settings: Mapping[str, Any], batch: CreditInput) -> Credit:
    """Leave-one-out centred scores."""
    deviation, sizes = centred(batch)
    factor = sizes / np.maximum(sizes - 1, 1)
    return with_singletons(settings, batch, sizes, deviation * factor[batch.group])


ESTIMATOR = Estimator(
    name="rloo",
    title="RLOO",
    formula="A = R − mean of the others = (R − mean) · n / (n − 1), per prompt group",
    needs=group_size_needs,
    options={"singleton": SINGLETON},
    compute=compute,
    within_group=always,
)
