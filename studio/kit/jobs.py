"""Background jobs of pages: each runs in its own thread, reports progress and can be cancelled."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

from core.errors import StudioError


class Cancelled(StudioError):
    """The job was cancelled; partial results were removed."""

    type = "cancelled"


class Job(ABC):
    """One background job. Pages read its attributes; its thread writes them.

    Attributes:
        done, total: progress, in units that the subclass chooses.
        error: the exception that ended it, or None.
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
        """The whole work, run in the thread; calls ``report`` regularly."""

    @property
    def running(self) -> bool:
        """Whether the thread is alive."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start, or start again; does nothing while it runs."""
        if self.running:
            return
        self.done, self.error = 0, None
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """Make the next ``report`` raise Cancelled."""
        self._stop.set()

    def join(self, timeout_s: float) -> None:
        """Wait until the thread ends, at most ``timeout_s`` seconds."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def report(self, done: int, total: int) -> None:
        """Set the progress. Raises Cancelled after :meth:`cancel`."""
        self.done, self.total = done, total
        if self._stop.is_set():
            raise Cancelled(self._cancelled)

    def _run(self) -> None:
        try:
            self.work()
        except Exception as error:
            # Stored for the page: an exception in a thread is not reported elsewhere.
            self.error = error
