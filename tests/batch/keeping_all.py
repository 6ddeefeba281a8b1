"""A recipe that keeps every answer: SFT rejects failures by default, and many tests are about all rows of a pool."""

from __future__ import annotations

from typing import Any, Final

SFT_ALL: Final = {"algorithm": "sft", "options": {"min_reward": None}}
"""SFT on all trajectories that are not labelled bad, failures and unscored ones too."""


def keeping_all(algorithm: str) -> dict[str, Any]:
    """Fields of a recipe with this algorithm that keep failures and unscored trajectories too."""
    return SFT_ALL if algorithm == "sft" else {"algorithm": algorithm}
