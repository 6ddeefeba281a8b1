"""What the demo pack's families of tasks share: the record of one task, and helpers for its files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PATHS = "All file paths are relative to the workspace directory."
"""The end of every query of the persona route."""


@dataclass(frozen=True)
class Made:
    """One task.

    Attributes:
        family: what it is about, a tag.
        category: one of ClawGym's six, in the words of its paper.
        query: the text for the agent.
        inputs: path in the workspace -> text.
        solution: path in the workspace -> text, the files that a right answer writes.
        checks: name -> (function of ``pack_checks``, its arguments).
        rules: rules for a judge.
        commands: lines of shell that a right answer needs beside these files.
    """

    family: str
    category: str
    query: str
    inputs: Mapping[str, str]
    solution: Mapping[str, str]
    checks: Mapping[str, tuple[str, Mapping[str, Any]]]
    rules: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    commands: Sequence[str] = ()


def as_json(value: Any) -> str:
    """JSON text as a person would write it."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def as_csv(rows: Sequence[Sequence[Any]]) -> str:
    """CSV text."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def rule(name: str, path: str, levels: Mapping[float, str]) -> dict[str, Any]:
    """A rule for a judge in ClawGym's form."""
    return {"name": name, "file_path": path, "scores": {f"{level:g}": text for level, text in levels.items()}}
