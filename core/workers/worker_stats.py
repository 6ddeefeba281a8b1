"""A worker's counters, which are reported to the owner and added up there."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter
from typing import Any, Final

from core.gateway.telemetry.stats import CallEvent, GatewayStats

_VALUES: Final = attrgetter(*(field.name for field in fields(CallEvent)))


class WorkerStats(GatewayStats):
    """Counters of one worker; finished calls are kept until they are reported."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        super().__init__(clock=clock)
        self._unreported: list[tuple[list[Any], bool]] = []
        self._unreported_refusals: Counter[str] = Counter()
        self._reported_in_flight = 0
        self._report_lock = threading.Lock()

    def call_finished(self, event: CallEvent, *, dropped: bool = False) -> None:
        """Count a call that was answered or aborted."""
        super().call_finished(event, dropped=dropped)
        with self._report_lock:
            self._unreported.append((list(_VALUES(event)), dropped))

    def refused(self, reason: str, n: int = 1) -> None:
        """Count a refused request."""
        super().refused(reason, n)
        with self._report_lock:
            self._unreported_refusals[reason] += n

    def changes(self) -> dict[str, Any] | None:
        """Changes since the last call of this method, for ``GatewayStats.absorb``; None if there are none."""
        with self._report_lock:
            unreported, self._unreported = self._unreported, []
            refusals, self._unreported_refusals = self._unreported_refusals, Counter()
        in_flight = self.n_in_flight
        if not unreported and not refusals and in_flight == self._reported_in_flight:
            return None
        self._reported_in_flight = in_flight
        return {"calls": unreported, "in_flight": in_flight, "refused": dict(refusals)}
