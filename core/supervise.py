"""Restarts critical threads that have ended, and reports the restarts."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

EVERY_S = 0.5
REPORT_RESTART_S = 60.0
"""How long a restart is reported as a problem, seconds. The counter of restarts is never reset."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Part:
    alive: Callable[[], bool]
    revive: Callable[[], object]
    ended_at: float | None = None
    failure: str | None = None


class Supervisor:
    """Checks registered parts periodically in a thread, and whenever their state is read."""

    def __init__(self, *, every_s: float = EVERY_S) -> None:
        self._every_s = every_s
        self._also: Callable[[], object] = lambda: None
        self._parts: dict[str, _Part] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.n_ends: Counter[str] = Counter()

    def keep(self, name: str, alive: Callable[[], bool], revive: Callable[[], object]) -> None:
        """Register a part: ``revive`` is called when ``alive`` returns false."""
        with self._lock:
            self._parts[name] = _Part(alive, revive)
            # Counters start at 0 before the first event; otherwise a rate would miss that event.
            self.n_ends.setdefault(name, 0)

    def start(self, also: Callable[[], object]) -> None:
        """Start checking; ``also`` is called after each check."""
        self._also = also
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop checking."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def check(self) -> None:
        """Check every part once and restart what has ended."""
        with self._lock:
            if self._stopping.is_set():
                return
            for name, part in self._parts.items():
                if part.alive():
                    part.failure = None
                    continue
                if part.failure is None:
                    self.n_ends[name] += 1
                    log.error("%s has ended; restarting it", name)
                part.ended_at = time.monotonic()
                try:
                    part.revive()
                except Exception as error:
                    part.failure = str(error)
                    log.error("%s can't be restarted: %s", name, error)

    def problems(self) -> list[str]:
        """Parts that have ended, one line each: not running yet, or restarted in the last minute."""
        self.check()
        now = time.monotonic()
        problems = []
        for name, part in self._parts.items():
            if part.failure is not None:
                problems.append(f"{name} has ended and can't be restarted: {part.failure}")
            elif part.ended_at is not None and now - part.ended_at < REPORT_RESTART_S:
                problems.append(f"{name} ended {now - part.ended_at:.0f} s ago and was restarted")
        if self._thread is not None and not self._thread.is_alive() and not self._stopping.is_set():
            problems.append("the supervisor's thread has ended; it was restarted")
            self.start(self._also)
        return problems

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s):
            try:
                self.check()
                self._also()
            except Exception:
                log.exception("a check of the supervisor failed; it continues")
