"""A verifier that averages several checks on one workspace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from core.rewards.base import Score, Verifier


def averaging(score: Callable[[Path, Mapping[str, Any]], Score]) -> Verifier:
    """Create the verifier ``every``; ``score`` runs one check."""

    def verify(workspace: Path, spec: Mapping[str, Any]) -> Score:
        """Mean of the scores of ``spec["checks"]``; None if any of them is None."""
        parts = [score(workspace, check) for check in spec["checks"]]
        details = {"checks": [{"value": part.value, "error": part.error, **part.details} for part in parts]}
        values = [part.value for part in parts if part.value is not None]
        if len(values) < len(parts):
            return Score(None, details, "; ".join(part.error for part in parts if part.error is not None))
        return Score(sum(values) / len(values) if values else 1.0, details)

    return verify
