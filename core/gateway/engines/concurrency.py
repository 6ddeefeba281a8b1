"""A limit of concurrent calls per engine, with a bounded queue."""

from __future__ import annotations

import asyncio
import threading
from collections import deque

from core.errors import EngineError

MAX_WAITING = 256
MAX_WAIT_S = 60.0


class EngineBusy(EngineError):
    """The engine's queue is full, or a call waited too long in it."""

    type = "engine_busy"
    http_status = 503

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message, hint=f"try again in {retry_after_s:.0f} s, or raise engine_concurrency")
        self.retry_after_s = retry_after_s


class ConcurrencyLimit:
    """Lets ``limit`` calls run at a time, first come, first served. Works across event loops.

    Args:
        limit: None means no limit.
        max_waiting: most calls in the queue.
        max_wait_s: longest wait in the queue, seconds.

    Attributes:
        n_inside: calls that run now.
    """

    def __init__(
        self, name: str, limit: int | None, *, max_waiting: int = MAX_WAITING, max_wait_s: float = MAX_WAIT_S
    ) -> None:
        self.limit = limit
        self.n_inside = 0
        self._name = name
        self._max_waiting = max_waiting
        self._max_wait_s = max_wait_s
        self._line: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()
        self._lock = threading.Lock()

    @property
    def n_waiting(self) -> int:
        """Calls in the queue."""
        return len(self._line)

    @property
    def full(self) -> bool:
        """Whether the next call would be refused."""
        return self.limit is not None and self.n_inside >= self.limit and len(self._line) >= self._max_waiting

    async def enter(self) -> None:
        """Wait for a slot, to be released by ``leave``.

        Raises:
            EngineBusy: the queue is full, or no slot became free in time.
        """
        with self._lock:
            if self.limit is None or self.n_inside < self.limit:
                self.n_inside += 1
                return
            if len(self._line) >= self._max_waiting:
                raise EngineBusy(
                    f"engine {self._name!r} works on {self.n_inside} calls and {len(self._line)} more are waiting"
                )
            loop = asyncio.get_running_loop()
            place: asyncio.Future[None] = loop.create_future()
            entry = (loop, place)
            self._line.append(entry)
        try:
            async with asyncio.timeout(self._max_wait_s):
                await place
        except BaseException as error:
            with self._lock:
                waits = entry in self._line
                if waits:
                    self._line.remove(entry)
            if not waits:
                # The slot was assigned while the wait was cancelled.
                self.leave()
            if isinstance(error, TimeoutError):
                raise EngineBusy(
                    f"engine {self._name!r} had no room within {self._max_wait_s:g} s", retry_after_s=5.0
                ) from error
            raise

    def leave(self) -> None:
        """Release the slot; the first call in the queue gets it."""
        with self._lock:
            if not self._line:
                self.n_inside -= 1
                return
            loop, place = self._line.popleft()
        loop.call_soon_threadsafe(_admit, place)


def _admit(place: asyncio.Future[None]) -> None:
    if not place.done():
        place.set_result(None)
