"""The interface of verifiers: a function from a workspace and a specification to a score."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from core.errors import InvalidInput
from core.sandbox.readback import read_bytes

Outcome = Literal["scored", "timed_out", "crashed", "no_number", "not_finite", "refused", "missing"]
OUTCOMES: dict[Outcome, str] = {
    "scored": "the verifier gave a reward",
    "timed_out": "the verifier did not end in time",
    "crashed": "the verifier ended with an error",
    "no_number": "the verifier ended without a number, or with one that is no reward",
    "not_finite": "the verifier gave NaN or an infinite number",
    "refused": "the verifier could not be run: a limit, a missing program or image, a spent budget",
    "missing": "what the verifier reads or writes is not there",
}
"""Outcome of a verification -> what it means. Only ``scored`` has a value."""


@dataclass(frozen=True, slots=True)
class Score:
    """The result of a verifier.

    Attributes:
        value: reward, usually in [0, 1]. A failed attempt (no file, broken JSON) scores 0.0. None means that the
            *verifier* failed; the trajectory then stays unscored.
        details: the reasons for the score. JSON-serialisable.
        error: why the verifier failed, or None.
        outcome: a key of ``OUTCOMES``; ``scored`` if and only if there is a value.
        environment: of verifiers that run programs: ``python``, ``packages``, ``isolation``; else empty.

    Raises:
        ValueError: value and outcome contradict each other.
    """

    value: float | None
    details: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    outcome: Outcome = "scored"
    environment: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.value is not None) != (self.outcome == "scored"):
            raise ValueError(f"a score of {self.value} with the outcome {self.outcome}")

    def as_dict(self) -> dict[str, Any]:
        """All fields as JSON values."""
        return {
            "value": self.value,
            "outcome": self.outcome,
            "error": self.error,
            "details": dict(self.details),
            "environment": dict(self.environment),
        }


class Unscored(Exception):
    """Raised by verifiers that could not give a score; ``core.rewards.score`` turns it into a ``Score``."""

    def __init__(self, outcome: Outcome, error: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(error)
        self.outcome = outcome
        self.details = dict(details or {})
        self.environment: Mapping[str, Any] = {}

    @property
    def score(self) -> Score:
        """The score without a value."""
        return Score(None, self.details, str(self), self.outcome, self.environment)


Verifier = Callable[[Path, Mapping[str, Any]], Score]
"""``verify(workspace, spec) -> Score``, where ``spec`` is a task's check: ``{"verifier": name, ...}``.
It reads the workspace after the agent has stopped, and never writes to it. ``spec["payload"]`` holds what is known of
the attempt besides its workspace: ``final_message``, ``transcript`` (chat messages), ``metadata``."""


def read_answer(workspace: Path, name: str) -> str | None:
    """Text of a file in the workspace; None if it is missing, not text, outside the workspace or behind a link."""
    try:
        return read_bytes(workspace, name).decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def answer_text(workspace: Path, spec: Mapping[str, Any]) -> str | None:
    """The text that a verifier of answers reads; None if ``spec["path"]`` names a file that is not there.

    It is ``spec["text"]``, the file ``spec["path"]`` of the workspace, or the agent's final message.

    Raises:
        Unscored: there is neither a text nor a path nor a final message.
    """
    if spec.get("text") is not None:
        return str(spec["text"])
    if spec.get("path") is not None:
        return read_answer(workspace, spec["path"])
    message = (spec.get("payload") or {}).get("final_message")
    if message is None:
        raise Unscored("missing", "there is no final message to verify, and no path names a file")
    return str(message)


def required(spec: Mapping[str, Any], name: str, kind: type | tuple[type, ...], hint: str) -> Any:
    """A field of the specification.

    Raises:
        InvalidInput: it is missing or of another type.
    """
    value = spec.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        problem = "missing" if value is None else f"of type {type(value).__name__}"
        raise InvalidInput(f"check.{name} is {problem}", field=f"check.{name}", hint=hint)
    return value


def seconds(spec: Mapping[str, Any], default: float) -> float:
    """``spec["timeout_s"]``, or the default.

    Raises:
        InvalidInput: it is no finite number above 0.
    """
    value = spec.get("timeout_s", default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
        raise InvalidInput(f"the time limit is {value!r}", field="check.timeout_s", hint="seconds, more than 0")
    return float(value)


def fraction(n_right: int, n_all: int) -> float:
    """``n_right / n_all``; 1 if ``n_all`` is 0."""
    return n_right / n_all if n_all else 1.0


def as_reward(value: Any, what: str, details: Mapping[str, Any] | None = None, *, bounded: bool = True) -> float:
    """A verifier's number as a reward.

    Args:
        value: a number, or a text that is one.
        what: where it comes from, for the error.
        details: kept with the error.
        bounded: it must be in [0, 1].

    Raises:
        Unscored: it is no number, not finite, or outside of [0, 1].
    """
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise Unscored("no_number", f"{what} is no number: {str(value)[:200]!r}", details) from None
    if not math.isfinite(number):
        raise Unscored("not_finite", f"{what} is {number}", details)
    if bounded and not 0.0 <= number <= 1.0:
        raise Unscored("no_number", f"{what} is {number:g}, and not in [0, 1]", details)
    return number


def mean_of(values: Any, what: str) -> tuple[float, dict[str, float]]:
    """Mean of an object of numbers (true and false count as 1 and 0), and the numbers by name.

    Raises:
        Unscored: it is no object with values, or a value is no finite number.
    """
    if not isinstance(values, Mapping) or not values:
        raise Unscored("no_number", f"{what} is no JSON object with values")
    numbers: dict[str, float] = {}
    for name, value in values.items():
        if not isinstance(value, int | float):
            raise Unscored("no_number", f"{what}: the value {str(name)!r} is no number", {"values": dict(values)})
        numbers[str(name)] = float(value)
    if not all(map(math.isfinite, numbers.values())):
        raise Unscored("not_finite", f"{what}: a value is not a finite number", {"values": _printable(numbers)})
    return math.fsum(numbers.values()) / len(numbers), numbers


def _printable(numbers: Mapping[str, float]) -> dict[str, Any]:
    """Numbers as JSON values; those that JSON does not have as text."""
    return {name: value if math.isfinite(value) else str(value) for name, value in numbers.items()}
