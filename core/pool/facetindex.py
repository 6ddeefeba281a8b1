"""Facet columns as numbers in memory: one int32 per step and set of columns, made when asked for.

A set's columns are replaced by the number of their combination, so that counting twenty facets of any selection is
three passes over small integers. A million steps take 12 MB. The index is of one moment: with the next write it is
out of date, and made anew when facets are asked for again (``core.pool.facets``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from core.pool.columns import FINDING_BITS, STEP_COLUMNS
from core.pool.database import Cursor, arrow, registered
from core.pool.findings import names_of

SETS: tuple[tuple[str, ...], ...] = (
    ("channel", "source", "agent", "model", "engine", "token_source", "identity_source", "policy_version"),
    ("call_kind", "transition", "status", "finish_reason", "trainable", "quality", "correct", "is_last"),
    ("complete", "trajectory_quality", "trajectory_correct", "findings", "tags", "tool_names"),
)
"""Columns that are numbered together: those in a set have few combinations, since they go together."""

INDEXED = frozenset(name for names in SETS for name in names)
MOST_COMBINATIONS = 50_000
"""A set with more combinations is not numbered: its columns would have nearly as many values as there are steps."""

Counts = list[tuple[Any, int]]


@dataclass(frozen=True, slots=True)
class _Column:
    """Values of one column, and where they occur: ``combination[i]`` has the value ``values[value[i]]``.

    A list column has an entry for each element, and none for an empty list.
    """

    values: list[Any]
    combination: np.ndarray
    value: np.ndarray

    def counts(self, by_combination: np.ndarray, limit: int) -> Counts:
        sums = np.bincount(self.value, by_combination[self.combination], len(self.values)).astype(np.int64)
        found = [(value, int(n)) for value, n in zip(self.values, sums, strict=True) if n]
        return sorted(found, key=lambda item: (-item[1], item[0] is None, item[0]))[:limit]


@dataclass(frozen=True, slots=True)
class _Set:
    codes: np.ndarray
    """int32 ``[greatest step_id + 1]``: the combination of each step."""
    n_combinations: int
    columns: dict[str, _Column]


class FacetIndex:
    """The numbers of one moment. ``names`` are the columns that it can count."""

    def __init__(self, sets: Sequence[_Set]) -> None:
        self._sets = sets
        self.names = frozenset(name for one in sets for name in one.columns)

    @classmethod
    def build(cls, cursor: Cursor) -> FacetIndex:
        """Read the columns as the cursor's snapshot has them."""
        return cls([made for names in SETS if (made := _build(cursor, names)) is not None])

    def counts(self, step_ids: np.ndarray, names: Iterable[str], limit: int) -> dict[str, Counts] | None:
        """Counts of these columns over these steps; None when a step has come since."""
        wanted = set(names) & self.names
        found: dict[str, Counts] = {}
        for one in self._sets:
            chosen = wanted & set(one.columns)
            if not chosen:
                continue
            if step_ids.size and int(step_ids.max()) >= one.codes.size:
                return None
            by_combination = np.bincount(one.codes[step_ids], minlength=one.n_combinations)
            found |= {name: one.columns[name].counts(by_combination, limit) for name in chosen}
        return found


def _sql(name: str) -> str:
    return FINDING_BITS if name == "findings" else STEP_COLUMNS[name].sql


def _build(cursor: Cursor, names: Sequence[str]) -> _Set | None:
    source = "FROM step_state s JOIN trajectory_state t USING (trajectory_id)"
    # A hash of 64 bits stands for the values: of even 50,000 combinations two meet with a chance of one in 10^10.
    hashed = arrow(cursor, f"SELECT s.step_id, hash({', '.join(map(_sql, names))}) AS h {source}")
    step_ids = hashed["step_id"].to_numpy()
    encoded = hashed["h"].combine_chunks().dictionary_encode()
    n = len(encoded.dictionary)
    if n > MOST_COMBINATIONS:
        return None
    of_row = encoded.indices.to_numpy()
    codes = np.zeros(int(step_ids.max()) + 1 if step_ids.size else 1, np.int32)
    codes[step_ids] = of_row
    examples = np.zeros(n, np.int64)
    examples[of_row] = step_ids
    columns = ", ".join(f"{_sql(name)} AS {name}" for name in names)
    wanted = pa.table({"step_id": examples, "place": np.arange(n)})
    with registered(cursor, facet_examples=wanted):
        values = arrow(
            cursor, f"SELECT {columns} {source} JOIN facet_examples e ON e.step_id = s.step_id ORDER BY e.place"
        )
    return _Set(codes, n, {name: _column(name, values[name].to_pylist()) for name in names})


def _column(name: str, of_combination: list[Any]) -> _Column:
    if name == "findings":
        of_combination = [names_of(bits) for bits in of_combination]
    is_list = STEP_COLUMNS[name].kind == "list"
    numbers: dict[Any, int] = {}
    combination, value = [], []
    for place, here in enumerate(of_combination):
        for each in here if is_list else (here,):
            combination.append(place)
            value.append(numbers.setdefault(each, len(numbers)))
    return _Column(list(numbers), np.array(combination, np.int64), np.array(value, np.int64))
