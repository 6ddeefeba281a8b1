"""Whether an engine is worth asking: from how its calls went, and by asking after it in between."""

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


class Health:
    """Usable until it was found gone, or failed ``N_FAILURES`` times in a row; then usable again after a pause.

    Pauses double from ``FIRST_PAUSE_S`` to ``LONGEST_PAUSE_S`` while nothing gets better.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.checked_at: float | None = None
        self._clock = clock
        self._n_failures = 0
        self._n_pauses = 0
        self._until = 0.0

    @property
    def usable(self) -> bool:
        """False while it should be left alone."""
        return self._clock() >= self._until

    @property
    def doubtful(self) -> bool:
        """Whether its last call or check failed."""
        return self._n_failures > 0

    def succeeded(self) -> None:
        """It answered."""
        self._n_failures = self._n_pauses = 0
        self._until = 0.0

    def failed(self, *, gone: bool) -> None:
        """It did not. ``gone``: nobody is there, so the next call would fare no better."""
        self._n_failures += 1
        if gone or self._n_failures >= N_FAILURES:
            pause_s = min(FIRST_PAUSE_S * 2**self._n_pauses, LONGEST_PAUSE_S)
            self._n_pauses += 1
            self._until = self._clock() + pause_s

    def checked(self, alive: bool) -> None:
        """What asking after it showed."""
        self.checked_at = self._clock()
        if alive:
            self.succeeded()
        else:
            self.failed(gone=True)


class Checked(Protocol):
    """An engine that can be asked after."""

    name: str
    health: Health

    async def check(self) -> bool | None:
        """Whether it is alive; None where that can't be asked."""
        ...


async def watch(engines: Callable[[], Sequence[Checked]], every_s: float = CHECK_EVERY_S) -> None:
    """Ask after engines for ever."""
    while True:
        await asyncio.sleep(every_s)
        await asyncio.gather(*(_check(engine) for engine in engines()))


async def _check(engine: Checked) -> None:
    alive = await engine.check()
    if alive is None:
        return
    if alive == engine.health.doubtful or engine.health.checked_at is None:
        log.info("engine %s is %s", engine.name, "alive" if alive else "gone")
    engine.health.checked(alive)
