"""An export that runs while the page lives on: progress, cancel, and what came of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from core.batch.plan import Plan
from core.errors import StudioError
from core.export import ExportResult, export


class Cancelled(StudioError):
    """Someone asked for the end of an export; no file is left."""

    type = "cancelled"


class ExportJob:
    """One export in a thread of its own. Attributes are read by the page, written by the thread."""

    def __init__(
        self, plan: Plan, pool: Any, name: str, out: Path, options: Mapping[str, str], clock: Callable[[], float]
    ) -> None:
        self.plan = plan
        self.done = 0
        self.total = len(plan.steps)
        self.result: ExportResult | None = None
        self.error: Exception | None = None
        self._stop = threading.Event()
        self._arguments = (plan, pool, name, out)
        self._options = dict(options)
        self._clock = clock
        self._thread = threading.Thread(target=self._run, name=f"export-{name}", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether it still writes."""
        return self._thread.is_alive()

    def cancel(self) -> None:
        """Stop at the next row group; nothing is left of the file."""
        self._stop.set()

    def join(self, timeout_s: float) -> None:
        """Wait for its end."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self.result = export(*self._arguments, progress=self._told, clock=self._clock, **self._options)
        except Exception as error:
            # The page shows it; a thread has nobody else to tell.
            self.error = error

    def _told(self, done: int, total: int) -> None:
        self.done, self.total = done, total
        if self._stop.is_set():
            raise Cancelled("the export was cancelled; no file was left")
