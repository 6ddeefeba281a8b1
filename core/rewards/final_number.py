"""A verifier for the final number of an answer, as in GSM8K: ``#### 72``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from core.errors import InvalidInput
from core.rewards.base import Score, answer_text

TAIL_CHARS = 300
"""Number of characters at the end that are searched; earlier numbers are intermediate results."""
_STRICT = re.compile(r"#### (-?[0-9.,]+)")
_NUMBER = re.compile(r"-?[0-9.,]+")


def last_number(text: str, *, flexible: bool) -> str | None:
    """The last number after ``####``, or with ``flexible`` the last number anywhere, without thousands separators."""
    numbers = (_NUMBER if flexible else _STRICT).findall(text[-TAIL_CHARS:])
    named = [number for number in numbers if number not in (".", ",", "")]
    return named[-1].replace(",", "") if named else None


def same_number(left: str, right: str) -> bool:
    """Whether two texts are equal as numbers (``72`` and ``72.0``), or as texts if one is not a number."""
    try:
        return Decimal(left) == Decimal(right)
    except InvalidOperation:
        return left == right


def verify(workspace: Path, spec: Mapping[str, Any]) -> Score:
    """1.0 if the answer's number is ``spec["answer"]``, else 0.0.

    The answer is ``spec["text"]``, the file ``spec["path"]`` of the workspace, or the agent's final message. With
    ``spec["flexible"]`` the last number counts, otherwise only one after ``####``.
    """
    if spec.get("answer") is None:
        raise InvalidInput("the correct answer is missing", field="answer")
    wanted = str(spec["answer"]).replace(",", "").strip()
    text = answer_text(workspace, spec)
    if text is None:
        return Score(0.0, {"expected": wanted, "problem": "no such text file"})
    number = last_number(text, flexible=bool(spec.get("flexible", False)))
    right = number is not None and same_number(number.rstrip("."), wanted)
    return Score(float(right), {"expected": wanted, "found": number})
