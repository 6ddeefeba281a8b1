"""Health of an engine, from its calls and from periodic checks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
N_FAILURES = 3
CHECK_EVERY_S = 5.0


class EngineHealth:
    """Usable unless it was unreachable or failed ``N_FAILURES`` times in a row; usable again after a pause.

    Pauses double from ``FIRST_PAUSE_S`` to ``LONGEST_PAUSE_S`` while failures continue.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.checked_at: float | None = None
        self._clock = clock
        self._n_failures = 0
        self._n_pauses = 0
        self._until = 0.0

    @property
    def usable(self) -> bool:
        """Whether calls may be sent to it."""
        return self._clock() >= self._until

    @property
    def doubtful(self) -> bool:
        """Whether its last call or check failed."""
        return self._n_failures > 0

    def succeeded(self) -> None:
        """Note a success."""
        self._n_failures = self._n_pauses = 0
        self._until = 0.0

    def failed(self, *, gone: bool) -> None:
        """Note a failure. ``gone``: the engine is unreachable, so the next call would fail too."""
        self._n_failures += 1
        if gone or self._n_failures >= N_FAILURES:
            pause_s = min(FIRST_PAUSE_S * 2**self._n_pauses, LONGEST_PAUSE_S)
            self._n_pauses += 1
            self._until = self._clock() + pause_s

    def checked(self, alive: bool) -> None:
        """Note the result of a check."""
        self.checked_at = self._clock()
        if alive:
            self.succeeded()
        else:
            self.failed(gone=True)


class Checkable(Protocol):
    """An engine with a health check."""

    name: str
    health: EngineHealth

    async def check(self) -> bool | None:
        """Whether it is alive; None if it can't be checked."""
        ...


async def check_periodically(engines: Callable[[], Sequence[Checkable]], every_s: float = CHECK_EVERY_S) -> None:
    """Check all engines periodically, until cancelled."""
    while True:
        await asyncio.sleep(every_s)
        await asyncio.gather(*(_check(engine) for engine in engines()))


async def _check(engine: Checkable) -> None:
    alive = await engine.check()
    if alive is None:
        return
    if alive == engine.health.doubtful or engine.health.checked_at is None:
        log.info("engine %s is %s", engine.name, "alive" if alive else "gone")
    engine.health.checked(alive)
