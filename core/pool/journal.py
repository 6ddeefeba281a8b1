"""``pool.journal``: read positions in the journal, damages, sessions and policy events."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from core.pool.store import bookkeeping
from core.pool.store.database import Database, rows
from core.types import PolicyEvent


class JournalRecords:
    """``pool.journal``: the state of reading the journal."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def positions(self) -> dict[str, int]:
        """Journal segment -> next unread offset."""
        with self._db.read() as cursor:
            return dict(cursor.execute("SELECT segment, next_offset FROM journal_positions").fetchall())

    def held(self) -> list[dict[str, Any]]:
        """Records that are read and wait to be stored: the columns of ``held_records``."""
        with self._db.read() as cursor:
            return rows(cursor, "SELECT * FROM held_records ORDER BY written_at, segment, record_offset")

    def recorders(self, trajectories: Collection[str], writers: Collection[str]) -> list[tuple[str, str]]:
        """The pairs (trajectory, writer) of these for which there is a step in a segment of the writer."""
        with self._db.read() as cursor:
            pairs = cursor.execute(
                "SELECT DISTINCT trajectory_uid, writer FROM (SELECT trajectory_uid,"
                " regexp_replace(journal_segment, '-[0-9]+[.]seg$', '') AS writer"
                " FROM steps JOIN trajectories USING (trajectory_id)"
                " WHERE trajectory_uid IN (SELECT unnest(?::VARCHAR[])))"
                " WHERE writer IN (SELECT unnest(?::VARCHAR[]))",
                [list(trajectories), list(writers)],
            ).fetchall()
        return [(str(uid), str(writer)) for uid, writer in pairs]

    def errors(self, limit: int = 100) -> list[dict[str, Any]]:
        """Journal records that could not become steps, newest first."""
        with self._db.read() as cursor:
            return rows(
                cursor, "SELECT * FROM ingest_errors ORDER BY created_at DESC, next_offset DESC LIMIT ?", [limit]
            )

    def damages(self, limit: int = 100) -> list[dict[str, Any]]:
        """Places of the journal where records should be and are not, newest first."""
        with self._db.read() as cursor:
            return rows(cursor, "SELECT * FROM journal_damages ORDER BY created_at DESC, segment LIMIT ?", [limit])

    def n_damages(self) -> int:
        """How many such places ingest has met."""
        with self._db.read() as cursor:
            return int(cursor.execute("SELECT count(*) FROM journal_damages").fetchall()[0][0])

    def sessions(self) -> list[dict[str, Any]]:
        """Session keys' hashes with their sessions, oldest first."""
        with self._db.read() as cursor:
            return bookkeeping.list_sessions(cursor)

    def policy_events(self) -> list[PolicyEvent]:
        """What trainers reported, oldest first."""
        with self._db.read() as cursor:
            return bookkeeping.list_policy_events(cursor)
