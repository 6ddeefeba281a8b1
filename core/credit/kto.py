"""KTO labels: each trajectory is desirable or undesirable by its reward, without groups. (arXiv 2402.01306.)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.credit.base import Estimator, Option
from core.credit.types import Bools, CreditInput, Needs


def needs(settings: Mapping[str, Any]) -> Needs:
    """A score; ids need not be the sampled ones."""
    return Needs(rewards=True)


def labels(settings: Mapping[str, Any], batch: CreditInput) -> Bools:
    """bool [n], the desirable trajectories."""
    desirable: Bools = batch.reward >= settings["threshold"]
    return desirable


def select(settings: Mapping[str, Any], batch: CreditInput) -> Bools:
    """bool [n], trajectories that are either desirable or undesirable."""
    below = settings["undesirable_below"]
    kept: Bools = labels(settings, batch) | (batch.reward <= (settings["threshold"] if below is None else below))
    return kept


ESTIMATOR = Estimator(
    name="kto",
    title="KTO labels",
    formula="desirable if R ≥ threshold; no advantage",
    needs=needs,
    options={
        "threshold": Option(0.5, "Minimum reward of a desirable trajectory"),
        "undesirable_below": Option(
            None,
            "Maximum reward of an undesirable trajectory; those in between are left out. none: the threshold",
            optional=True,
        ),
    },
    select=select,
    labels=labels,
)
