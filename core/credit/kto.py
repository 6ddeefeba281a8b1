"""KTO labels: each trajectory is desirable or not by its own reward; no group is compared. (arXiv 2402.01306.)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.credit.base import Estimator, Option
from core.credit.types import Bools, CreditInput, Needs


def needs(settings: Mapping[str, Any]) -> Needs:
    """A score; re-encoded ids are fit for supervised use."""
    return Needs(rewards=True)


def labels(settings: Mapping[str, Any], batch: CreditInput) -> Bools:
    """bool [n], desirable."""
    desirable: Bools = batch.reward >= settings["threshold"]
    return desirable


def select(settings: Mapping[str, Any], batch: CreditInput) -> Bools:
    """bool [n], those outside the undecided band."""
    below = settings["undesirable_below"]
    kept: Bools = labels(settings, batch) | (batch.reward <= (settings["threshold"] if below is None else below))
    return kept


ESTIMATOR = Estimator(
    name="kto",
    title="KTO labels",
    formula="desirable where R ≥ threshold; no advantage",
    needs=needs,
    options={
        "threshold": Option(0.5, "Least reward of a desirable trajectory"),
        "undesirable_below": Option(
            None,
            "Greatest reward of an undesirable one; those between are left out. none: the threshold",
            optional=True,
        ),
    },
    select=select,
    labels=labels,
)
