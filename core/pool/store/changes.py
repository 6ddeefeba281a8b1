"""What the latest writes touched, so that what is kept in memory can grow by that and need not be made anew."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

MOST_KEPT = 1000
"""Writes remembered."""


@dataclass(frozen=True, slots=True)
class Touched:
    """Trajectories whose state, or whose steps' state, a write may have changed.

    What follows for others from their being in the same prompt group is not said.

    Attributes:
        trajectories: their ``trajectory_id``.
        actions: ``action_id`` of labels made, undone or redone: all that these are about.
    """

    trajectories: frozenset[int] = frozenset()
    actions: frozenset[int] = frozenset()

    def __or__(self, other: Touched) -> Touched:
        """Both together."""
        return Touched(self.trajectories | other.trajectories, self.actions | other.actions)

    def __bool__(self) -> bool:
        """False when nothing was touched."""
        return bool(self.trajectories or self.actions)


NOTHING = Touched()


class Changes:
    """The latest writes by number. Safe in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writes: deque[tuple[int, Touched | None]] = deque()
        self._forgotten = 0

    def add(self, number: int, touched: Touched | None) -> None:
        """Note a write, before anybody can read it. None: it may have changed anything."""
        with self._lock:
            self._writes.append((number, touched))
            if len(self._writes) > MOST_KEPT:
                self._forgotten = self._writes.popleft()[0]

    def any_since(self, number: int) -> bool:
        """True when there may have been a write after this number, one being committed now included."""
        with self._lock:
            return bool(self._writes) and self._writes[-1][0] > number

    def since(self, number: int) -> Touched | None:
        """What the writes after this number touched, one being committed now included; None when that isn't known."""
        with self._lock:
            if number < self._forgotten:
                return None
            together = NOTHING
            for each, touched in reversed(self._writes):
                if each <= number:
                    break
                if touched is None:
                    return None
                together |= touched
            return together
