"""Display of batches in lists: the colour of a state, the name of a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from studio.kit.figures import Tone

STATE_TONE: dict[str, Tone] = {"acked": "good", "leased": "", "released": "muted", "expired": "warn"}


def recipe_name(row: Mapping[str, Any]) -> str:
    """``name v3``, or ``own`` when the recipe came with the fetch."""
    return f"{row['recipe_name']} v{row['recipe_version']}" if row["recipe_name"] else "own"
