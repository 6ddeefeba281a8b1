"""DAPO: GRPO on whole groups whose rewards differ; a group of equal rewards has no gradient and is dropped.

The filter is verl's ``filter_groups``: std of the group's scores > 0. Single-trajectory groups are kept for the
singleton rule.
A recipe's ``drop_flat_groups`` applies the same filter to any algorithm. (DAPO, arXiv 2503.14476.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from core.credit import grpo
from core.credit.base import Estimator
from core.credit.types import Bools, CreditInput


def has_spread(batch: CreditInput) -> Bools:
    """Trajectories of groups whose known rewards differ, and of single-trajectory groups: bool [n]."""
    n_groups = len(batch.prompt_uids)
    low, high = np.full(n_groups, np.inf), np.full(n_groups, -np.inf)
    np.fmin.at(low, batch.group, batch.reward)
    np.fmax.at(high, batch.group, batch.reward)
    sizes = np.bincount(batch.group, minlength=n_groups)
    kept: Bools = ((low < high) | (sizes == 1))[batch.group]
    return kept


def select(settings: Mapping[str, Any], batch: CreditInput) -> Bools:
    """bool [n], the trajectories kept."""
    return has_spread(batch)


ESTIMATOR = Estimator(
    name="dapo",
    title="DAPO",
    formula="GRPO without groups of equal rewards",
    needs=grpo.ESTIMATOR.needs,
    options=grpo.ESTIMATOR.options,
    compute=grpo.compute,
    select=select,
    within_group=grpo.within_group,
)
