"""Supervised fine-tuning: selects trajectories by reward, without advantages.

Rejection sampling: trajectories with a reward below ``min_reward`` are failures, and no examples to imitate. With
``min_reward`` none, all that are not labelled bad are kept, scored or not. ``best_of`` keeps the k best of each group
(ties: first in the plan's order).
An answer that a person edited takes the place of the captured one (``core.batch.edits``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from core.credit.base import EDITS, Estimator, Option
from core.credit.types import Bools, CreditInput, Needs

DEFAULT_MIN_REWARD = 0.5
"""The least reward of a success: the groups' success rate counts rewards above it."""


def needs(settings: Mapping[str, Any]) -> Needs:
    """Rewards if an option selects by them; ids need not be the sampled ones."""
    selects = settings["min_reward"] is not None or settings["best_of"] is not None
    return Needs(rewards=selects)


def select(settings: Mapping[str, Any], batch: CreditInput) -> Bools:
    """bool [n], the trajectories kept."""
    kept = np.ones(len(batch.reward), dtype=np.bool_)
    if settings["min_reward"] is not None:
        kept = batch.reward >= settings["min_reward"]
    if settings["best_of"] is not None:
        chosen = np.flatnonzero(kept)
        order = chosen[np.lexsort((chosen, -batch.reward[chosen], batch.group[chosen]))]
        group = batch.group[order]
        first = np.searchsorted(group, group)
        best = order[np.arange(len(order)) - first < settings["best_of"]]
        kept = np.zeros(len(batch.reward), dtype=np.bool_)
        kept[best] = True
    return kept


ESTIMATOR = Estimator(
    name="sft",
    title="SFT (rejection sampling)",
    formula="keep R ≥ min_reward, then the best_of best per prompt group; no advantage",
    needs=needs,
    options={
        "min_reward": Option(
            DEFAULT_MIN_REWARD,
            "Minimum reward; none: keep all, failures and unscored trajectories too",
            optional=True,
        ),
        "best_of": Option(None, "Most trajectories kept per prompt group", optional=True, minimum=1, integer=True),
        "edits": EDITS,
    },
    select=select,
)
