"""Health check: whether calls are captured and ingested, for ``/healthz``, the doctor and the pages."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from core.ingest import Ingest
from core.journal import Journal

STALL_S: Final = 30.0
"""Ingest is reported as hanging if calls wait this long while none is added to the pool, seconds."""
PROBE_EVERY_S: Final = 2.0
LOW_BYTES: Final = 4 << 20
"""Below this free space a test write checks the journal, bytes."""


class Health:
    """The state of capture and ingest.

    Args:
        journal: the journal of this process; other writers are reported by ``elsewhere``.
        pool_damage: returns a description of damage to the pool's file; None if there is none.
        ended: returns one line per thread that has ended.
        elsewhere: returns one line per other gateway process that can't capture calls.
        nodes: returns one line per problem of another machine; calls go on at the others.
    """

    def __init__(
        self,
        journal: Journal,
        ingest: Ingest,
        *,
        pool_damage: Callable[[], str | None],
        ended: Callable[[], Sequence[str]],
        elsewhere: Callable[[], Sequence[str]],
        nodes: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._journal, self._ingest = journal, ingest
        self._pool_damage, self._ended, self._elsewhere = pool_damage, ended, elsewhere
        self._nodes = nodes
        self._probed_at = 0.0
        self._n_ingested = -1
        self._moved_at = time.monotonic()

    def check(self) -> None:
        """Write a test record if the journal has an error or the disk is nearly full. Call it often."""
        now = time.monotonic()
        if now - self._probed_at < PROBE_EVERY_S:
            return
        self._probed_at = now
        journal = self._journal
        if journal.error or not journal.in_place or shutil.disk_usage(journal.directory).free < LOW_BYTES:
            journal.probe()

    def problems(self) -> list[dict[str, Any]]:
        """Current problems: ``{part, message, stops}``; ``stops``: calls are not captured or not ingested."""
        checks = [("journal", self._journal.error, True)]
        checks += [("gateway", line, True) for line in self._elsewhere()]
        checks += [("ingest", self._ingest.last_error or self._stall(), True)]
        checks += [("pool", self._pool_damage(), True)]
        checks += [("cluster", line, False) for line in self._nodes()]
        checks += [("thread", line, False) for line in self._ended()]
        if n := self._ingest.n_damages:
            checks.append(("journal", f"damaged in {n} places; `claw-studio doctor` lists them", False))
        return [{"part": part, "message": text, "stops": stops} for part, text, stops in checks if text is not None]

    def _stall(self) -> str | None:
        now, n = time.monotonic(), self._ingest.n_ingested
        lag = self._ingest.unread_s
        if n != self._n_ingested or lag == 0.0:
            self._n_ingested, self._moved_at = n, now
        still = now - self._moved_at
        if still > STALL_S and lag > STALL_S:
            return f"no call was added to the pool for {still:.0f} s; the oldest has been waiting for {lag:.0f} s"
        return None
