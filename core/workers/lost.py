"""Workers of other machines whose connection was lost: they may take calls until their lease ends."""

from __future__ import annotations

import time

from core.workers.fence import LEASE_S


class LostWorkers:
    """Which they are. Has no lock of its own: the fleet calls it under its lock."""

    def __init__(self) -> None:
        self._lost: dict[str, tuple[str, float]] = {}
        """Name -> machine, when it holds calls at the latest."""

    def add(self, name: str, node: str) -> None:
        """The connection to a worker was lost now, and its end was not seen."""
        self._lost[name] = node, time.monotonic() + LEASE_S

    def forget(self, node: str) -> None:
        """Name a machine's workers no more, except those that may take calls."""
        now = time.monotonic()
        self._lost = {name: one for name, one in self._lost.items() if one[0] != node or one[1] > now}

    def nodes(self) -> set[str]:
        """Machines of the workers."""
        return {node for node, _ in self._lost.values()}

    def left_s(self) -> float:
        """Seconds until all of them hold calls; not positive when they do."""
        return max((until for _, until in self._lost.values()), default=0.0) - time.monotonic()
