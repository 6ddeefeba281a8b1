"""The prompt group of every trajectory, in memory, to find all trajectories that a write may have changed."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from core.pool.store.changes import ChangeSet
from core.pool.store.database import Cursor, arrow

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
