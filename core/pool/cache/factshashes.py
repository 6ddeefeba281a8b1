"""The hashes of steps' facts in memory, as the texts that plans hash: they never change, so writes only add some."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa

from core.pool.query.creditfields import facts_hashes
from core.pool.store.database import Database, arrow

MAX_STEPS = 2_000_000
"""Steps of a pool whose hashes are kept, 36 bytes each; in a larger pool they are read each time."""
TEXT = 36
"""Bytes of a hash as text."""
_ALL = "SELECT step_id, facts_hash::VARCHAR AS facts_hash FROM steps WHERE step_id > ?"


class FactsHashes:
    """Hashes by ``step_id``. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._lock = threading.Lock()
        self._number = -1
        self._texts = _nothing()

    def of(self, step_ids: np.ndarray) -> pa.ChunkedArray:
        """The hash of each of these steps, string [n], as ``core.pool.query.creditfields.facts_hashes``.

        Args:
            step_ids: int64 [n], steps that exist, in any order.
        """
        known = None if self._db.in_dry_run or not len(step_ids) else self._up_to(int(step_ids.max()))
        wanted = None if known is None else known[step_ids]
        # A step without a hash has a null, which texts of one length don't hold.
        if wanted is None or not wanted.view(np.uint8)[::TEXT].all():
            with self._db.read() as cursor:
                return facts_hashes(cursor, step_ids)
        offsets = np.arange(0, TEXT * len(wanted) + 1, TEXT, dtype=np.int32)
        texts = pa.StringArray.from_buffers(len(wanted), pa.py_buffer(offsets), pa.py_buffer(wanted))
        return pa.chunked_array([texts])

    def _up_to(self, greatest: int) -> np.ndarray | None:
        """The hashes of the steps up to this one and more, a place for each id; None: they are too many."""
        if greatest >= MAX_STEPS:
            return None
        with self._lock:
            number = self._db.n_writes
            # A write of which it isn't known what it changed may have deleted steps or brought some back.
            if self._db.changes.since(self._number) is None:
                self._texts = _nothing()
            self._number = number
            if greatest >= self._texts.size:
                with self._db.read() as cursor:
                    table = arrow(cursor, _ALL, [self._texts.size - 1])
                self._texts = _with_more(self._texts, table)
            return self._texts


def _nothing() -> np.ndarray:
    return np.zeros(0, f"V{TEXT}")


def _with_more(texts: np.ndarray, table: pa.Table) -> np.ndarray:
    """A copy with the hashes of further steps; bytes of 0 where there is none."""
    known = table.filter(table["facts_hash"].is_valid())
    ids = known["step_id"].to_numpy()
    size = int(table["step_id"].to_numpy().max(initial=texts.size - 1)) + 1
    longer = np.zeros(size, texts.dtype)
    longer[: texts.size] = texts
    column = known["facts_hash"].combine_chunks().cast(pa.large_string())
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int64, len(column) + 1 + column.offset)[column.offset :]
    longer[ids] = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]].view(texts.dtype) if len(column) else texts[:0]
    return longer
