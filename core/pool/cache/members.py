"""Which trajectories' state may differ from what it was: those touched, and their prompt groups' others."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from core.pool.store.changes import Touched
from core.pool.store.database import Cursor, arrow

_GROUPS = "SELECT trajectory_id, hash(prompt_uid, channel) AS prompt_group FROM trajectory_state"
_ACTIONS = "SELECT DISTINCT trajectory_id FROM annotations WHERE action_id IN (SELECT unnest(?::BIGINT[]))"


@dataclass(slots=True)
class Groups:
    """Prompt groups by trajectory, and those that one was in before. A group is known by its hash.

    A trajectory that moves changes what is derived for the group it leaves too. Let every snapshot that is looked at
    be as late as the one before, or later.
    """

    of: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint64))
    """uint64 ``[greatest trajectory_id + 1]``; 0 is none."""
    left: set[tuple[int, int]] = field(default_factory=set)
    """(trajectory_id, a group that it has left)."""

    def look(self, cursor: Cursor) -> None:
        """Take in the groups as the cursor's snapshot has them."""
        found = arrow(cursor, _GROUPS)
        trajectory_ids, groups = found["trajectory_id"].to_numpy(), found["prompt_group"].to_numpy()
        size = max(self.of.size, int(trajectory_ids.max()) + 1 if trajectory_ids.size else 0)
        now = np.zeros(size, np.uint64)
        now[trajectory_ids] = groups
        before = self.of
        moved = np.flatnonzero((before != 0) & (before != now[: before.size]))
        self.left.update((int(one), int(before[one])) for one in moved)
        self.of = now

    def touched_with(self, cursor: Cursor, touched: Touched) -> np.ndarray:
        """``trajectory_id`` of all that a write may have changed: those touched and whoever shares a group with them.

        ``look`` has taken in the cursor's snapshot before.
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
