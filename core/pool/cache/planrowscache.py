"""The candidate rows of plans over a whole channel, in memory: after a write only the changed trajectories are read.

Rows are those of ``core.pool.query.planrows`` at the same moment. Trajectories that a write may have changed come with
their prompt groups (``promptgroups``); the rows of all others are kept.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from cachetools import LRUCache

from core.pool.cache.promptgroups import ChangedSince, PromptGroups
from core.pool.query.planrows import plan_rows, planned_trajectories, rows_of_trajectories
from core.pool.query.views import NO_VIEW
from core.pool.store.database import Cursor, Database

MAX_CHANNELS = 2
MAX_ROWS = 2_000_000
"""Rows of a channel that are kept, some 100 bytes each; those of a larger channel are read each time."""
MAX_RUNS = 400
"""If the kept rows would be cut into more runs, all rows are read: faster."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """Rows as of write ``number``.

    Attributes:
        table: of ``plan_rows``.
        trajectory_ids: int64 [m], in plan order.
        first: int64 [m + 1], the first row of each, and the number of rows.
    """

    number: int
    table: pa.Table
    trajectory_ids: np.ndarray
    first: np.ndarray


class PlanRowsCache:
    """The rows of recent channels. Thread-safe; tables are immutable."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._lock = threading.Lock()
        self._groups = PromptGroups()
        self._kept: LRUCache[str | None, _Kept] = LRUCache(MAX_CHANNELS)

    def rows(self, channel: str | None) -> pa.Table:
        """The rows of all steps of a channel (None: of all)."""
        if self._db.in_dry_run:
            with self._db.read() as cursor:
                return plan_rows(cursor, NO_VIEW, channel)
        # The lock orders the snapshots, so kept rows are never newer than the snapshot that they are compared with.
        with self._lock:
            number = self._db.n_writes
            kept = self._kept.get(channel)
            if kept is not None and not self._db.changes.any_since(kept.number):
                return kept.table
            with self._db.read() as cursor:
                table = self._updated(cursor, kept, number, channel)
        return table

    def _updated(self, cursor: Cursor, kept: _Kept | None, number: int, channel: str | None) -> pa.Table:
        changes = ChangedSince(self._db, cursor, self._groups)
        changed = None if kept is None else changes.since(kept.number)
        now = None
        if kept is not None and changed is not None:
            now = (
                _with_changed(cursor, kept, changed, number, channel) if changed.size else replace(kept, number=number)
            )
        if now is None:
            changes.read_groups()
            table = plan_rows(cursor, NO_VIEW, channel)
            owners = table["trajectory_uid"].combine_chunks()
            trajectory_ids = planned_trajectories(cursor, channel)["trajectory_id"].to_numpy()
            now = _Kept(number, table, trajectory_ids, _first_rows(owners, len(trajectory_ids)))
        if len(now.table) <= MAX_ROWS:
            self._kept[channel] = now
        else:
            self._kept.pop(channel, None)
        return now.table


def _first_rows(owners: pa.DictionaryArray, n_trajectories: int) -> np.ndarray:
    """The first row of each trajectory, and the number of rows: the dictionary has them in the order of the rows."""
    first: np.ndarray = np.searchsorted(owners.indices.to_numpy(), np.arange(n_trajectories + 1))
    return first


def _with_changed(cursor: Cursor, kept: _Kept, changed: np.ndarray, number: int, channel: str | None) -> _Kept | None:
    """The rows of the cursor's snapshot, if only these trajectories changed; None: all have to be read.

    Args:
        changed: ``trajectory_id`` of all that may have changed, int64.
    """
    trajectories = planned_trajectories(cursor, channel)
    ids = trajectories["trajectory_id"].to_numpy()
    if not ids.size or not kept.trajectory_ids.size:
        return None
    size = int(max(ids.max(), kept.trajectory_ids.max(), changed.max())) + 1
    before = np.full(size, -1, np.int64)
    before[kept.trajectory_ids] = np.arange(kept.trajectory_ids.size)
    before[changed] = -1
    at = before[ids]
    is_new = at < 0
    new = rows_of_trajectories(cursor, trajectories.filter(pa.array(is_new)))
    if not new.schema.equals(kept.table.schema):
        return None
    new_first = _first_rows(new["trajectory_uid"].combine_chunks(), int(is_new.sum()))
    at[is_new] = np.arange(is_new.sum())
    # Trajectories that follow each other in the same table are one run.
    cuts = np.flatnonzero((is_new[1:] != is_new[:-1]) | (at[1:] != at[:-1] + 1)) + 1
    if cuts.size >= MAX_RUNS:
        return None
    runs, n_rows = [], np.zeros(ids.size, np.int64)
    for begin, end in zip([0, *cuts.tolist()], [*cuts.tolist(), ids.size], strict=True):
        table, first = (new, new_first) if is_new[begin] else (kept.table, kept.first)
        low, high = int(first[at[begin]]), int(first[at[end - 1] + 1])
        runs.append(table.slice(low, high - low))
        n_rows[begin:end] = np.diff(first[at[begin] : at[end - 1] + 2])
    table = pa.concat_tables(runs).unify_dictionaries().combine_chunks()
    return _Kept(number, table, ids, np.concatenate([[0], np.cumsum(n_rows)]))
