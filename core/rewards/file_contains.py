"""A verifier for texts that a file must contain, and texts that it must not contain."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.rewards.base import Score, fraction, read_answer


def verify(workspace: Path, spec: Mapping[str, Any]) -> Score:
    """Fraction of the conditions on ``spec["path"]`` that hold.

    ``contains`` and ``lacks`` are lists of exact texts. If the file has none of ``contains``, the score is 0, so that
    an empty file does not score for ``lacks``.
    """
    text = read_answer(workspace, spec["path"])
    contains, lacks = list(spec.get("contains", ())), list(spec.get("lacks", ()))
    if text is None:
        return Score(0.0, {"path": spec["path"], "problem": "no such text file"})
    missing = [wanted for wanted in contains if wanted not in text]
    unwanted = [refused for refused in lacks if refused in text]
    details = {"path": spec["path"], "missing": missing, "unwanted": unwanted}
    if contains and len(missing) == len(contains):
        return Score(0.0, details)
    n_all = len(contains) + len(lacks)
    return Score(fraction(n_all - len(missing) - len(unwanted), n_all), details)
