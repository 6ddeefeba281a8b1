"""The change sets of the latest writes, so that caches can be updated instead of read again."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

MAX_KEPT_WRITES = 1000
"""Writes whose change sets are kept."""


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """Trajectories whose state, or whose steps' state, a write may have changed.

    Other trajectories of the same prompt group, whose state may follow from it, are not included.

    Attributes:
        trajectories: their ``trajectory_id``.
        actions: ``action_id`` of labels made, undone or redone; all trajectories that they label may have changed.
    """

    trajectories: frozenset[int] = frozenset()
    actions: frozenset[int] = frozenset()

    def __or__(self, other: ChangeSet) -> ChangeSet:
        """Both together."""
        return ChangeSet(self.trajectories | other.trajectories, self.actions | other.actions)

    def __bool__(self) -> bool:
        """False when nothing was touched."""
        return bool(self.trajectories or self.actions)


NO_CHANGES = ChangeSet()


class Changes:
    """The latest writes by number. Safe in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writes: deque[tuple[int, ChangeSet | None]] = deque()
        self._forgotten = 0

    def add(self, number: int, touched: ChangeSet | None) -> None:
        """Add a write before it is visible to readers. None: it may have changed anything."""
        with self._lock:
            self._writes.append((number, touched))
            if len(self._writes) > MAX_KEPT_WRITES:
                self._forgotten = self._writes.popleft()[0]

    def any_since(self, number: int) -> bool:
        """True when there may be a write after this number; one being committed counts."""
        with self._lock:
            return bool(self._writes) and self._writes[-1][0] > number

    def since(self, number: int) -> ChangeSet | None:
        """The union of the change sets after this number, one being committed included; None: not known."""
        with self._lock:
            if number < self._forgotten:
                return None
            together = NO_CHANGES
            for each, touched in reversed(self._writes):
                if each <= number:
                    break
                if touched is None:
                    return None
                together |= touched
            return together
