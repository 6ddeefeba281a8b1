"""What pages of a big pool need is read before they ask, in a thread of its own.

The first page by a column, or the first facets, would wait for a million rows. Here the facet index, the columns and
some of every stretch of rows are read when the pool is opened, and what was kept is brought up to date now and then:
columns that nobody asked for while a thousand writes came in would have to be read anew. Signs for text search are
made after that (``core.pool.textsigns``). A pool at rest takes its write-ahead log in, so that bulk labels seldom have
to. Nobody waits for it, and no answer is another than without it. Its memory is bounded: ``numbers.MOST_BYTES``,
``textsearch.MOST_BYTES``, and what the database keeps of ``MOST_ROWS`` rows within its own limit.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import duckdb

from core.pool.database import Database
from core.pool.listing import touch_rows
from core.pool.numbers import Numbers
from core.pool.textsearch import TextSearch

FEW_STEPS = 20_000
"""A pool of fewer steps answers at once as it is."""
MOST_ROWS = 1_000_000
"""Steps, the newest, whose rows are read ahead: some 95 bytes each of the database's memory."""
LOG_BYTES = 8 << 20
"""A write-ahead log of this size is taken in where nobody wrote since the last look."""
EVERY_S = 20.0

log = logging.getLogger(__name__)


class ReadAhead:
    """The part of ``Pool`` that reads what nobody has asked for yet."""

    _db: Database
    _next: dict[str, int]
    _numbers: Numbers
    _rows_are_read = False
    _n_writes_seen = -1

    def warm(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Read what pages of a big pool need before they ask, and again what fell behind.

        Args:
            stop: asked now and then; True ends it.
        """
        if self._next["step_id"] < FEW_STEPS or stop():
            return
        at_rest, self._n_writes_seen = self._n_writes_seen == self._db.n_writes, self._db.n_writes
        if at_rest and self._db.log_bytes >= LOG_BYTES:
            self._db.checkpoint()
        if not self._rows_are_read:
            with self._db.read() as cursor:
                touch_rows(cursor, MOST_ROWS)
            self._rows_are_read = True
        self._numbers.read_ahead(stop)
        while not stop():
            began = time.perf_counter()
            if not self.prepare_search():
                return
            time.sleep(time.perf_counter() - began)  # half of one core: the first minute is others' too

    def prepare_search(self) -> bool:
        """Make text search quick for some more messages: False when none are left for now. Some 100 ms of one core.

        A search is exact however often this was called.
        """
        search: TextSearch = self._db.beside.setdefault("texts", TextSearch())
        with self._db.read() as cursor:
            return search.prepare(cursor)


class Warming:
    """A thread that warms a pool until it is stopped, which must be before the pool is closed.

    Args:
        warm: ``Pool.warm``.
        every_s: seconds between two looks at what fell behind.
    """

    def __init__(self, warm: Callable[[Callable[[], bool]], None], *, every_s: float = EVERY_S) -> None:
        self._warm, self._every_s = warm, every_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pool-warming", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the column that is being read."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                self._warm(self._stopping.is_set)
            except duckdb.Error as error:
                log.warning("pages will be slower at first: the pool could not be read ahead: %s", error)
            if self._stopping.wait(self._every_s):
                return
