"""Long work in a thread of its own while the page lives on: progress, cancel, and why it failed."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

from core.errors import StudioError


class Cancelled(StudioError):
    """Someone asked for the end of the work; nothing is left of it."""

    type = "cancelled"


class Job(ABC):
    """Attributes are read by pages, written by the thread.

    Attributes:
        done, total: how far it is, in units of the work.
        error: why it ended without a result.
    """

    def __init__(self, name: str, total: int, cancelled: str) -> None:
        self.done = 0
        self.total = total
        self.error: Exception | None = None
        self._name = name
        self._cancelled = cancelled
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @abstractmethod
    def work(self) -> None:
        """All of it, in the thread; calls ``report`` now and then."""

    @property
    def running(self) -> bool:
        """Whether it still works."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Begin, or begin again; nothing where it runs."""
        if self.running:
            return
        self.done, self.error = 0, None
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """Stop at the next ``report``."""
        self._stop.set()

    def join(self, timeout_s: float) -> None:
        """Wait for its end."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def report(self, done: int, total: int) -> None:
        """Progress of the work. Raises Cancelled when someone asked for the end."""
        self.done, self.total = done, total
        if self._stop.is_set():
            raise Cancelled(self._cancelled)

    def _run(self) -> None:
        try:
            self.work()
        except Exception as error:
            # The page shows it; a thread has nobody else to tell.
            self.error = error
