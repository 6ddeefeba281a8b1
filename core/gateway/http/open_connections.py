"""The open connections of one server: how many there may be, and which of them have waited too long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from core.gateway.http.limits import BODIES_AT_ONCE, Limits

MIN_AGE_S: Final = 1.0
"""A connection that has been idle for less is likely to be used again at once, and is not taken for another one."""
SPARE: Final = 16
"""Beyond the cap so many more, and an eighth of it, are told why they are not served."""


class Connection(Protocol):
    """What is known here of a connection."""

    def check(self, now: float) -> None:
        """Close it where it has waited too long."""
        ...

    def give_way(self) -> None:
        """Close it for another one."""
        ...


class OpenConnections:
    """The connections of one event loop.

    Args:
        limits: what each may take.
        refused: told the reason of everything that is refused.

    Attributes:
        held_bytes: of request bodies whose calls are not answered yet.
    """

    def __init__(self, limits: Limits, refused: Callable[[str], None] = lambda _: None) -> None:
        self.limits = limits
        self.refused = refused
        self.held_bytes = 0
        self.most = limits.n_connections
        self._open: set[Connection] = set()
        self._waiting: dict[Connection, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def full(self) -> bool:
        """Whether there are more connections than there may be."""
        return len(self._open) > self.most

    @property
    def crowded(self) -> bool:
        """Whether as much of bodies is held as may be held at a time."""
        return self.held_bytes > BODIES_AT_ONCE * self.limits.max_body_bytes

    def opened(self, connection: Connection, now: float) -> bool:
        """A new connection. False: there are so many that this one can't even be told."""
        self._open.add(connection)
        self._waiting[connection] = now
        if self._timer is None:
            self._watch()
        if self.full:
            longest, since = next(iter(self._waiting.items()))
            if now - since >= MIN_AGE_S:
                self.closed(longest)
                longest.give_way()
        return len(self._open) <= self.most + self.most // 8 + SPARE

    def closed(self, connection: Connection) -> None:
        """It is no more."""
        self._open.discard(connection)
        self._waiting.pop(connection, None)

    def waits(self, connection: Connection, now: float) -> None:
        """The client is to send the head of its next request, or is at it: such a connection gives way to others."""
        self._waiting.pop(connection, None)
        if connection in self._open:
            self._waiting[connection] = now

    def busy(self, connection: Connection) -> None:
        """It has a request."""
        self._waiting.pop(connection, None)

    def _watch(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self.limits.check_every_s, self._look)

    def _look(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for connection in list(self._open):
            connection.check(now)
        if self._open:
            self._watch()
