"""Journal positions that readers of the pool wait for, so that a client reads what it has written."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping


class ExpectedPositions:
    """The last record of each segment whose storage was confirmed to a client. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offsets: dict[str, int] = {}

    def add(self, positions: Iterable[tuple[str, int]]) -> None:
        """Expect records, ``(segment, offset)`` each."""
        with self._lock:
            for segment, offset in positions:
                self._offsets[segment] = max(offset, self._offsets.get(segment, -1))

    def reached(self, read: Mapping[str, int]) -> bool:
        """Whether every expected record lies before the position read in its segment; such records are dropped."""
        if not self._offsets:
            return True
        with self._lock:
            self._offsets = {name: offset for name, offset in self._offsets.items() if read.get(name, 0) <= offset}
            return not self._offsets
