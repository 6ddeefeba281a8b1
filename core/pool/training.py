"""``pool.training``: what plans and exporters read. A dataset version has the same interface (``core.batch``)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from core.errors import NotFound
from core.pool.cache.columncache import is_unfiltered
from core.pool.cache.factshashes import FactsHashes
from core.pool.cache.planrowscache import PlanRowsCache
from core.pool.edits import EDIT_PREFIX, Edit, Edits, captured_uids, edited_fields, edited_sequences, edited_step
from core.pool.query.creditfields import credit_fields, credit_fields_by_id
from core.pool.query.planrows import plan_rows
from core.pool.query.viewreader import ViewReader
from core.pool.query.views import NO_VIEW
from core.pool.rewards import RewardPolicies, Spec
from core.pool.state.policyversion import version_in_force
from core.pool.steps import Steps
from core.pool.store.database import Database, arrow
from core.pool.trajectories import Trajectories
from core.pool.values import Values
from core.tree.sequences import Sequences
from core.types import View

LOOKED_AT = 500
"""Steps that tell which fields a channel's producers send."""


class TrainingData:
    """``pool.training``: candidates for a plan, and what estimators and exporters read of the chosen ones."""

    def __init__(
        self,
        database: Database,
        reader: ViewReader,
        *,
        steps: Steps,
        trajectories: Trajectories,
        rewards: RewardPolicies,
        values: Values,
        edits: Edits,
    ) -> None:
        self._db, self._reader = database, reader
        self._rows, self._hashes = PlanRowsCache(database), FactsHashes(database)
        self._steps, self._trajectories = steps, trajectories
        self._rewards, self._values, self._edits = rewards, values, edits

    def plan_rows(self, view: View = NO_VIEW, *, channel: str | None) -> pa.Table:
        """One row per candidate step for planning, in the order plans are made in."""
        if is_unfiltered(view):
            return self._rows.rows(channel)
        with self._reader.reading(view) as (cursor, seen):
            return plan_rows(cursor, seen, channel)

    def credit_fields(self, step_uids: Sequence[str] | pa.Array, fields: Collection[str]) -> pa.Table:
        """One row per step in the order given, a column per field, see ``core.pool.query.creditfields``.

        A reference to an edit has the fields of the captured step, without those about its sampled tokens.
        """
        asked = step_uids if isinstance(step_uids, pa.Array | pa.ChunkedArray) else pa.array(step_uids, pa.string())
        edits = self._edits.named(asked.filter(pc.starts_with(asked, EDIT_PREFIX)).to_pylist())
        with self._db.read() as cursor:
            if not edits:
                return credit_fields(cursor, step_uids, fields)
            uids = asked.to_pylist()
            table = credit_fields(cursor, captured_uids(uids, edits), fields)
        return edited_fields(table, uids, edits)

    def step_fields(self, step_ids: np.ndarray, fields: Collection[str]) -> pa.Table:
        """``credit_fields`` of captured steps by their ``step_id``, int64 [n], in the order given."""
        with self._db.read() as cursor:
            return credit_fields_by_id(cursor, step_ids, fields)

    def edits(self) -> list[Edit]:
        """The edited answers that count now."""
        return self._edits.in_force()

    def facts_hashes(self, step_ids: np.ndarray) -> pa.ChunkedArray:
        """A hash of each step's exported facts, string [n], see ``core.pool.query.creditfields.facts_hashes``."""
        return self._hashes.of(step_ids)

    def fields_present(self, channel: str, fields: Collection[str]) -> set[str]:
        """Those of these fields that at least one of the channel's newest ``LOOKED_AT`` steps has."""
        with self._db.read() as cursor:
            newest = arrow(
                cursor,
                "SELECT step_uid FROM step_state WHERE channel = ? ORDER BY step_id DESC LIMIT ?",
                [channel, LOOKED_AT],
            )["step_uid"]
            table = credit_fields(cursor, newest.combine_chunks(), fields)
        present = {name for name in fields if table[name].null_count < len(table)}
        # A greedy rollout is a baseline too.
        if "greedy" in table.column_names and any(table["greedy"].to_pylist()):
            present.add("baseline")
        return present

    def version_in_force(self, channel: str) -> int | None:
        """The policy version that staleness counts from (``core.pool.state.policyversion``)."""
        with self._db.read() as cursor:
            return version_in_force(cursor, channel)

    def trajectory_rewards(self, policy: Spec, *, channel: str) -> pa.Table:
        """(trajectory_uid, reward) by a reward policy, of the trajectories that it scores."""
        return self._rewards.by_policy(policy, channel=channel)

    def step_values(self, step_uids: Sequence[str] | pa.Array, model: str) -> pa.Array:
        """A critic's newest values of these steps, float64 [n], null where it gave none."""
        return self._values.of_steps(step_uids, model)

    def sequences(self, step_uids: Sequence[str]) -> Sequences:
        """Full prompt + response of each step or reference to an edit (``core.pool.edits``), in the order given."""
        edits = self._edits.named(step_uids)
        if not edits:
            return self._steps.sequences(step_uids)
        return edited_sequences(self._steps.sequences(captured_uids(step_uids, edits)), step_uids, edits)

    def trajectory(self, trajectory_uid: str, *, tokens: bool = True) -> dict[str, Any]:
        """A trajectory with its steps in order; without ``tokens``, ids and messages are left out.

        That of a reference to an edit has one step, and no reward.
        """
        if (edit := self._edits.named([trajectory_uid]).get(trajectory_uid)) is not None:
            step = self._steps.get(edit.step_uid)
            owner = self._trajectories.get(step["trajectory_uid"], tokens=False)
            named = {"trajectory_uid": trajectory_uid, "steps": [edited_step(step, trajectory_uid, edit)]}
            return {**owner, **named, "reward": None, "complete": True}
        return self._trajectories.get(trajectory_uid, tokens=tokens)

    def trajectories(self, trajectory_uids: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Trajectories, or those of references to edits, as ``trajectory`` gives them, in the order given.

        Many are read with one query. NotFound names the first that does not exist.
        """
        edits = self._edits.named(trajectory_uids)
        captured = self._trajectories.get_many([uid for uid in trajectory_uids if uid not in edits])
        for uid in trajectory_uids:
            if uid in edits:
                yield self.trajectory(uid)
                continue
            trajectory = next(captured, None)
            if trajectory is None or trajectory["trajectory_uid"] != uid:
                raise NotFound(f"No trajectory {uid!r}.", field="trajectory_uid")
            yield trajectory
