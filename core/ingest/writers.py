"""The writers of other machines at one moment: which are in time, which are silent, and which are given up.

Each has a watermark: all that it wrote up to then is visible (``core.journal.watermarks``).

    in time   at most ``LATE_S`` behind: records of all writers are read up to its watermark, so the order is exact
    silent    up to ``PATIENCE_S`` behind: only records of trajectories that it may have recorded wait (``held``)
    absent    further behind: nothing waits; its records are stored when they arrive, after later ones
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

LATE_S: Final = 2.0
"""Seconds. All trajectories wait so long for a writer; a mirror ships every few hundredths of a second."""
PATIENCE_S: Final = 60.0
"""Seconds. The trajectories of a silent writer wait so long."""


@dataclass(frozen=True)
class OtherWriters:
    """The watermarks of other machines' writers at ``now``, UTC seconds. On a single machine there are none."""

    until: Mapping[str, float]
    now: float
    present: Mapping[str, float] = field(init=False)
    """Those of ``until`` that are not absent."""

    def __post_init__(self) -> None:
        present = {writer: at for writer, at in self.until.items() if self.now - at <= PATIENCE_S}
        object.__setattr__(self, "present", present)

    @property
    def horizon(self) -> float:
        """UTC seconds; records up to then are visible, except those of silent and absent writers."""
        return min((at for at in self.present.values() if self.now - at <= LATE_S), default=self.now)

    def missing_at(self, at: float) -> set[str]:
        """The writers of which records up to ``at`` may be missing, without absent ones."""
        return {writer for writer, until in self.present.items() if until < at}

    def status(self) -> list[dict[str, Any]]:
        """``{writer, behind_s, state}`` of each, by name; the state is ``in_time``, ``silent`` or ``absent``."""
        return [
            {"writer": writer, "behind_s": round(max(0.0, self.now - at), 3), "state": self._state(writer, at)}
            for writer, at in sorted(self.until.items())
        ]

    def _state(self, writer: str, at: float) -> str:
        if writer not in self.present:
            return "absent"
        return "in_time" if self.now - at <= LATE_S else "silent"
