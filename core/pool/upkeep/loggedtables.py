"""The tables that the opinions log covers, and what a transaction changed in them.

These tables can't be made again from the journal, so every change of them goes to the opinions log
(``opinionlog``) before it is committed. ``Database.write`` is the one place where that happens: it reads what
the transaction added, whatever wrote it. Logged rows have uids in place of this file's ids of steps and trajectories,
so that they can be replayed into a new file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from core.pool.store.readcommitlock import inserted_tables

_ADDED = 36_028_797_018_960_000
"""DuckDB numbers the rows that a transaction added and did not commit yet from here on (its ``MAX_ROW_ID``)."""

_WRITES = re.compile(r"\b(?:INSERT(?:\s+OR\s+REPLACE)?\s+INTO|DELETE\s+FROM|UPDATE)\s+(\w+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LoggedTable:
    """One table of the log.

    Attributes:
        owner: it has a ``trajectory_id``.
        step: it has a ``step_id``.
        optional: rows whose trajectory is unknown are kept, with NULL.
        key: a row replaces the one that has the same value in this column; None: rows are only added.
        changed: condition of the rows that a transaction changed.
        all_rows: each change logs all rows of the table, which are few.
        chunk: rows of one record of a snapshot.
    """

    owner: bool = False
    step: bool = False
    optional: bool = False
    key: str | None = None
    changed: str = f"x.rowid >= {_ADDED}"
    all_rows: bool = False
    chunk: int = 200_000


LOGGED: dict[str, LoggedTable] = {
    "actions": LoggedTable(),
    "action_events": LoggedTable(),
    "annotations": LoggedTable(owner=True, step=True),
    "feedback": LoggedTable(),
    "feedback_state": LoggedTable(owner=True, step=True, optional=True, key="feedback_uid"),
    "saved_views": LoggedTable(all_rows=True),
    "recipe_versions": LoggedTable(),
    "active_recipes": LoggedTable(),
    "reward_policies": LoggedTable(),
    "adopted_reward_policies": LoggedTable(),
    # Every change of a batch adds an event.
    "batches": LoggedTable(
        key="batch_uid", changed=f"x.batch_uid IN (SELECT batch_uid FROM batch_events WHERE rowid >= {_ADDED})"
    ),
    "batch_plans": LoggedTable(chunk=100),
    "batch_steps": LoggedTable(),
    "batch_events": LoggedTable(),
    "batch_metrics": LoggedTable(),
    "step_values": LoggedTable(),
    "dataset_versions": LoggedTable(),
    "dataset_steps": LoggedTable(owner=True, step=True),
    "dataset_rewards": LoggedTable(owner=True),
    "dataset_values": LoggedTable(step=True),
    "dataset_edits": LoggedTable(),
    "retention_runs": LoggedTable(),
    "deleted": LoggedTable(),
    "restored_runs": LoggedTable(),
}
"""Tables of opinions, in the order in which their rows are put back."""

FROM_JOURNAL = frozenset({
    "conflicts", "held_records", "ingest_errors", "journal_damages", "journal_positions", "media", "messages",
    "policy_events", "revocations", "sessions", "step_findings", "step_messages", "step_state", "step_tokens", "steps",
    "trajectories", "trajectory_events", "trajectory_state",
})  # fmt: skip
"""Tables that reading the journal makes again."""

OF_THE_FILE = frozenset({"schema_migrations", "opinions_position", "held_feedback"})
"""Tables that are about this file."""

Parts = list[tuple[str, pa.Table]]


class RecordingCursor:
    """A cursor that remembers which tables its statements write to, and which of them got new rows."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor
        self.written: set[str] = set()
        self.added: set[str] = set()

    def execute(self, sql: str, *more: Any) -> Any:
        """As the cursor's own."""
        self.written.update(_WRITES.findall(sql))
        self.added.update(inserted_tables(sql))
        return self._cursor.execute(sql, *more)

    def executemany(self, sql: str, *more: Any) -> Any:
        """As the cursor's own."""
        self.written.update(_WRITES.findall(sql))
        self.added.update(inserted_tables(sql))
        return self._cursor.executemany(sql, *more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


def changes(cursor: Any, written: set[str]) -> Parts:
    """What this transaction changed in the tables of opinions, by table."""
    parts: Parts = []
    for name, logged in LOGGED.items():
        if name not in written:
            continue
        table = _read(cursor, name, "TRUE" if logged.all_rows else logged.changed)
        if len(table) or logged.all_rows:
            parts.append((name, table))
    return parts


def snapshot(cursor: Any) -> Iterator[tuple[str, pa.Table]]:
    """All that the tables of opinions hold, in pieces."""
    for name, logged in LOGGED.items():
        last = cursor.execute(f"SELECT coalesce(max(rowid), -1) FROM {name}").fetchall()[0][0]
        for first in range(0, last + 1, logged.chunk):
            table = _read(cursor, name, f"x.rowid BETWEEN {first} AND {first + logged.chunk - 1}")
            if len(table):
                yield name, table


def _read(cursor: Any, name: str, condition: str) -> pa.Table:
    logged = LOGGED[name]
    columns, joins = "x.*", ""
    dropped = [f"{kind}_id" for kind, selected in (("trajectory", logged.owner), ("step", logged.step)) if selected]
    if dropped:
        columns = f"x.* EXCLUDE ({', '.join(dropped)})"
    if logged.owner:
        columns += ", owner.trajectory_uid"
        joins += " LEFT JOIN trajectories owner ON owner.trajectory_id = x.trajectory_id"
    if logged.step:
        columns += ", fact.step_uid"
        joins += " LEFT JOIN steps fact ON fact.step_id = x.step_id"
    sql = f"SELECT {columns} FROM {name} x{joins} WHERE {condition} ORDER BY x.rowid"
    return cursor.sql(sql).to_arrow_table()


def insert_logged_rows(cursor: Any, name: str, table: pa.Table) -> int:
    """Insert rows of the log into their table; returns how many were left out because their target is missing."""
    logged = LOGGED[name]
    table = table.append_column("row_in_log", pa.array(np.arange(len(table))))
    cursor.register("logged_rows", table)
    try:
        if logged.all_rows:
            cursor.execute(f"DELETE FROM {name}")
        elif logged.key is not None:
            cursor.execute(f"DELETE FROM {name} WHERE {logged.key} IN (SELECT {logged.key} FROM logged_rows)")
        names, columns, joins, exists = ["row_in_log"], "", "", "TRUE"
        if logged.owner:
            names.append("trajectory_uid")
            columns += ", owner.trajectory_id"
            joins += " LEFT JOIN trajectories owner ON owner.trajectory_uid = x.trajectory_uid"
            exists += " AND (x.trajectory_uid IS NULL OR owner.trajectory_id IS NOT NULL)"
        if logged.step:
            names.append("step_uid")
            columns += ", fact.step_id"
            joins += " LEFT JOIN steps fact ON fact.step_uid = x.step_uid"
            exists += " AND (x.step_uid IS NULL OR fact.step_id IS NOT NULL)"
        n = cursor.execute(
            f"INSERT INTO {name} BY NAME SELECT x.* EXCLUDE ({', '.join(names)}){columns} FROM logged_rows x{joins}"
            f" WHERE {'TRUE' if logged.optional else exists} ORDER BY x.row_in_log"
        ).fetchall()[0][0]
    finally:
        cursor.unregister("logged_rows")
    return len(table) - int(n)
