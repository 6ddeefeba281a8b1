"""A worker's counters, reported to the owner, which shows all workers as one."""

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
    """Counts, and keeps finished calls until they are reported."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        super().__init__(clock=clock)
        self._untold: list[tuple[list[Any], bool]] = []
        self._untold_refusals: Counter[str] = Counter()
        self._told_in_flight = 0
        self._telling = threading.Lock()

    def call_finished(self, event: CallEvent, *, dropped: bool = False) -> None:
        """Count a call that was answered or aborted."""
        super().call_finished(event, dropped=dropped)
        with self._telling:
            self._untold.append((list(_VALUES(event)), dropped))

    def refused(self, reason: str, n: int = 1) -> None:
        """Count a refused request."""
        super().refused(reason, n)
        with self._telling:
            self._untold_refusals[reason] += n

    def news(self) -> dict[str, Any] | None:
        """What happened since the last call, for ``GatewayStats.absorb``; None if nothing did."""
        with self._telling:
            untold, self._untold = self._untold, []
            refusals, self._untold_refusals = self._untold_refusals, Counter()
        in_flight = self.n_in_flight
        if not untold and not refusals and in_flight == self._told_in_flight:
            return None
        self._told_in_flight = in_flight
        return {"calls": untold, "in_flight": in_flight, "refused": dict(refusals)}
