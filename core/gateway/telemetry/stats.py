"""Counters of the gateway, for the live page and metrics: cheap to write, read as a snapshot."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

RECENT = 500
LATENCIES = 1000
WINDOWS_S = (1, 10, 60)
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_MAX_NAMES = 200
REFUSALS = ("host", "origin", "media_type", "unauthorized", "forbidden", "too_many_attempts")
"""Reasons for refusing a request before its body is read."""


@dataclass(frozen=True, slots=True)
class CallEvent:
    """One finished call, as the live page shows it. ``latency_s``: from request to durable record, seconds."""

    at: float
    step_uid: str
    trajectory_uid: str | None
    identity_source: str
    channel: str
    source: str
    agent: str | None
    model: str | None
    engine: str | None
    dialect: str
    stream: bool
    http_status: int | None
    latency_s: float
    n_prompt_tokens: int | None
    n_response_tokens: int | None
    error: str | None
    aborted: bool


class _Second:
    __slots__ = ("calls", "errors", "tokens")

    def __init__(self) -> None:
        self.calls = 0
        self.errors = 0
        self.tokens = 0


class GatewayStats:
    """Counts since start, rates over the last 1, 10 and 60 s, the newest calls. Thread-safe.

    ``n_dropped`` counts answers that reached an agent without being stored (``capture = "best_effort"`` only):
    anything but 0 is an alarm.
    """

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._listener: Callable[[CallEvent, bool], None] | None = None
        self.n_calls = 0
        self.n_errors = 0
        self.n_dropped = 0
        self.n_aborted = 0
        self.n_in_flight = 0
        self._in_flight_elsewhere: dict[str, int] = {}
        self.n_prompt_tokens = 0
        self.n_response_tokens = 0
        self.refusals: Counter[str] = Counter(dict.fromkeys(REFUSALS, 0))
        self.recent: deque[CallEvent] = deque(maxlen=RECENT)
        self._latencies: deque[float] = deque(maxlen=LATENCIES)
        self._buckets = [0] * (len(BUCKETS_S) + 1)
        self._latency_sum = 0.0
        self._seconds: dict[int, _Second] = {}
        self._by: dict[str, Counter[str]] = {
            name: Counter() for name in ("channel", "source", "agent", "model", "engine", "identity_source")
        }

    def call_started(self) -> None:
        """Count a call that came in."""
        with self._lock:
            self.n_in_flight += 1

    def call_finished(self, event: CallEvent, *, dropped: bool = False) -> None:
        """Count a call that was answered or aborted."""
        with self._lock:
            self.n_in_flight -= 1
        self._count(event, dropped)
        if self._listener is not None:
            self._listener(event, dropped)

    def listen(self, listener: Callable[[CallEvent, bool], None]) -> None:
        """Call the listener for each call finished from now on, with whether its record was dropped."""
        self._listener = listener

    def absorb(self, worker: str, changes: Mapping[str, Any]) -> None:
        """Add another gateway process's counts (``WorkerStats.changes``); ``{"in_flight": 0}`` once it has ended."""
        self._in_flight_elsewhere[worker] = changes["in_flight"]
        for reason, n in changes.get("refused", {}).items():
            self.refused(reason, n)
        for values, dropped in changes.get("calls", ()):
            self._count(CallEvent(*values), dropped)

    def _count(self, event: CallEvent, dropped: bool) -> None:
        n_tokens = event.n_response_tokens or 0
        with self._lock:
            self.n_calls += 1
            self.n_errors += event.error is not None
            self.n_aborted += event.aborted
            self.n_dropped += dropped
            self.n_prompt_tokens += event.n_prompt_tokens or 0
            self.n_response_tokens += n_tokens
            self.recent.append(event)
            self._latencies.append(event.latency_s)
            self._buckets[bisect_left(BUCKETS_S, event.latency_s)] += 1
            self._latency_sum += event.latency_s
            second = self._second(int(event.at))
            second.calls += 1
            second.errors += event.error is not None
            second.tokens += n_tokens
            for name, counter in self._by.items():
                value = getattr(event, name) or "unknown"
                # Names come from outside, so their number is bounded.
                counter[value if value in counter or len(counter) < _MAX_NAMES else "other"] += 1

    def call_refused(self) -> None:
        """Count a call that ended before an engine was called (bad request, no key, weight sync)."""
        with self._lock:
            self.n_in_flight -= 1

    def refused(self, reason: str, n: int = 1) -> None:
        """Count a request that admission or the server refused."""
        with self._lock:
            self.refusals[reason] += n

    def snapshot(self, *, n_recent: int = RECENT) -> dict[str, Any]:
        """Everything as plain data; ``recent`` holds the newest call first, times in seconds."""
        at = self._clock()
        with self._lock:
            recent = list(self.recent)
            latencies = sorted(self._latencies)
            data: dict[str, Any] = {
                "n_calls": self.n_calls,
                "n_errors": self.n_errors,
                "n_dropped": self.n_dropped,
                "n_aborted": self.n_aborted,
                "n_in_flight": self.n_in_flight + sum(self._in_flight_elsewhere.values()),
                "n_prompt_tokens": self.n_prompt_tokens,
                "n_response_tokens": self.n_response_tokens,
                "refused": dict(self.refusals),
                "latency": self._latency(),
                "rates": self._rates(at),
                "series": self._series(at),
                "by": {name: dict(counter.most_common()) for name, counter in self._by.items()},
            }
        data["latency_p50_s"] = latencies[len(latencies) // 2] if latencies else None
        data["latency_p99_s"] = latencies[int(len(latencies) * 0.99)] if latencies else None
        data["last_call_at"] = recent[-1].at if recent else None
        data["recent"] = [asdict(event) for event in reversed(recent[-n_recent:])] if n_recent else []
        return data

    def _second(self, at: int) -> _Second:
        second = self._seconds.get(at)
        if second is None:
            second = self._seconds[at] = _Second()
            for old in [key for key in self._seconds if key < at - max(WINDOWS_S) - 1]:
                del self._seconds[old]
        return second

    def _latency(self) -> dict[str, Any]:
        """``{buckets: [(upper bound, calls up to it)], sum, count}``, seconds, since start."""
        counts = list(accumulate(self._buckets))
        buckets = list(zip(BUCKETS_S, counts, strict=False))
        return {"buckets": buckets, "sum": self._latency_sum, "count": counts[-1]}

    def _rates(self, at: float) -> dict[str, dict[str, float]]:
        """``{"calls_per_s": {"1": ..., "10": ..., "60": ...}, ...}`` over whole past seconds."""
        end = int(at)
        rates: dict[str, dict[str, float]] = {}
        for what in ("calls", "errors", "tokens"):
            rates[f"{what}_per_s"] = {
                str(window): sum(
                    getattr(second, what) for key, second in self._seconds.items() if end - window <= key < end
                )
                / window
                for window in WINDOWS_S
            }
        return rates

    def _series(self, at: float) -> list[dict[str, float]]:
        """The last 60 whole seconds, oldest first: ``{at, calls, errors, tokens}``."""
        end = int(at)
        empty = _Second()
        return [
            {"at": key, "calls": second.calls, "errors": second.errors, "tokens": second.tokens}
            for key in range(end - max(WINDOWS_S), end)
            for second in (self._seconds.get(key, empty),)
        ]
