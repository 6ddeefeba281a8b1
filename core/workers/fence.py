"""Holds the calls of a gateway worker that has not run for a while until it has applied the owner's messages.

The owner waits some seconds for every worker to apply a revoked key or a new policy version, then it answers without
the workers that are late. Such a worker, stopped by a signal or starved of processor time, must not serve the calls
that wait at its socket before it has read these messages. So after each pause it asks the owner for an answer, which
arrives behind all earlier messages, and holds calls until then.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from core.errors import StudioError

PAUSE_S: Final = 1.0
"""A longer time without ``tick`` is a pause, seconds. Shorter than the owner waits for a worker."""
WAIT_S: Final = 30.0
"""How long a call waits for the owner, seconds."""


class OwnerSilent(StudioError):
    """This process was stopped, and the owner has not yet told it what has changed."""

    type = "owner_away"
    http_status = 503
    retry_after_s = 1.0


class Fence:
    """Open while the worker runs; closed after a pause, until the owner has answered. Thread-safe.

    Args:
        send: sends a message to the owner, which returns its ``fence`` number.
        clock: monotonic seconds.
    """

    def __init__(
        self, send: Callable[[Mapping[str, Any]], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._send = send
        self._clock = clock
        self._lock = threading.Lock()
        self._seen_at = clock()
        self._n_asked = 0
        self._closed = False
        self._held: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def tick(self) -> None:
        """Note that the process runs. Call it several times per ``PAUSE_S``."""
        with self._lock:
            now = self._clock()
            if now - self._seen_at > PAUSE_S:
                # Before `_seen_at`: a call reads them in the other order, without the lock.
                self._closed = True
                self._n_asked += 1
                self._send({"fence": self._n_asked})
            self._seen_at = now

    def handle_answer(self, number: int) -> None:
        """Handle the owner's answer: all messages sent before it are applied."""
        with self._lock:
            if number != self._n_asked:
                # The process has paused again since it asked.
                return
            self._closed = False
            held, self._held = self._held, []
        for loop, released in held:
            loop.call_soon_threadsafe(released.set)

    async def passed(self) -> None:
        """Wait while the fence is closed. Raises OwnerSilent when the owner gives no answer."""
        if self._clock() - self._seen_at <= PAUSE_S and not self._closed:
            return
        self.tick()
        released = asyncio.Event()
        with self._lock:
            if not self._closed:
                return
            entry = (asyncio.get_running_loop(), released)
            self._held.append(entry)
        try:
            await asyncio.wait_for(released.wait(), WAIT_S)
        except TimeoutError as error:
            with self._lock, contextlib.suppress(ValueError):
                self._held.remove(entry)
            raise OwnerSilent("the service's main process does not answer", hint="try again") from error
