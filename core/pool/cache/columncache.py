"""A cache of step columns as arrays (``encodedcolumn``): filled at first use, updated by the change sets of writes.

Sorting a million rows to show fifty, or counting twenty facets, is a few passes over such an array. Results match the
cursor's snapshot.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from cachetools import LRUCache

from core.pool.cache.answercache import key_of
from core.pool.cache.encodedcolumn import EncodedColumn
from core.pool.cache.facetindex import SETS, FacetIndex
from core.pool.cache.promptgroups import ChangedSince, PromptGroups
from core.pool.query.columns import STEP_COLUMNS
from core.pool.query.viewreader import ViewReader
from core.pool.query.views import compile_view, source_sql
from core.pool.state.policyversion import versions_in_force
from core.pool.store.changes import MAX_KEPT_WRITES
from core.pool.store.database import Cursor, Database, arrow, in_list
from core.types import View

IN_SETS = frozenset(name for names in SETS for name in names if STEP_COLUMNS[name].kind != "list")
"""Columns that the facet index holds."""
OF_SETS = IN_SETS | {"staleness"}
VALUES = frozenset(
    column.name for column in STEP_COLUMNS.values() if column.kind in ("number", "time") and column.name not in OF_SETS
)
SORTED = OF_SETS | VALUES
"""Columns that steps can be sorted by in memory."""

MAX_BYTES = 512 << 20
"""Bytes for columns of values; the least recently used is evicted first. A column that is bigger alone isn't cached.
Of ten million steps, columns of few values take 10 or 20 MB each, others 80."""
MAX_VIEW_BYTES = 96 << 20
"""Bytes for the step ids of views."""
FIRST = ("created_at", "trajectory_reward", "reward", "latency_s", "n_tokens", "difficulty", "n_steps", "step_index")
READ_AHEAD_ORDER = (*FIRST, *sorted(VALUES.difference(FIRST)))
"""Columns in the order in which they are read ahead, as long as they fit."""
MAX_WRITES_BEHIND = MAX_KEPT_WRITES // 4
"""Writes after which an unused column is brought up to date: before their change sets are forgotten."""
MAX_EXACT_INTEGER = 2.0**53
"""From here on, float64 does not hold every whole number."""


@dataclass(slots=True)
class _CachedColumn:
    """A column as of write ``number``; ``values`` None: float64 can't hold it exactly."""

    number: int
    values: EncodedColumn | None

    @property
    def n_bytes(self) -> int:
        return 0 if self.values is None else self.values.n_bytes


@dataclass(frozen=True, slots=True)
class ReadSnapshot:
    """A read snapshot of the pool: a cursor, the resolved view, and the cached columns of the same snapshot.

    Attributes:
        facets: the facet index, if requested.
        columns: the cached columns by name.
        versions: the policy version that staleness counts from, by channel; if requested.
        known: int64, ascending: the steps of the view, if cached.
        keep: stores them in the cache.
    """

    cursor: Cursor
    view: View
    facets: FacetIndex | None
    columns: dict[str, EncodedColumn]
    versions: dict[str, int | None]
    known: np.ndarray | None
    keep: Callable[[np.ndarray], None]

    def step_ids(self) -> np.ndarray:
        """int64, ascending: the steps of the view. Read-only."""
        if self.known is not None:
            return self.known
        condition = compile_view(self.view)
        column = arrow(self.cursor, f"SELECT s.step_id {source_sql(condition)}", condition.parameters)["step_id"]
        step_ids = _ascending(column.to_numpy())
        self.keep(step_ids)
        return step_ids

    def keys(self, name: str, step_ids: np.ndarray) -> np.ndarray | None:
        """A column of these steps as float64, NaN where it is unknown; texts by their rank. None: not cached.

        Read-only, and valid only while the snapshot is open.
        """
        if name in self.columns:
            return self.columns[name].taken(step_ids)
        if self.facets is None:
            return None
        if name != "staleness":
            return self.facets.keys(name, step_ids)
        versions, channels = self.facets.keys("policy_version", step_ids), self.facets.keys("channel", step_ids)
        if versions is None or channels is None:
            return None
        of_rank = [self.versions.get(channel) for channel in self.facets.texts("channel")]
        known = np.array([np.nan if version is None else version for version in of_rank], np.float64)
        staleness: np.ndarray = known[channels.astype(np.int64)] - versions
        return staleness


class ColumnCache:
    """The cached columns. Thread-safe: an array is never written to after it was returned."""

    def __init__(self, database: Database, reader: ViewReader, *, max_bytes: int = MAX_BYTES) -> None:
        self._db, self._reader, self._max_bytes = database, reader, max_bytes
        self._lock = threading.Lock()
        self._facets: tuple[int, FacetIndex] | None = None
        self._columns: LRUCache[str, _CachedColumn] = LRUCache(max_bytes, getsizeof=lambda kept: kept.n_bytes)
        self._groups = PromptGroups()
        self._versions: tuple[int, dict[str, int | None]] | None = None
        self._everything: tuple[int, np.ndarray] | None = None
        self._views = _Views(database)

    @contextmanager
    def reading(
        self, view: View, *, facets: bool = False, columns: Sequence[str] = (), versions: bool = False
    ) -> Iterator[ReadSnapshot]:
        """A snapshot with the facet index if requested, and with all that ``keys`` of these columns needs."""
        assert not self._db.in_dry_run, "cached columns hold committed state only"
        with ExitStack() as stack:
            # The lock orders the snapshots, so a cached column is never newer than the snapshot that reads it.
            # A column carries the number of the last write that it surely contains; a later one may be read twice.
            with self._lock:
                number = self._db.n_writes
                cursor = stack.enter_context(self._db.read())
                changes = ChangedSince(self._db, cursor, self._groups)
                index = self._index(changes, number) if facets or not OF_SETS.isdisjoint(columns) else None
                kept = {name: self._column(changes, number, name) for name in columns if name in VALUES}
                current = self._current_versions(cursor, number) if versions or "staleness" in columns else {}
                known = self._known(changes, number, view, columns)
            seen = stack.enter_context(self._reader.resolved(cursor, view))
            exact = {name: values for name, values in kept.items() if values is not None}
            yield ReadSnapshot(cursor, seen, index, exact, current, known, partial(self._views.keep, number, view))

    @property
    def in_dry_run(self) -> bool:
        """Whether this thread reads uncommitted state, which cached columns don't hold."""
        return self._db.in_dry_run

    def _index(self, changes: ChangedSince, number: int) -> FacetIndex:
        changed = None if self._facets is None else changes.since(self._facets[0])
        if self._facets is None or changed is None:
            changes.read_groups()
            index = FacetIndex.build(changes.cursor)
        else:
            index = self._facets[1].grown(changes.cursor, changed) if changed.size else self._facets[1]
        self._facets = number, index
        return index

    def _column(self, changes: ChangedSince, number: int, name: str) -> EncodedColumn | None:
        kept = self._columns.pop(name, None)
        changed = None if kept is None else changes.since(kept.number)
        if kept is None or changed is None:
            changes.read_groups()
            values = _read(changes.cursor, name)
        else:
            values = _grown(changes.cursor, name, kept.values, changed) if changed.size else kept.values
        if values is not None and values.n_bytes > self._max_bytes:
            values = None
        self._columns[name] = _CachedColumn(number, values)
        return values

    @property
    def n_bytes(self) -> int:
        """Memory of all cached arrays, bytes."""
        with self._lock:
            facets = 0 if self._facets is None else self._facets[1].n_bytes
            step_ids = 0 if self._everything is None else self._everything[1].nbytes
            return int(self._columns.currsize) + facets + step_ids + self._groups.of.nbytes + self._views.n_bytes

    def read_ahead(self, stop: Callable[[], bool]) -> None:
        """Read the columns that are missing and fit, without blocking readers; then bring old ones up to date.

        Args:
            stop: called before each part; True ends it.
        """
        for name in (None, *READ_AHEAD_ORDER):
            if stop() or not self._cache_column(name):
                break
        with self._lock:
            behind = [
                name for name, kept in self._columns.items() if self._db.n_writes - kept.number > MAX_WRITES_BEHIND
            ]
            behind += [FIRST[0]] if self._everything is None else []
        for name in behind:
            if stop():
                return
            with self.reading(View(), facets=True, columns=[name]):
                pass

    def _cache_column(self, name: str | None) -> bool:
        """Read a column, or the facet index (None), if it is missing; False when there is no room for it."""
        with ExitStack() as stack:
            # As in ``reading``, but the column is read outside the lock. Others may meanwhile read a newer one.
            with self._lock:
                if self._facets is not None if name is None else name in self._columns:
                    return True
                number = self._db.n_writes
                cursor = stack.enter_context(self._db.read())
                self._groups.read_groups(cursor)
            if name is None:
                index = FacetIndex.build(cursor)
                with self._lock:
                    self._facets = self._facets or (number, index)
                return True
            values = _read(cursor, name)
            with self._lock:
                fits = values is None or self._columns.currsize + values.n_bytes <= self._max_bytes
                if fits and name not in self._columns:
                    self._columns[name] = _CachedColumn(number, values)
                return fits

    def _current_versions(self, cursor: Cursor, number: int) -> dict[str, int | None]:
        if self._versions is None or self._db.changes.any_since(self._versions[0]):
            self._versions = number, versions_in_force(cursor)
        return self._versions[1]

    def _known(self, changes: ChangedSince, number: int, view: View, columns: Sequence[str]) -> np.ndarray | None:
        if not is_unfiltered(view):
            return self._views.get(view)
        return self._all_ids(changes, number) if columns else None

    def _all_ids(self, changes: ChangedSince, number: int) -> np.ndarray:
        changed = None if self._everything is None else changes.since(self._everything[0])
        if self._everything is None or changed is None:
            step_ids = _ascending(arrow(changes.cursor, "SELECT step_id FROM step_state")["step_id"].to_numpy())
        else:
            step_ids = _with_new(changes.cursor, self._everything[1], changed) if changed.size else self._everything[1]
        self._everything = number, step_ids
        return step_ids


class _Views:
    """A cache of the step ids of recent views, cleared by each write. Facets and successive pages share them."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._lock = threading.Lock()
        self._step_ids: LRUCache[bytes, tuple[int, np.ndarray]] = LRUCache(
            MAX_VIEW_BYTES, getsizeof=lambda one: one[1].nbytes
        )

    def get(self, view: View) -> np.ndarray | None:
        """The steps of a view in a snapshot that was opened before; None: not cached."""
        key = key_of(view)
        with self._lock:
            if key is None or key not in self._step_ids:
                return None
            number, step_ids = self._step_ids[key]
            if self._db.changes.any_since(number):
                self._step_ids.clear()
                return None
            return step_ids

    def keep(self, number: int, view: View, step_ids: np.ndarray) -> None:
        """Store the steps of a view, read from a snapshot that contains the write ``number``."""
        key = key_of(view)
        if key is None or step_ids.nbytes > MAX_VIEW_BYTES:
            return
        with self._lock:
            self._step_ids[key] = number, step_ids

    @property
    def n_bytes(self) -> int:
        """Memory, bytes."""
        with self._lock:
            return int(self._step_ids.currsize)


def is_unfiltered(view: View) -> bool:
    """True when the view has no filter."""
    return not view.where.strip() and not any(value is not None for value in view.filters.values())


def _ascending(step_ids: np.ndarray) -> np.ndarray:
    if np.all(step_ids[1:] > step_ids[:-1]):
        return step_ids
    top = int(step_ids.max()) + 1
    if top > 4 * step_ids.size:
        return np.sort(step_ids)
    present = np.zeros(top, np.bool_)
    present[step_ids] = True
    return np.flatnonzero(present)


def _with_new(cursor: Cursor, step_ids: np.ndarray, trajectory_ids: np.ndarray) -> np.ndarray:
    """These steps and those of the trajectories, ascending. (A write that deletes steps counts as changing all.)"""
    with in_list(cursor, "trajectory_id", trajectory_ids) as (condition, bound):
        changed = arrow(cursor, f"SELECT step_id FROM step_state WHERE {condition}", bound)["step_id"].to_numpy()
    places = np.minimum(np.searchsorted(step_ids, changed), max(step_ids.size - 1, 0))
    new = np.sort(changed[step_ids[places] != changed] if step_ids.size else changed)
    if not new.size:
        return step_ids
    together = np.concatenate([step_ids, new])
    return together if not step_ids.size or step_ids[-1] < new[0] else np.sort(together)


def _sql(name: str, condition: str = "TRUE") -> str:
    column = STEP_COLUMNS[name]
    value = f"epoch_us({column.sql})" if column.kind == "time" else column.sql
    join = " JOIN trajectory_state t USING (trajectory_id)" if column.needs_trajectory else ""
    return f"SELECT s.step_id, ({value})::DOUBLE AS value FROM step_state s{join} WHERE {condition}"


def _read(cursor: Cursor, name: str) -> EncodedColumn | None:
    step_ids, new = _exact(arrow(cursor, _sql(name)))
    if new is None:
        return None
    values = np.full(int(step_ids.max()) + 1 if step_ids.size else 0, np.nan)
    values[step_ids] = new
    return EncodedColumn.of(values)


def _grown(cursor: Cursor, name: str, values: EncodedColumn | None, trajectory_ids: np.ndarray) -> EncodedColumn | None:
    if values is None:
        return None
    with in_list(cursor, "s.trajectory_id", trajectory_ids) as (condition, bound):
        step_ids, new = _exact(arrow(cursor, _sql(name, condition), bound))
    return None if new is None else values.with_values(step_ids, new)


def _exact(rows: pa.Table) -> tuple[np.ndarray, np.ndarray | None]:
    """int64 step ids and float64 values; None for the values if float64 can't hold one, or a known one is NaN."""
    value = rows["value"]
    new = value.to_numpy()
    inexact = int(np.isnan(new).sum()) != value.null_count or np.any(np.abs(new) >= MAX_EXACT_INTEGER)
    return rows["step_id"].to_numpy(), None if inexact else new
