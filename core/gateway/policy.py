"""The policy's version, and the pause while a trainer exchanges the weights.

Between ``sync_started`` and ``sync_finished`` new calls wait, up to a bound; calls in flight run on and are
stamped with the version at their start and at their end.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from core.errors import InvalidInput, StudioError
from core.types import PolicyEvent, PolicyEventKind

HISTORY = 1000


class SyncInProgress(StudioError):
    """The weights are being exchanged for longer than a call may wait."""

    type = "policy_sync_in_progress"
    http_status = 503

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(
            "the policy's weights are being synchronised",
            hint=f"try again in {retry_after_s:.0f} s; POST /api/v1/policy sync_finished ends the pause",
        )
        self.retry_after_s = retry_after_s


class PolicyState:
    """Current version, whether a sync runs, how many calls are in flight. Thread-safe.

    Attributes:
        version: counter of the weights that sample now; None until a trainer reports one.
        syncing: True between ``sync_started`` and ``sync_finished``.
        history: the last events, oldest first.
        n_in_flight: calls between ``start`` and ``finish``; 0 while syncing means drained.
    """

    def __init__(self) -> None:
        self.version: int | None = None
        self.syncing = False
        self.history: deque[PolicyEvent] = deque(maxlen=HISTORY)
        self.n_in_flight = 0
        self._lock = threading.Lock()
        self._held: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._listener: Callable[[PolicyEvent], None] | None = None

    def listen(self, listener: Callable[[PolicyEvent], None]) -> None:
        """Have every event told that is applied from now on, once it is in force here, in the caller's thread."""
        self._listener = listener

    def apply(self, event: str, version: int, *, at: float, metadata: Mapping[str, Any] | None = None) -> PolicyEvent:
        """Take a trainer's report; ``sync_started`` keeps the version until ``sync_finished``.

        Raises:
            InvalidInput: no such event, or a version that is not an integer >= 0.
        """
        if event not in set(PolicyEventKind):
            raise InvalidInput(f"unknown policy event {event!r}", field="event", hint=", ".join(PolicyEventKind))
        if isinstance(version, bool) or not isinstance(version, int) or version < 0:
            raise InvalidInput("the version must be an integer >= 0", field="version")
        entry = PolicyEvent(version, event, at, dict(metadata or {}))
        with self._lock:
            self.history.append(entry)
            held: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
            if event == PolicyEventKind.SYNC_STARTED:
                self.syncing = True
            else:
                self.version = version
                self.syncing = False
                held, self._held = self._held, []
        if self._listener is not None:
            self._listener(entry)
        for loop, released in held:
            # A loop that has ended holds no call any more.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(released.set)
        return entry

    def history_json(self) -> list[dict[str, Any]]:
        """The events as JSON objects, newest first."""
        with self._lock:
            events = list(self.history)
        return [
            {
                "version": entry.version,
                "event": entry.event,
                "created_at": entry.created_at,
                "metadata": dict(entry.metadata),
            }
            for entry in reversed(events)
        ]

    def restore(self, events: Iterable[PolicyEvent]) -> None:
        """Take the events of earlier runs, oldest first. A sync that never finished does not hold calls."""
        with self._lock:
            for event in events:
                self.history.append(event)
                if event.event != PolicyEventKind.SYNC_STARTED:
                    self.version = event.version

    async def start(self, max_wait_s: float) -> int | None:
        """Begin a call: wait while the weights are exchanged.

        Returns:
            The version that samples it.

        Raises:
            SyncInProgress: the exchange did not end within ``max_wait_s`` seconds.
        """
        if self.syncing:
            await self._hold(max_wait_s)
        self.n_in_flight += 1
        return self.version

    def finish(self) -> int | None:
        """End a call begun with ``start``; returns the version that holds at its end."""
        self.n_in_flight -= 1
        return self.version

    async def _hold(self, max_wait_s: float) -> None:
        released = asyncio.Event()
        with self._lock:
            if not self.syncing:
                return
            entry = (asyncio.get_running_loop(), released)
            self._held.append(entry)
        try:
            await asyncio.wait_for(released.wait(), max_wait_s)
        except TimeoutError as error:
            with self._lock, contextlib.suppress(ValueError):
                self._held.remove(entry)
            raise SyncInProgress(max(1.0, min(max_wait_s, 10.0))) from error
