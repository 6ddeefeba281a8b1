"""``pool.feedback``: current feedback, its revisions, and feedback whose step is not captured yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from core.errors import NotFound
from core.pool.state.opinions import rows_named
from core.pool.store.content import decode
from core.pool.store.database import Database, registered, rows, seconds
from core.types import FeedbackKind

_IN_FORCE = """
SELECT f.feedback_uid, f.kind, f.value, f.reward, f.author, f.source, f.note, f.metadata, f.given_at, f.received_at,
    f.step_uid AS named_step_uid, f.trajectory_uid AS named_trajectory_uid, f.response_id, f.choice_index,
    n.n_revisions, n.trajectory_id IS NULL AS pending, s.step_uid, t.trajectory_uid
FROM feedback_state n
JOIN feedback f USING (feedback_id)
LEFT JOIN trajectories t ON t.trajectory_id = n.trajectory_id
LEFT JOIN steps s ON s.step_id = n.step_id
WHERE ($uid IS NULL OR n.feedback_uid = $uid)
    AND ($step_uid IS NULL OR s.step_uid = $step_uid)
    AND ($trajectory_uid IS NULL OR t.trajectory_uid = $trajectory_uid)
    AND ($kind IS NULL OR f.kind = $kind)
    AND ($pending IS NULL OR (n.trajectory_id IS NULL) = $pending)
ORDER BY f.received_at DESC, n.feedback_id DESC LIMIT $limit
"""
_COUNTS = """
SELECT f.kind, f.value, count(*), count(*) FILTER (n.trajectory_id IS NULL)
FROM feedback_state n JOIN feedback f USING (feedback_id) WHERE f.value IS NOT NULL
GROUP BY f.kind, f.value
"""


class Feedback:
    """``pool.feedback``: what feedback was received."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def find(
        self,
        *,
        step_uid: str | None = None,
        trajectory_uid: str | None = None,
        kind: str | None = None,
        pending: bool | None = None,
        limit: int = 1000,
    ) -> list[dict[str, Any]]:
        """Feedback in force, the newest first; a trajectory's includes that on its steps.

        Each ``{feedback_uid, kind, value, reward, author, source, note, metadata, given_at, received_at, target,
        step_uid, trajectory_uid, state, n_revisions}``; ``state`` is ``applied``, ``pending`` or ``withdrawn``,
        times are UTC seconds.
        """
        named = {"uid": None, "step_uid": step_uid, "trajectory_uid": trajectory_uid, "kind": kind, "pending": pending}
        with self._db.read() as cursor:
            items = rows_named(cursor, _IN_FORCE, {**named, "limit": limit})
        return [_public(row) for row in items]

    def get(self, feedback_uid: str) -> dict[str, Any]:
        """One feedback with all its ``revisions``, oldest first. NotFound when there is none."""
        named = dict.fromkeys(("step_uid", "trajectory_uid", "kind", "pending"))
        with self._db.read() as cursor:
            items = rows_named(cursor, _IN_FORCE, {**named, "uid": feedback_uid, "limit": 1})
            if not items:
                raise NotFound(f"No feedback {feedback_uid!r}.", field="feedback_uid")
            words = rows(
                cursor,
                "SELECT kind, value, reward, author, source, note, given_at, received_at FROM feedback"
                " WHERE feedback_uid = ? ORDER BY feedback_id",
                [feedback_uid],
            )
        return {**_public(items[0]), "revisions": [_times(word) for word in words]}

    def states(self, feedback_uids: Sequence[str]) -> dict[str, str]:
        """``applied``, ``pending`` or ``withdrawn`` by uid; unknown uids are left out."""
        with (
            self._db.read() as cursor,
            registered(cursor, wanted_feedback=pa.table({"uid": pa.array(sorted(set(feedback_uids)), pa.string())})),
        ):
            states = cursor.execute(
                "SELECT n.feedback_uid, f.value IS NULL, n.trajectory_id IS NULL FROM feedback_state n"
                " JOIN feedback f USING (feedback_id) WHERE n.feedback_uid IN (SELECT uid FROM wanted_feedback)"
            ).fetchall()
        return {uid: _state_name(withdrawn, pending) for uid, withdrawn, pending in states}

    def counts(self) -> dict[str, Any]:
        """``{n_feedback, n_pending, by_kind, by_value}`` of what is in force; ``by_value`` of thumbs and events."""
        with self._db.read() as cursor:
            counts = cursor.execute(_COUNTS).fetchall()
        by_kind: dict[str, int] = {}
        by_value: dict[str, int] = {}
        for kind, value, n, _ in counts:
            by_kind[kind] = by_kind.get(kind, 0) + n
            if kind in (FeedbackKind.THUMBS, FeedbackKind.EVENT):
                by_value[str(decode(value))] = n
        return {
            "n_feedback": sum(by_kind.values()),
            "n_pending": sum(row[3] for row in counts),
            "by_kind": by_kind,
            "by_value": by_value,
        }


def _times(row: dict[str, Any]) -> dict[str, Any]:
    return {
        **row,
        "value": decode(row["value"]),
        "given_at": seconds(row["given_at"]),
        "received_at": seconds(row["received_at"]),
    }


def _public(row: dict[str, Any]) -> dict[str, Any]:
    names = {"step_uid": row.pop("named_step_uid"), "trajectory_uid": row.pop("named_trajectory_uid")}
    names["response_id"] = row.pop("response_id")
    choice, pending = row.pop("choice_index"), row.pop("pending")
    target: dict[str, Any] = {name: uid for name, uid in names.items() if uid is not None}
    if choice:
        target["choice_index"] = choice
    state = _state_name(row["value"] is None, pending)
    return {**_times(row), "metadata": decode(row["metadata"]) or {}, "target": target, "state": state}


def _state_name(withdrawn: bool, pending: bool) -> str:
    return "withdrawn" if withdrawn else "pending" if pending else "applied"
