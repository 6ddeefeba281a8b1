"""The policy version, and the pause while a trainer syncs weights.

Between ``sync_started`` and ``sync_finished`` new calls wait, up to a limit; calls in flight continue and are stamped
with the version at their start and at their end. A sync that is never finished expires, so a crashed trainer can't stop
capture. The engine's weights are unknown then, so calls are stamped with both versions.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from core.errors import InvalidInput, StudioError
from core.scrub import scrub_metadata
from core.types import PolicyEvent, PolicyEventKind

HISTORY = 1000
_POLICY = b'{"kind":"policy"'
SYNC_TIMEOUT_S = 120.0


class SyncInProgress(StudioError):
    """A weight sync takes longer than a call may wait."""

    type = "policy_sync_in_progress"
    http_status = 503

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(
            "the policy's weights are being synchronised",
            hint=f"try again in {retry_after_s:.0f} s; POST /api/v1/policy sync_finished or DELETE /api/v1/policy/sync"
            " ends the pause",
        )
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class WeightSync:
    """A weight sync that has started and is not finished.

    Attributes:
        version: the version that it will activate.
        started_at: UTC seconds since the epoch.
        began: on the monotonic clock, seconds.
    """

    version: int
    started_at: float
    began: float


class PolicyState:
    """Current version, whether a sync runs, how many calls are in flight. Thread-safe.

    Attributes:
        version: counter of the weights that sample now; None until a trainer reports one.
        sync_timeout_s: a longer sync stops holding calls, seconds.
        history: the last events, oldest first.
        n_in_flight: calls between ``start`` and ``finish``; 0 while syncing means drained.
    """

    def __init__(
        self, *, sync_timeout_s: float = SYNC_TIMEOUT_S, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.version: int | None = None
        self.sync_timeout_s = sync_timeout_s
        self.history: deque[PolicyEvent] = deque(maxlen=HISTORY)
        self.n_in_flight = 0
        self._sync: WeightSync | None = None
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._held: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._idle: list[asyncio.Event] = []
        self._listener: Callable[[PolicyEvent], None] | None = None
        self._on_ended: Callable[[], None] | None = None

    @property
    def syncing(self) -> bool:
        """Whether calls wait for a weight sync."""
        return self._left_s() > 0

    @property
    def sync_expired(self) -> bool:
        """Whether a sync was started and not finished in time, so that calls continue without it."""
        return self._sync is not None and not self.syncing

    def _left_s(self) -> float:
        """How long the sync may still hold calls, seconds; 0 if none does."""
        sync = self._sync
        return 0.0 if sync is None else max(0.0, sync.began + self.sync_timeout_s - self._monotonic())

    def listen(self, listener: Callable[[PolicyEvent], None], on_ended: Callable[[], None]) -> None:
        """Call ``listener`` for each event from now on, once it is applied, in the caller's thread.

        ``on_ended`` is called for a sync that ``end_sync`` ended.
        """
        self._listener, self._on_ended = listener, on_ended

    def apply(self, event: str, version: int, *, at: float, metadata: Mapping[str, Any] | None = None) -> PolicyEvent:
        """Apply a trainer's report; ``sync_started`` keeps the version until ``sync_finished``.

        Raises:
            InvalidInput: an unknown event, or a version that is not an integer >= 0.
        """
        if event not in set(PolicyEventKind):
            raise InvalidInput(f"unknown policy event {event!r}", field="event", hint=", ".join(PolicyEventKind))
        if isinstance(version, bool) or not isinstance(version, int) or version < 0:
            raise InvalidInput("the version must be an integer >= 0", field="version")
        entry = PolicyEvent(version, event, at, scrub_metadata(metadata or {}))
        with self._lock:
            self.history.append(entry)
            held: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
            if event == PolicyEventKind.SYNC_STARTED:
                self._sync = WeightSync(version, at, self._monotonic())
            else:
                self.version = version
                held = self._release()
        if self._listener is not None:
            self._listener(entry)
        _wake(held)
        return entry

    def end_sync(self) -> bool:
        """End the sync and keep the version from before it; False if there is none."""
        with self._lock:
            if self._sync is None:
                return False
            held = self._release()
        if self._on_ended is not None:
            self._on_ended()
        _wake(held)
        return True

    def _release(self) -> list[tuple[asyncio.AbstractEventLoop, asyncio.Event]]:
        """Forget the sync; returns the calls that it held. The lock must be held."""
        self._sync = None
        held, self._held = self._held, []
        return held

    def sync_json(self) -> dict[str, Any] | None:
        """The unfinished sync: ``{state, version, started_at, elapsed_s, timeout_s}``; None without one.

        ``state`` is ``running`` or ``expired``; times are seconds.
        """
        with self._lock:
            sync = self._sync
        if sync is None:
            return None
        elapsed = self._monotonic() - sync.began
        return {
            "state": "running" if elapsed < self.sync_timeout_s else "expired",
            "version": sync.version,
            "started_at": sync.started_at,
            "elapsed_s": elapsed,
            "timeout_s": self.sync_timeout_s,
        }

    def resume_sync(self, sync: Mapping[str, Any] | None) -> None:
        """Take over the ``sync_json`` of another process."""
        if sync is not None:
            self._sync = WeightSync(sync["version"], sync["started_at"], self._monotonic() - sync["elapsed_s"])

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

    def weights_in_force(self, engine: str) -> tuple[str, int] | None:
        """Folder and version of the weights that the last sync through the studio loaded into an engine.

        None if there was none, or if another version was reported since.
        """
        with self._lock:
            last = next((one for one in reversed(self.history) if one.event != PolicyEventKind.SYNC_STARTED), None)
            if last is None:
                return None
            of_version = (one for one in reversed(self.history) if one.version == last.version)
            sync = next((one for one in of_version if one.event == PolicyEventKind.SYNC_FINISHED), None)
        path = None if sync is None else sync.metadata.get("path")
        known = isinstance(path, str) and sync is not None and engine in (sync.metadata.get("engines") or ())
        return (str(path), last.version) if known else None

    async def drained(self) -> None:
        """Return when no call of this process is in flight. Call it on the event loop of the calls."""
        if self.n_in_flight > 0:
            idle = asyncio.Event()
            self._idle.append(idle)
            await idle.wait()

    def restore(self, events: Iterable[PolicyEvent]) -> None:
        """Load the events of earlier runs, oldest first. An unfinished sync does not hold calls."""
        with self._lock:
            for event in events:
                self.history.append(event)
                if event.event != PolicyEventKind.SYNC_STARTED:
                    self.version = event.version

    async def start(self, max_wait_s: float) -> int | None:
        """Begin a call; waits while weights are synced.

        Returns:
            The version that samples it.

        Raises:
            SyncInProgress: the sync did not end within ``max_wait_s`` seconds.
        """
        if self._sync is not None and (remaining_s := self._left_s()):
            await self._wait_for_release(max_wait_s, remaining_s)
        self.n_in_flight += 1
        return self.version

    def finish(self, reported: int | None = None) -> int | None:
        """End a call begun with ``start``.

        Args:
            reported: the newest weights that sampled its answer, as the engine says; None: it does not say.

        Returns:
            The version at its end. It is the version that a sync is to activate if the engine already sampled with it,
            because the call took longer than the sync waits for calls in flight, or if the sync has expired.
        """
        self.n_in_flight -= 1
        if self.n_in_flight <= 0 and self._idle:
            for idle in self._idle:
                idle.set()
            self._idle.clear()
        sync = self._sync
        if sync is None or self.version is None:
            return self.version
        return sync.version if reported == sync.version or not self.syncing else self.version

    async def _wait_for_release(self, max_wait_s: float, left_s: float) -> None:
        released = asyncio.Event()
        with self._lock:
            if self._sync is None:
                return
            entry = (asyncio.get_running_loop(), released)
            self._held.append(entry)
        try:
            await asyncio.wait_for(released.wait(), min(max_wait_s, left_s))
        except TimeoutError as error:
            with self._lock, contextlib.suppress(ValueError):
                self._held.remove(entry)
            if self._left_s() > 0 and max_wait_s < left_s:
                raise SyncInProgress(max(1.0, min(max_wait_s, 10.0))) from error


def reported_events(payloads: Iterable[bytes]) -> Iterator[PolicyEvent]:
    """The reports among journal records, in order: those that an earlier process had no time to put into the pool."""
    for payload in payloads:
        if payload.startswith(_POLICY):
            record = orjson.loads(payload)
            yield PolicyEvent(record["version"], record["event"], record["at"], record["metadata"])


def _wake(held: Iterable[tuple[asyncio.AbstractEventLoop, asyncio.Event]]) -> None:
    for loop, released in held:
        # A closed loop holds no calls.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(released.set)
