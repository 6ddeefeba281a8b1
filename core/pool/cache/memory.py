"""What is kept in memory beside the file: answers, columns, what text search knows; read ahead before pages ask.

The first page by a column, or the first facets, would wait for a million rows. Here the facet index, the columns and
some of every stretch of rows are read when the pool is opened, and what was kept is brought up to date now and then:
columns that nobody asked for while a thousand writes came in would have to be read anew. Signs for text search are
made after that (``query.textsigns``). A pool at rest takes its write-ahead log in, so that bulk labels seldom have
to. Nobody waits for it, and no answer is another than without it. Its memory is bounded: ``numbers.MOST_BYTES``,
``textsearch.MOST_BYTES``, and what the database keeps of ``MOST_ROWS`` rows within its own limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from core.pool.cache.kept import Answer, Kept
from core.pool.cache.numbers import Numbers
from core.pool.query.listing import touch_rows
from core.pool.query.textsearch import TextSearch
from core.pool.query.viewreader import ViewReader
from core.pool.store.database import Database
from core.pool.store.writer import Writer
from core.types import View

FEW_STEPS = 20_000
"""A pool of fewer steps answers at once as it is."""
MOST_ROWS = 1_000_000
"""Steps, the newest, whose rows are read ahead: some 95 bytes each of the database's memory."""
LOG_BYTES = 8 << 20
"""A write-ahead log of this size is taken in where nobody wrote since the last look."""


class Cache:
    """``pool.cache``: what is kept in memory. Safe in any thread.

    Attributes:
        columns: columns of steps as numbers, and the facet index.
        texts: what text search knows of the messages.
    """

    def __init__(self, database: Database, writer: Writer, reader: ViewReader, texts: TextSearch) -> None:
        self._db, self._writer, self._reader = database, writer, reader
        self.columns, self.texts = Numbers(database, reader), texts
        self._answers = Kept()
        self._rows_are_read = False
        self._n_writes_seen = -1

    def kept(self, question: tuple[Any, ...], ask: Callable[[], Answer]) -> Answer:
        """What ``ask`` says, kept until something is written; ``question`` tells it from others."""
        if self._db.is_supposing:
            return ask()
        return self._answers.get(self._db.n_writes, question, ask)

    def ask(self, question: Callable[..., Answer], view: View, *more: Any) -> Answer:
        """Answer of a function in ``query`` about a view, kept until something is written."""

        def ask() -> Answer:
            with self._reader.reading(view) as (cursor, seen):
                return question(cursor, seen, *more)

        return self.kept((question.__name__, view, *more), ask)

    def warm(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Read what pages of a big pool need before they ask, and again what fell behind.

        Args:
            stop: asked now and then; True ends it.
        """
        if self._writer.next["step_id"] < FEW_STEPS or stop():
            return
        at_rest, self._n_writes_seen = self._n_writes_seen == self._db.n_writes, self._db.n_writes
        if at_rest and self._db.log_bytes >= LOG_BYTES:
            self._db.checkpoint()
        if not self._rows_are_read:
            with self._db.read() as cursor:
                touch_rows(cursor, MOST_ROWS)
            self._rows_are_read = True
        self.columns.read_ahead(stop)
        while not stop():
            began = time.perf_counter()
            if not self.prepare_search():
                return
            time.sleep(time.perf_counter() - began)  # half of one core: the first minute is others' too

    def prepare_search(self) -> bool:
        """Make text search quick for some more messages: False when none are left for now. Some 100 ms of one core.

        A search is exact however often this was called.
        """
        with self._db.read() as cursor:
            return self.texts.prepare(cursor)
