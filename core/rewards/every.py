"""A verifier that averages several checks on one workspace."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from core.errors import InvalidInput
from core.rewards.base import Score, Unscored
from core.rewards.services import ServedVerifier, Services


def averaging(score: Callable[[Path, Mapping[str, Any], Services], Score]) -> ServedVerifier:
    """Create the verifier ``every``; ``score`` runs one check."""

    def verify(workspace: Path, spec: Mapping[str, Any], services: Services) -> Score:
        """Mean of the scores of ``spec["checks"]``, weighted by ``spec["weights"]``; unscored if any of them is.

        The payload, level of isolation and time limit of ``spec`` apply to checks that have none of their own.
        """
        shared = {name: spec[name] for name in ("payload", "isolation", "timeout_s") if name in spec}
        parts = [score(workspace, {**shared, **check}, services) for check in spec["checks"]]
        weights = spec.get("weights") or [1.0] * len(parts)
        if len(weights) != len(parts) or not all(_is_weight(one) for one in weights) or (parts and not any(weights)):
            raise InvalidInput(
                f"the weights are {weights!r}", field="check.weights", hint="one number for each check, 0 or more"
            )
        details = {
            "checks": [
                {"value": part.value, "outcome": part.outcome, "error": part.error, **part.details} for part in parts
            ]
        }
        failed = next((part for part in parts if part.value is None), None)
        if failed is not None:
            raise Unscored(failed.outcome, "; ".join(str(part.error) for part in parts if part.value is None), details)
        known = [part.value for part in parts if part.value is not None]
        products = [weight * value for weight, value in zip(weights, known, strict=True)]
        environment = next((part.environment for part in parts if part.environment), {})
        return Score(math.fsum(products) / math.fsum(weights) if known else 1.0, details, environment=environment)

    return verify


def _is_weight(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value) and value >= 0
