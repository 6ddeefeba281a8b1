"""Verifiers: one per file, registered by name in ``REGISTRY``.

score(workspace, {"verifier": "json_equals", "path": "config.json", "expected": {...}}).value  # 0 .. 1
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.errors import InvalidInput
from core.rewards import code_check, csv_sum, every, file_contains, final_number, json_equals, lines_equal
from core.rewards.base import Score, Verifier
from core.sandbox import IsolationMissing

TEXT_VERIFIERS: frozenset[str] = frozenset({"final_number"})
"""Verifiers that read only ``check["text"]`` and open no file."""

__all__ = ["REGISTRY", "TEXT_VERIFIERS", "Score", "Verifier", "score"]


def score(workspace: Path, check: Mapping[str, Any]) -> Score:
    """Run the verifier named by ``check["verifier"]``.

    If the verifier raises an exception, the score is None and ``error`` has the reason.

    Raises:
        InvalidInput: the verifier is unknown.
        IsolationMissing: the check demands a level of isolation that this machine does not have.
    """
    name = check.get("verifier")
    if name not in REGISTRY:
        raise InvalidInput(
            f"no verifier {name!r}", field="check.verifier", hint=f"one of {', '.join(sorted(REGISTRY))}"
        )
    try:
        return REGISTRY[name](workspace, check)
    except (InvalidInput, IsolationMissing):
        raise
    except Exception as error:  # verifiers are extensible: their failures are recorded, not raised
        return Score(None, error=f"{type(error).__name__}: {error}")


REGISTRY: dict[str, Verifier] = {
    "code_check": code_check.verify,
    "csv_sum": csv_sum.verify,
    "every": every.averaging(score),
    "file_contains": file_contains.verify,
    "final_number": final_number.verify,
    "json_equals": json_equals.verify,
    "lines_equal": lines_equal.verify,
}
