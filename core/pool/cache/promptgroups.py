"""The prompt group of every trajectory, in memory, to find all trajectories that a write may have changed."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from core.pool.store.changes import ChangeSet
from core.pool.store.database import Cursor, Database, arrow

MAX_TOUCHED_SHARE = 0.2
FEW_TRAJECTORIES = 100
"""If more trajectories than this share and than ``FEW_TRAJECTORIES`` changed, the column is read again: faster."""

_GROUPS = "SELECT trajectory_id, hash(prompt_uid, channel) AS prompt_group FROM trajectory_state"
_ACTIONS = "SELECT DISTINCT trajectory_id FROM annotations WHERE action_id IN (SELECT unnest(?::BIGINT[]))"


@dataclass(slots=True)
class PromptGroups:
    """Prompt groups by trajectory, and the groups that a trajectory was in before. A group is identified by its hash.

    When a trajectory moves to another group, the derived state of the group it leaves changes too. Each snapshot given
    to ``read_groups`` must be as new as the one before, or newer.
    """

    of: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint64))
    """uint64 ``[greatest trajectory_id + 1]``; 0: no such trajectory."""
    left: set[tuple[int, int]] = field(default_factory=set)
    """(trajectory_id, a group that it was in before)."""

    def read_groups(self, cursor: Cursor) -> None:
        """Read the groups from the cursor's snapshot."""
        table = arrow(cursor, _GROUPS)
        trajectory_ids, groups = table["trajectory_id"].to_numpy(), table["prompt_group"].to_numpy()
        size = max(self.of.size, int(trajectory_ids.max()) + 1 if trajectory_ids.size else 0)
        now = np.zeros(size, np.uint64)
        now[trajectory_ids] = groups
        before = self.of
        moved = np.flatnonzero((before != 0) & (before != now[: before.size]))
        self.left.update((int(one), int(before[one])) for one in moved)
        self.of = now

    def all_changed_by(self, cursor: Cursor, touched: ChangeSet) -> np.ndarray:
        """``trajectory_id`` of all that a write may have changed: those in the change set and their groups' others.

        ``read_groups`` must have read the cursor's snapshot before.
        """
        ids = set(touched.trajectories)
        if touched.actions:
            of_actions = arrow(cursor, _ACTIONS, [sorted(touched.actions)])["trajectory_id"]
            ids.update(of_actions.to_pylist())
        wanted = np.array(sorted(ids), np.int64)
        wanted = wanted[wanted < self.of.size]
        groups = set(self.of[wanted].tolist())
        groups.update(group for one, group in self.left if one in ids)
        return np.flatnonzero(np.isin(self.of, np.array(sorted(groups - {0}), np.uint64)))


class ChangedSince:
    """The trajectories that changed between earlier writes and a cursor's snapshot."""

    def __init__(self, database: Database, cursor: Cursor, groups: PromptGroups) -> None:
        self.cursor = cursor
        self._db, self._groups, self._has_read = database, groups, False

    def read_groups(self) -> None:
        """Read the prompt groups of this snapshot, so that later moves out of a group are noticed."""
        if not self._has_read:
            self._groups.read_groups(self.cursor)
            self._has_read = True

    def since(self, number: int) -> np.ndarray | None:
        """``trajectory_id`` of all that may have changed after this write; None when it may be all or most."""
        touched = self._db.changes.since(number)
        if touched is not None and not touched:
            return np.zeros(0, np.int64)
        self.read_groups()
        if touched is None:
            return None
        changed = self._groups.all_changed_by(self.cursor, touched)
        return (
            changed
            if changed.size <= MAX_TOUCHED_SHARE * self._groups.of.size or changed.size <= FEW_TRAJECTORIES
            else None
        )
