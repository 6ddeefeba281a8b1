"""A verifier for a text file with the expected lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.rewards.base import Score, fraction, read_answer


def verify(workspace: Path, spec: Mapping[str, Any]) -> Score:
    """1.0 if the lines of ``spec["path"]`` are ``spec["expected"]`` in order.

    Blank lines and white space at the ends of lines are ignored. The right lines in another order score 0.5. Otherwise
    the score is half the number of shared lines, divided by the larger number of lines.
    """
    text = read_answer(workspace, spec["path"])
    if text is None:
        return Score(0.0, {"path": spec["path"], "problem": "no such text file"})
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    expected = list(spec["expected"])
    if lines == expected:
        return Score(1.0, {"path": spec["path"]})
    shared = (Counter(lines) & Counter(expected)).total()
    missing, extra = Counter(expected) - Counter(lines), Counter(lines) - Counter(expected)
    details = {
        "path": spec["path"],
        "missing": sorted(missing)[:20],
        "extra": sorted(extra)[:20],
    }
    return Score(0.5 * fraction(shared, max(len(lines), len(expected))), details)
