"""Export of a plan as a background job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from core.batch.plan import Plan
from core.export import ExportResult, export
from studio.kit.jobs import Job


class ExportJob(Job):
    """One export, started at once. ``result`` is set when the file is written."""

    def __init__(
        self, plan: Plan, pool: Any, name: str, out: Path, options: Mapping[str, Any], clock: Callable[[], float]
    ) -> None:
        super().__init__(f"export-{name}", len(plan.steps), "the export was cancelled; no file was left")
        self.plan = plan
        self.result: ExportResult | None = None
        self._arguments = (plan, pool, name, out)
        self._options = dict(options)
        self._clock = clock
        self.start()

    def work(self) -> None:
        """Write the file."""
        self.result = export(*self._arguments, progress=self.report, clock=self._clock, **self._options)
