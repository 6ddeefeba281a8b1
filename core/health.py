"""Whether calls are captured and arrive: what ``/healthz``, the doctor and the pages say."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from core.ingest import Ingest
from core.journal import Journal

STALL_S: Final = 30.0
"""Calls that wait for so long while none gets into the pool: ingest hangs."""
PROBE_EVERY_S: Final = 2.0
LOW_BYTES: Final = 4 << 20
"""With less room than this it is tried whether the journal can still be written."""


class Health:
    """The state of capture and arrival.

    Args:
        journal: the one of this process; others of the folder are asked through ``elsewhere``.
        pool_damage: what is wrong with the pool's file, None for nothing.
        ended: lines about threads that have ended.
        elsewhere: lines about other gateway processes that can't capture.
    """

    def __init__(
        self,
        journal: Journal,
        ingest: Ingest,
        *,
        pool_damage: Callable[[], str | None],
        ended: Callable[[], Sequence[str]],
        elsewhere: Callable[[], Sequence[str]],
    ) -> None:
        self._journal, self._ingest = journal, ingest
        self._pool_damage, self._ended, self._elsewhere = pool_damage, ended, elsewhere
        self._probed_at = 0.0
        self._n_ingested = -1
        self._moved_at = time.monotonic()

    def look(self) -> None:
        """For now and then: see whether the disk still takes writes where that is in doubt."""
        now = time.monotonic()
        if now - self._probed_at < PROBE_EVERY_S:
            return
        self._probed_at = now
        if self._journal.error is not None or shutil.disk_usage(self._journal.directory).free < LOW_BYTES:
            self._journal.probe()

    def problems(self) -> list[dict[str, Any]]:
        """What is wrong now: ``{part, message, stops}``; ``stops``: calls are not captured, or do not arrive."""
        checks = [("journal", self._journal.error, True)]
        checks += [("gateway", line, True) for line in self._elsewhere()]
        checks += [("ingest", self._ingest.last_error or self._stall(), True)]
        checks += [("pool", self._pool_damage(), True)]
        checks += [("thread", line, False) for line in self._ended()]
        if n := self._ingest.n_damages:
            checks.append(("journal", f"damaged in {n} places; `claw-studio doctor` says where", False))
        return [{"part": part, "message": text, "stops": stops} for part, text, stops in checks if text is not None]

    def _stall(self) -> str | None:
        now, n = time.monotonic(), self._ingest.n_ingested
        lag = self._ingest.lag_s
        if n != self._n_ingested or lag == 0.0:
            self._n_ingested, self._moved_at = n, now
        still = now - self._moved_at
        if still > STALL_S and lag > STALL_S:
            return f"nothing has got into the pool for {still:.0f} s; the oldest call waits for {lag:.0f} s"
        return None
