"""The facet index: one int32 code per step and set of facet columns, in memory.

A code numbers a combination of values of the set's columns, so counting twenty facets of any selection is three passes
over small integers. A million steps take 12 MB. An index belongs to one snapshot and is immutable; ``grown`` makes the
index of a later snapshot from it and the trajectories that changed (which ``core.pool.cache.columncache`` tracks).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from core.pool.query.columns import FINDING_BITS, STEP_COLUMNS
from core.pool.state.findings import names_of
from core.pool.store.database import Cursor, arrow, in_list, registered

SETS: tuple[tuple[str, ...], ...] = (
    ("channel", "source", "agent", "run", "model", "engine", "token_source", "identity_source", "policy_version"),
    ("call_kind", "transition", "status", "finish_reason", "trainable", "quality", "correct", "is_last"),
    ("complete", "trajectory_quality", "trajectory_correct", "findings", "tags", "tool_names"),
)
"""Columns that are encoded together: correlated columns, which have few combinations."""

MAX_COMBINATIONS = 50_000
"""A set with more combinations is not encoded: it would have nearly as many values as there are steps."""

Counts = list[tuple[Any, int]]

_SOURCE = "FROM step_state s JOIN trajectory_state t USING (trajectory_id)"


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
        counts = [(value, int(n)) for value, n in zip(self.values, sums, strict=True) if n]
        return sorted(counts, key=lambda item: (-item[1], item[0] is None, item[0]))[:limit]

    def with_more(self, name: str, first: int, of_combination: list[Any]) -> _Column:
        """The column with the values of further combinations, whose codes start at ``first``."""
        if name == "findings":
            of_combination = [names_of(bits) for bits in of_combination]
        is_list = STEP_COLUMNS[name].kind == "list"
        numbers = {value: number for number, value in enumerate(self.values)}
        combination, value = [], []
        for place, values in enumerate(of_combination, first):
            for each in values if is_list else (values,):
                combination.append(place)
                value.append(numbers.setdefault(each, len(numbers)))
        return _Column(
            list(numbers),
            np.concatenate([self.combination, np.array(combination, np.int64)]),
            np.concatenate([self.value, np.array(value, np.int64)]),
        )


_EMPTY = _Column([], np.zeros(0, np.int64), np.zeros(0, np.int64))


@dataclass(frozen=True, slots=True)
class _Set:
    codes: np.ndarray
    """int32 ``[greatest step_id + 1]``: the combination of each step, -1: no such step."""
    hashes: np.ndarray
    """uint64 ``[combinations]``."""
    totals: np.ndarray
    """int64 ``[combinations]``: how many of all steps have each."""
    columns: dict[str, _Column]

    def with_steps(self, cursor: Cursor, step_ids: np.ndarray, hashes: pa.ChunkedArray) -> _Set | None:
        """The set with these steps' combinations replaced; None when there are too many combinations."""
        encoded = hashes.combine_chunks().dictionary_encode()
        if self.hashes.size + len(encoded.dictionary) > 2 * MAX_COMBINATIONS:
            return None
        combinations, of_step = encoded.dictionary.to_numpy(), encoded.indices.to_numpy()
        order = np.argsort(self.hashes)
        places = np.searchsorted(self.hashes, combinations, sorter=order)
        near = np.append(order, -1)[places]
        known = (near >= 0) & (np.append(self.hashes, 0)[near] == combinations)
        new = np.flatnonzero(~known)
        n = self.hashes.size
        if n + new.size > MAX_COMBINATIONS:
            return None
        code_of_combination = np.where(known, near, 0)
        code_of_combination[new] = n + np.arange(new.size)
        top = int(step_ids.max()) + 1 if step_ids.size else 0
        codes = np.concatenate([self.codes, np.full(max(top - self.codes.size, 0), -1, np.int32)])
        totals = np.concatenate([self.totals, np.zeros(new.size, np.int64)])
        before = codes[step_ids]
        totals -= np.bincount(before[before >= 0], minlength=totals.size)
        codes[step_ids] = code_of_combination[of_step]
        totals += np.bincount(codes[step_ids], minlength=totals.size)
        columns = self.columns
        if new.size:
            examples = np.zeros(combinations.size, np.int64)
            examples[of_step] = step_ids
            columns = _with_values(cursor, columns, n, examples[new])
        return _Set(codes, np.concatenate([self.hashes, combinations[new]]), totals, columns)


class FacetIndex:
    """The codes of one snapshot. ``names`` are the columns that it can count."""

    def __init__(self, sets: Sequence[_Set | None]) -> None:
        self._sets = sets
        self.names = frozenset(name for one in sets if one for name in one.columns)

    @classmethod
    def build(cls, cursor: Cursor) -> FacetIndex:
        """Read the columns from the cursor's snapshot."""
        nothing = np.zeros(0, np.int32), np.zeros(0, np.uint64), np.zeros(0, np.int64)
        empty = [_Set(*nothing, dict.fromkeys(names, _EMPTY)) for names in SETS]
        sets: list[_Set | None] = []
        for one in empty:
            hashed = arrow(cursor, f"SELECT s.step_id, {_hash(tuple(one.columns))} AS h {_SOURCE}")
            sets.append(one.with_steps(cursor, hashed["step_id"].to_numpy(), hashed["h"]))
        return cls(sets)

    @property
    def n_bytes(self) -> int:
        """Bytes of the codes; the few combinations are not counted."""
        return sum(one.codes.nbytes for one in self._sets if one)

    def grown(self, cursor: Cursor, trajectory_ids: np.ndarray) -> FacetIndex:
        """The index of the cursor's snapshot, if only these trajectories changed since this one's."""
        columns = ", ".join(f"{_hash(names)} AS h{place}" for place, names in enumerate(SETS))
        with in_list(cursor, "s.trajectory_id", trajectory_ids) as (condition, bound):
            table = arrow(cursor, f"SELECT s.step_id, {columns} {_SOURCE} WHERE {condition}", bound)
        step_ids = table["step_id"].to_numpy()
        return FacetIndex(
            [one and one.with_steps(cursor, step_ids, table[f"h{place}"]) for place, one in enumerate(self._sets)]
        )

    def keys(self, name: str, step_ids: np.ndarray) -> np.ndarray | None:
        """A column of these steps as float64 in the same order, NaN where it is unknown; None: not in the index."""
        one = next((one for one in self._sets if one and name in one.columns), None)
        if one is None or STEP_COLUMNS[name].kind == "list":
            return None
        column = one.columns[name]
        ranks = None
        if STEP_COLUMNS[name].kind == "text":
            ranks = {value: place for place, value in enumerate(self.texts(name))}
        of_value = np.array(
            [np.nan if value is None else float(ranks[value] if ranks else value) for value in column.values],
            np.float64,
        )
        of_combination = np.full(one.hashes.size, np.nan)
        of_combination[column.combination] = of_value[column.value]
        keys: np.ndarray = of_combination[one.codes[step_ids]]
        return keys

    def texts(self, name: str) -> list[str]:
        """The known texts of a column in their order: ``keys`` are places in it. Some may not occur any more."""
        column = next(one.columns[name] for one in self._sets if one and name in one.columns)
        return sorted(value for value in column.values if value is not None)

    def counts(self, step_ids: np.ndarray | None, names: Iterable[str], limit: int) -> dict[str, Counts]:
        """Counts by value of those of these columns that the index has, over these steps; None: over all."""
        wanted = set(names) & self.names
        counts: dict[str, Counts] = {}
        for one in self._sets:
            if one is None or not (chosen := wanted & set(one.columns)):
                continue
            by_combination = one.totals
            if step_ids is not None:
                by_combination = np.bincount(one.codes[step_ids], minlength=one.hashes.size)
            counts |= {name: one.columns[name].counts(by_combination, limit) for name in chosen}
        return counts


def _sql(name: str) -> str:
    return FINDING_BITS if name == "findings" else STEP_COLUMNS[name].sql


def _hash(names: Sequence[str]) -> str:
    # A 64-bit hash identifies a combination: among 50,000, a collision has a chance of one in 10^10.
    return f"hash({', '.join('s.tags_json' if name == 'tags' else _sql(name) for name in names)})"


def _with_values(cursor: Cursor, columns: dict[str, _Column], first: int, examples: np.ndarray) -> dict[str, _Column]:
    """The columns with the values of further combinations, each read from a step that has it."""
    selected = ", ".join(f"{_sql(name)} AS {name}" for name in columns)
    wanted = pa.table({"step_id": examples, "place": np.arange(examples.size)})
    with registered(cursor, facet_examples=wanted):
        values = arrow(
            cursor, f"SELECT {selected} {_SOURCE} JOIN facet_examples e ON e.step_id = s.step_id ORDER BY e.place"
        )
    return {name: column.with_more(name, first, values[name].to_pylist()) for name, column in columns.items()}
