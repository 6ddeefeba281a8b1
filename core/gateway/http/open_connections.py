"""The open connections of one server: how many are allowed, and which have waited too long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from core.gateway.http.limits import BODIES_AT_ONCE, ServerLimits

MIN_AGE_S: Final = 1.0
"""A connection idle for less is likely to be reused at once, so it is not closed to make room."""
PAUSE_S: Final = 1.0
"""A check that is later than this shows that the process did not run, seconds."""
SPARE_CONNECTIONS: Final = 16
"""Connections above the limit, besides an eighth of it, that still get an error response."""


class AgentConnection(Protocol):
    """The interface of one connection."""

    def check(self, now: float) -> None:
        """Close it if it has waited too long."""
        ...

    def make_room(self) -> None:
        """Close it to make room for another one."""
        ...

    def excuse(self, seconds: float) -> None:
        """Do not count these seconds against the client."""
        ...


class OpenConnections:
    """The connections of one event loop.

    Args:
        limits: limits of each connection and of all.
        refused: called with the reason of each refusal.

    Attributes:
        held_bytes: request bodies in memory whose calls are not answered yet.
    """

    def __init__(self, limits: ServerLimits, refused: Callable[[str], None] = lambda _: None) -> None:
        self.limits = limits
        self.refused = refused
        self.held_bytes = 0
        self.most = limits.n_connections
        self._open: set[AgentConnection] = set()
        self._waiting: dict[AgentConnection, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    @property
    def full(self) -> bool:
        """Whether the number of connections is over the limit."""
        return len(self._open) > self.most

    @property
    def memory_full(self) -> bool:
        """Whether request bodies in memory have reached their limit."""
        return self.held_bytes > BODIES_AT_ONCE * self.limits.max_body_bytes

    def opened(self, connection: AgentConnection, now: float) -> bool:
        """Register a new connection. False: there are too many even for an error response."""
        self._open.add(connection)
        self._waiting[connection] = now
        if self._timer is None:
            self._watch()
        if self.full:
            longest, since = next(iter(self._waiting.items()))
            if now - since >= MIN_AGE_S:
                self.closed(longest)
                longest.make_room()
        return len(self._open) <= self.most + self.most // 8 + SPARE_CONNECTIONS

    def closed(self, connection: AgentConnection) -> None:
        """Forget a closed connection."""
        self._open.discard(connection)
        self._waiting.pop(connection, None)

    def mark_idle(self, connection: AgentConnection, now: float) -> None:
        """Note that the connection waits for the head of its next request; it may be closed to make room."""
        self._waiting.pop(connection, None)
        if connection in self._open:
            self._waiting[connection] = now

    def mark_busy(self, connection: AgentConnection) -> None:
        """Note that the connection has a request."""
        self._waiting.pop(connection, None)

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        self._due = loop.time() + self.limits.check_every_s
        self._timer = loop.call_at(self._due, self._check_all)

    def _check_all(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        late = now - self._due
        for connection in list(self._open):
            if late > PAUSE_S:
                # What clients have sent meanwhile waits in the kernel.
                connection.excuse(late)
            connection.check(now)
        if self._open:
            self._watch()
