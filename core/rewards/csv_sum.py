"""A verifier for a file that must contain the sum of a CSV column."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from core.rewards.base import Score, read_answer

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def column_sum(text: str, column: str, where: Mapping[str, str]) -> Decimal:
    """Exact decimal sum of ``column`` over the rows whose fields equal ``where``."""
    rows = csv.DictReader(io.StringIO(text))
    return sum(
        (Decimal(row[column]) for row in rows if all(row[key] == value for key, value in where.items())),
        Decimal(0),
    )


def verify(workspace: Path, spec: Mapping[str, Any]) -> Score:
    """1.0 if the only number in ``spec["path"]`` is the sum, else 0.0.

    ``csv_text`` is the original table (not read from the workspace, where the agent may have changed it), ``column``
    the column to sum, ``where`` an optional ``{column: value}`` selection of rows.
    """
    expected = column_sum(spec["csv_text"], spec["column"], spec.get("where", {}))
    text = read_answer(workspace, spec["path"])
    details = {"path": spec["path"], "expected": str(expected)}
    if text is None:
        return Score(0.0, {**details, "problem": "no such text file"})
    numbers = _NUMBER.findall(text.replace(",", ""))
    if len(numbers) != 1:
        return Score(0.0, {**details, "problem": f"the file has {len(numbers)} numbers, expected one"})
    total = Decimal(numbers[0])
    return Score(1.0 if total == expected else 0.0, {**details, "found": str(total)})
