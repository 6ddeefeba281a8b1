"""The interface of verifiers: a function from a workspace and a specification to a score."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.sandbox.readback import read_bytes


@dataclass(frozen=True, slots=True)
class Score:
    """The result of a verifier.

    Attributes:
        value: reward in [0, 1]. A failed attempt (no file, broken JSON) scores 0.0. None means that the *verifier*
            failed; the trajectory then stays unscored.
        details: the reasons for the score. JSON-serialisable.
        error: why the verifier failed, or None.
    """

    value: float | None
    details: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


Verifier = Callable[[Path, Mapping[str, Any]], Score]
"""``verify(workspace, spec) -> Score``, where ``spec`` is a task's check: ``{"verifier": name, ...}``.
It reads the workspace after the agent has stopped, and never writes to it."""


def read_answer(workspace: Path, name: str) -> str | None:
    """Text of a file in the workspace; None if it is missing, not text, outside the workspace or behind a link."""
    try:
        return read_bytes(workspace, name).decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def fraction(n_right: int, n_all: int) -> float:
    """``n_right / n_all``; 1 if ``n_all`` is 0."""
    return n_right / n_all if n_all else 1.0
