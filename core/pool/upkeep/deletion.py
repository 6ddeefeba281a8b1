"""Deletes the rows that a retention run names, at the run and when the opinions log is replayed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from core.pool.store.content import decode
from core.pool.store.database import Cursor, rows

OF_TRAJECTORIES = """
SELECT DISTINCT table_name FROM duckdb_columns()
WHERE column_name = 'trajectory_id' AND schema_name = 'main' AND database_name = current_database() AND NOT internal
    AND table_name NOT LIKE 'dataset_%'
ORDER BY table_name
"""
"""Tables whose rows are deleted with their trajectory. Dataset versions contain no deletable trajectory."""

_ORPHANS = """
DELETE FROM messages WHERE message_id NOT IN (
    SELECT unnest(new_message_ids) FROM step_messages WHERE new_message_ids IS NOT NULL
    UNION SELECT response_message_id FROM step_messages WHERE response_message_id IS NOT NULL
    UNION SELECT tools_id FROM step_messages WHERE tools_id IS NOT NULL
)
"""
_ORPHANED_MEDIA = """
DELETE FROM media WHERE content_hash NOT IN (
    SELECT unnest(regexp_extract_all(body, '"claw-media:([0-9a-f]{32})"', 1))::UUID FROM messages
    WHERE contains(body, '"claw-media:')
)
"""


@dataclass(slots=True)
class Deletions:
    """The uids that retention runs deleted and that were not restored.

    Attributes:
        positions: run -> segment -> how far that was read when the run was.
        runs: (``step``, ``trajectory`` or ``feedback``; its uid) -> the runs that deleted it.
        restored: runs that were restored.
    """

    positions: dict[str, dict[str, int]] = field(default_factory=dict)
    runs: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    restored: set[str] = field(default_factory=set)

    def add(self, table: str, deleted_rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows of ``retention_runs``, ``deleted`` or ``restored_runs``; other tables are ignored."""
        for row in deleted_rows if table in DELETING else ():
            if table == "retention_runs":
                if row["run_uid"] is not None:
                    self.positions[row["run_uid"]] = decode(row["positions"]) or {}
            elif table == "deleted":
                self.runs.setdefault((row["kind"], row["uid"]), []).append(row["run_uid"])
            else:
                self.restored.add(row["run_uid"])

    def forgets(self, kind: str, uid: str, segment: str, offset: int) -> bool:
        """Whether something in a record of the journal was deleted after that record was read."""
        return any(
            run not in self.restored and offset < self.positions.get(run, {}).get(segment, 0)
            for run in self.runs.get((kind, uid), ())
        )


DELETING = frozenset({"retention_runs", "deleted", "restored_runs"})


def read_deletions(cursor: Cursor) -> Deletions:
    """All of them, as the pool holds them."""
    deletions = Deletions()
    for table in sorted(DELETING):
        deletions.add(table, rows(cursor, f"SELECT * FROM {table}"))
    return deletions


def record_deleted_uids(cursor: Cursor, run_uid: str) -> None:
    """Store the uids that a run deletes: the trajectories of the table ``gone``, their steps and their feedback."""
    cursor.execute(
        "INSERT INTO deleted SELECT $run, 'trajectory', trajectory_uid FROM gone ORDER BY trajectory_id",
        {"run": run_uid},
    )
    cursor.execute(
        "INSERT INTO deleted SELECT $run, 'step', step_uid FROM steps SEMI JOIN gone USING (trajectory_id)"
        " ORDER BY step_id",
        {"run": run_uid},
    )
    cursor.execute(
        "INSERT INTO deleted SELECT $run, 'feedback', feedback_uid FROM feedback_state"
        " SEMI JOIN gone USING (trajectory_id) ORDER BY feedback_id",
        {"run": run_uid},
    )


def forget(cursor: Cursor, run_uid: str) -> None:
    """Delete the rows of a run. A trajectory that got other steps since keeps its facts."""
    uids = "(SELECT uid FROM deleted WHERE run_uid = ? AND kind = ?)"
    cursor.execute(
        f"CREATE OR REPLACE TEMP TABLE gone AS SELECT trajectory_id FROM trajectories WHERE trajectory_uid IN {uids}",
        [run_uid, "trajectory"],
    )
    cursor.execute(
        f"CREATE OR REPLACE TEMP TABLE gone_steps AS SELECT step_id FROM steps WHERE step_uid IN {uids}",
        [run_uid, "step"],
    )
    cursor.execute(f"DELETE FROM step_values WHERE step_uid IN {uids}", [run_uid, "step"])
    for table in ("feedback", "feedback_state"):
        cursor.execute(f"DELETE FROM {table} WHERE feedback_uid IN {uids}", [run_uid, "feedback"])
    cursor.execute("DELETE FROM annotations WHERE trajectory_id IN (SELECT trajectory_id FROM gone)")
    cursor.execute(
        "DELETE FROM gone WHERE trajectory_id IN"
        " (SELECT trajectory_id FROM steps WHERE step_id NOT IN (SELECT step_id FROM gone_steps))"
    )
    for (table,) in cursor.execute(OF_TRAJECTORIES).fetchall():
        cursor.execute(f"DELETE FROM {table} WHERE trajectory_id IN (SELECT trajectory_id FROM gone)")
    if cursor.execute("SELECT count(*) FROM gone_steps").fetchall()[0][0]:
        cursor.execute(_ORPHANS)
        cursor.execute(_ORPHANED_MEDIA)
