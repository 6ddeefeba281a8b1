"""The pool's caches in memory: query results, columns and the text search index; filled before pages need them.

Without it, the first page sorted by a column, or the first facets, waits for a million rows. ``warm`` reads the facet
index, the columns and parts of the rows when the pool is opened. Later it brings the columns up to date: the change
sets of a limited number of writes are kept, and an older column has to be read again. Then it makes the Bloom
filters for text search (``query.trigrambloom``), on disk where they are many. When the pool is idle, ``warm`` also
checkpoints the write-ahead log, so that bulk labels seldom have to. It changes no result. Memory is bounded by
``columncache.MAX_BYTES``, ``textsearch.MAX_BYTES``, and the database's own limit for ``MAX_ROWS`` rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from core.pool.cache.answercache import Answer, AnswerCache
from core.pool.cache.columncache import ColumnCache
from core.pool.query.listing import touch_rows
from core.pool.query.textsearch import TextSearch
from core.pool.query.viewreader import ViewReader
from core.pool.store.database import Database
from core.pool.store.writer import Writer
from core.types import View

FEW_STEPS = 20_000
"""A pool with fewer steps needs no reading ahead."""
MAX_ROWS = 1_000_000
"""The newest steps, whose rows are read ahead: some 95 bytes each of the database's memory."""
LOG_BYTES = 8 << 20
"""A write-ahead log of this size is checkpointed when nothing was written since the last look."""


class Cache:
    """``pool.cache``: the caches in memory. Thread-safe.

    Attributes:
        columns: columns of steps as numbers, and the facet index.
        texts: the text search index of the messages.
    """

    def __init__(self, database: Database, writer: Writer, reader: ViewReader, texts: TextSearch) -> None:
        self._db, self._writer, self._reader = database, writer, reader
        self.columns, self.texts = ColumnCache(database, reader), texts
        self._answers = AnswerCache()
        self._rows_are_read = False
        self._n_writes_seen = -1

    def cached(self, question: tuple[Any, ...], ask: Callable[[], Answer]) -> Answer:
        """The result of ``ask``, cached under ``question`` until the next write."""
        if self._db.in_dry_run:
            return ask()
        return self._answers.get(self._db.n_writes, question, ask)

    def ask(self, question: Callable[..., Answer], view: View, *more: Any) -> Answer:
        """The result of a function in ``query`` for a view, cached until the next write."""

        def ask() -> Answer:
            with self._reader.reading(view) as (cursor, seen):
                return question(cursor, seen, *more)

        return self.cached((question.__name__, view, *more), ask)

    def warm(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Fill the caches of a big pool, and bring up to date what is old.

        Args:
            stop: called between parts; True ends it.
        """
        if self._writer.next["step_id"] < FEW_STEPS or stop():
            return
        at_rest, self._n_writes_seen = self._n_writes_seen == self._db.n_writes, self._db.n_writes
        if at_rest and self._db.log_bytes >= LOG_BYTES:
            self._db.checkpoint()
        if not self._rows_are_read:
            with self._db.read() as cursor:
                touch_rows(cursor, MAX_ROWS)
            self._rows_are_read = True
        self.columns.read_ahead(stop)
        while not stop():
            began = time.perf_counter()
            if not self.prepare_search():
                return
            time.sleep(time.perf_counter() - began)  # use half of one core: others need it in the first minute too

    def prepare_search(self) -> bool:
        """Index some more messages for text search, some 100 ms of one core; False when none are left for now.

        A search is exact however much is indexed.
        """
        with self._db.read() as cursor:
            return self.texts.prepare(cursor)
