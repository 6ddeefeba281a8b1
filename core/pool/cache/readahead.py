"""A thread that fills the caches of a big pool before pages need them (``core.pool.cache.cache``)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import duckdb

from core.errors import PoolError

EVERY_S = 20.0

log = logging.getLogger(__name__)


class CacheWarmer:
    """A thread that warms a pool until it is stopped, which must be before the pool is closed.

    Args:
        warm: ``pool.cache.warm``.
        every_s: seconds between two runs of ``warm``.
    """

    def __init__(self, warm: Callable[[Callable[[], bool]], None], *, every_s: float = EVERY_S) -> None:
        self._warm, self._every_s = warm, every_s
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        """Whether the thread lives."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Begin, again if the thread has ended."""
        self._thread = threading.Thread(target=self._run, name="pool-warming", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End after the column that is being read."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                self._warm(self._stopping.is_set)
            except (duckdb.Error, PoolError) as error:
                log.warning("pages will be slower at first: the pool could not be read ahead: %s", error)
            if self._stopping.wait(self._every_s):
                return
