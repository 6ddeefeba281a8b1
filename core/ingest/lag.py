"""How far the pool is behind the journal, measured at the journal's end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path

from core.errors import JournalError
from core.ingest.order import time_of
from core.journal import JournalReader, Record


class LagMeter:
    """Finds the oldest record past given positions.

    Args:
        journal_dir: folder of the segments.
        clock: UTC seconds.
    """

    def __init__(self, journal_dir: Path, clock: Callable[[], float]) -> None:
        self._reader = JournalReader(journal_dir)
        self._clock = clock
        self._lock = threading.Lock()
        self._level_at = clock()
        self._begun = 0
        self._measurement = 0
        self._lag_s = 0.0

    def seconds(self, positions: Callable[[], Mapping[str, int]]) -> float:
        """Age of the oldest record past the positions; 0 when there is none.

        If the journal can't be read (no descriptors, no permission, its folder is gone), it is the time since the lag
        was last 0.
        Concurrent callers share one measurement that began after their calls: pages and monitors call this often.
        """
        n_begun = self._begun
        with self._lock:
            if self._measurement <= n_begun:
                self._begun += 1
                self._lag_s = self._seconds(positions())
                self._measurement = self._begun
            return self._lag_s

    def _seconds(self, positions: Mapping[str, int]) -> float:
        now = self._clock()
        try:
            unread = self._oldest(positions)
        except (OSError, JournalError):
            return max(0.0, now - self._level_at)
        if not unread:
            self._level_at = now
            return 0.0
        times = [at for at in map(time_of, unread) if at is not None]
        return max(0.0, now - min(times, default=self._level_at))

    def _oldest(self, positions: Mapping[str, int]) -> list[Record]:
        """The first unread record of each writer that has one."""
        records: list[Record] = []
        for writer in self._reader.read(positions):
            records += islice((one for one in writer if isinstance(one, Record)), 1)
        return records
