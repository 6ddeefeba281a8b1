"""Holds the calls of a gateway worker that has not run for a while until it has applied the owner's messages.

The owner waits some seconds for every worker to apply a revoked key or a new policy version, then it answers without
the workers that are late. Such a worker, stopped by a signal or starved of processor time, must not serve the calls
that wait at its socket before it has read these messages. So after each pause it asks the owner for an answer, which
arrives behind all earlier messages, and holds calls until then.

On another machine the worker may run while the owner's messages do not arrive. There it asks each second, and an answer
counts for ``lease_s`` seconds from its question. The owner waits longer than that for a change to be applied, so a
change is in force when its call returns: applied, or the worker holds calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from core.errors import StudioError

PAUSE_S: Final = 1.0
"""A longer time without ``tick`` is a pause, seconds. Shorter than the owner waits for a worker."""
WAIT_S: Final = 30.0
"""How long a call waits for the owner, seconds."""
LEASE_S: Final = 3.0
"""How long an answer counts on another machine, seconds. Shorter than the owner waits for a worker."""
ASK_EVERY_S: Final = 1.0
"""Between the questions of a worker on another machine, seconds."""


class OwnerSilent(StudioError):
    """This process was stopped, and the owner has not yet told it what has changed."""

    type = "owner_away"
    http_status = 503
    retry_after_s = 1.0


class Fence:
    """Open while the worker runs; closed after a pause, until the owner has answered. Thread-safe.

    Args:
        send: sends a message to the owner, which returns its ``fence`` number.
        lease_s: how long an answer counts, seconds; None: until the next pause, for a worker on the owner's machine.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        send: Callable[[Mapping[str, Any]], None],
        *,
        lease_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send = send
        self._lease_s = lease_s
        self._clock = clock
        self._lock = threading.Lock()
        self._seen_at = clock()
        self._n_asked = 0
        self._needed = 0
        """The question whose answer opens the fence: it was asked after the last pause."""
        self._asked_at: dict[int, float] = {}
        """Questions without an answer -> when they were asked, seconds; with a lease only."""
        self._until = math.inf if lease_s is None else -math.inf
        self._last_asked_at = -math.inf
        self._closed = False
        self._held: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def tick(self) -> None:
        """Note that the process runs. Call it several times per ``PAUSE_S``."""
        with self._lock:
            now = self._clock()
            if now - self._seen_at > PAUSE_S:
                # Before `_seen_at`: a call reads them in the other order, without the lock.
                self._closed = True
                self._ask(now)
                self._needed = self._n_asked
            elif self._lease_s is not None and now - self._last_asked_at >= ASK_EVERY_S:
                self._ask(now)
            self._seen_at = now

    def _ask(self, now: float) -> None:
        self._n_asked += 1
        self._last_asked_at = now
        if self._lease_s is not None:
            self._asked_at[self._n_asked] = now
        self._send({"fence": self._n_asked})

    def handle_answer(self, number: int) -> None:
        """Handle the owner's answer: all messages sent before it are applied."""
        with self._lock:
            if self._lease_s is not None:
                asked_at = self._asked_at.get(number, -math.inf)
                self._asked_at = {one: at for one, at in self._asked_at.items() if one > number}
                self._until = max(self._until, asked_at + self._lease_s)
            if number >= self._needed:
                # An earlier one is from before the last pause.
                self._closed = False
            if self._closed or self._clock() >= self._until:
                return
            held, self._held = self._held, []
        for loop, released in held:
            loop.call_soon_threadsafe(released.set)

    @property
    def is_open(self) -> bool:
        """Whether a call may begin now: nothing that the owner has sent can be missing."""
        now = self._clock()
        return now - self._seen_at <= PAUSE_S and not self._closed and now < self._until

    @property
    def lease_ended(self) -> bool:
        """Whether the owner may have changed something that has not arrived, because it can't be reached."""
        return self._clock() >= self._until

    async def passed(self) -> None:
        """Wait while the fence is closed. Raises OwnerSilent when the owner gives no answer."""
        if self.is_open:
            return
        self.tick()
        released = asyncio.Event()
        with self._lock:
            if not self._closed and self._clock() < self._until:
                return
            entry = (asyncio.get_running_loop(), released)
            self._held.append(entry)
        try:
            await asyncio.wait_for(released.wait(), WAIT_S)
        except TimeoutError as error:
            with self._lock, contextlib.suppress(ValueError):
                self._held.remove(entry)
            raise OwnerSilent("the service's main process does not answer", hint="try again") from error
