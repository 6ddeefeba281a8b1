"""Keeps threads alive that must live: looks at each now and then, starts again what has ended, and says so."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

EVERY_S = 0.5
TOLD_S = 60.0
"""An end is told as a problem for so long after the part lives again; it is counted for good."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Part:
    alive: Callable[[], bool]
    revive: Callable[[], object]
    ended_at: float | None = None
    failure: str | None = None


class Supervisor:
    """Looks after parts in a thread of its own, and whenever somebody asks how they are."""

    def __init__(self, *, every_s: float = EVERY_S) -> None:
        self._every_s = every_s
        self._also: Callable[[], object] = lambda: None
        self._parts: dict[str, _Part] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.n_ends: Counter[str] = Counter()

    def keep(self, name: str, alive: Callable[[], bool], revive: Callable[[], object]) -> None:
        """Look after a part from now on: ``revive`` is called when ``alive`` says no."""
        with self._lock:
            self._parts[name] = _Part(alive, revive)
            # A counter that appears with its first event hides that event from a rate.
            self.n_ends.setdefault(name, 0)

    def start(self, also: Callable[[], object]) -> None:
        """Begin to look; ``also`` is called after each look."""
        self._also = also
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End; parts may end from now on."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def look(self) -> None:
        """Look once at every part, and start again what has ended."""
        with self._lock:
            if self._stopping.is_set():
                return
            for name, part in self._parts.items():
                if part.alive():
                    part.failure = None
                    continue
                if part.failure is None:
                    self.n_ends[name] += 1
                    log.error("%s has ended; starting it again", name)
                part.ended_at = time.monotonic()
                try:
                    part.revive()
                except Exception as error:
                    part.failure = str(error)
                    log.error("%s can't be started again: %s", name, error)

    def problems(self) -> list[str]:
        """What has ended, a line each: parts that are not back yet, and those that ended in the last minute."""
        self.look()
        now = time.monotonic()
        problems = []
        for name, part in self._parts.items():
            if part.failure is not None:
                problems.append(f"{name} has ended and can't be started again: {part.failure}")
            elif part.ended_at is not None and now - part.ended_at < TOLD_S:
                problems.append(f"{name} had ended {now - part.ended_at:.0f} s ago and was started again")
        if self._thread is not None and not self._thread.is_alive() and not self._stopping.is_set():
            problems.append("the supervisor's thread has ended; it was started again")
            self.start(self._also)
        return problems

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s):
            try:
                self.look()
                self._also()
            except Exception:
                log.exception("the supervisor failed at a look; it goes on")
