"""A copy of the file while it is in use, and letting go of what nobody needs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from core.errors import InvalidInput
from core.pool.append import MessageStore
from core.pool.content import canonical, decode
from core.pool.database import Cursor, Database, rows, seconds, timestamp
from core.pool.feedback import FeedbackWriter

COPY_BYTES = 8 << 20
REST_S = 3600.0
"""Trajectories that something was added to within this time stay, whatever a rule says."""

_OF_TRAJECTORIES = """
SELECT DISTINCT table_name FROM duckdb_columns()
WHERE column_name = 'trajectory_id' AND schema_name = 'main' AND database_name = current_database() AND NOT internal
    AND table_name NOT LIKE 'dataset_%'
ORDER BY table_name
"""
"""Tables whose rows go with their trajectory; versions hold none of those that go."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Which trajectories may go: those for which all that is given holds. At least one must be.

    Attributes:
        older_than_days: nothing was added for so long.
        consumed: acknowledged batches that held it, at least.
        max_bytes: the oldest of them go until the pool is about so big; None: all of them.
        channel: only of this channel.
    """

    older_than_days: float | None = None
    consumed: int | None = None
    max_bytes: int | None = None
    channel: str | None = None

    def __post_init__(self) -> None:
        """InvalidInput for a rule that names nothing, or something that can't be."""
        if self.older_than_days is None and self.consumed is None and self.max_bytes is None:
            raise InvalidInput(
                "A retention rule names older_than_days, consumed or max_bytes.", field="older_than_days"
            )
        for name in ("older_than_days", "max_bytes"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise InvalidInput(f"{name} is not negative.", field=name)
        if self.consumed is not None and self.consumed < 1:
            raise InvalidInput("consumed is at least 1.", field="consumed")


_CANDIDATES = """
CREATE OR REPLACE TEMP TABLE leaving AS
WITH acked AS (
    SELECT s.trajectory_uid, count(DISTINCT s.batch_uid) AS n FROM batch_steps s JOIN batches b USING (batch_uid)
    WHERE b.state = 'acked' GROUP BY s.trajectory_uid
), leased AS (
    SELECT DISTINCT s.trajectory_uid FROM batch_steps s JOIN batches b USING (batch_uid) WHERE b.state = 'leased'
), total AS (
    SELECT greatest(sum(n_unique_tokens), 1) AS n FROM trajectory_state
), latest AS (
    SELECT trajectory_id, max(ingested_at) AS at FROM steps GROUP BY trajectory_id
), rule AS (
    SELECT t.trajectory_id, t.trajectory_uid, t.n_steps, t.n_unique_tokens, latest.at AS last_at,
        coalesce(t.ended_at, latest.at) AS ended_at,
        t.trajectory_id IN (SELECT trajectory_id FROM dataset_steps) AS in_version,
        t.trajectory_uid IN (SELECT trajectory_uid FROM leased) AS leased,
        latest.at > $recent::TIMESTAMP AS recent,
        t.n_unique_tokens * $n_bytes::DOUBLE / total.n AS n_bytes
    FROM trajectory_state t JOIN latest USING (trajectory_id) CROSS JOIN total
    LEFT JOIN acked USING (trajectory_uid)
    WHERE ($channel::VARCHAR IS NULL OR t.channel = $channel)
        AND ($before::TIMESTAMP IS NULL OR coalesce(t.ended_at, latest.at) < $before)
        AND ($consumed::BIGINT IS NULL OR coalesce(acked.n, 0) >= $consumed)
)
SELECT *, NOT (in_version OR leased OR recent) AS may_go,
    coalesce(sum(n_bytes) FILTER (NOT (in_version OR leased OR recent)) OVER (
        ORDER BY ended_at, trajectory_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ), 0) AS n_bytes_before
FROM rule
"""
_GOES = "may_go AND ($excess::DOUBLE IS NULL OR n_bytes_before < $excess)"
_PREVIEW = f"""
SELECT count(*) FILTER ({_GOES}) AS n_trajectories,
    coalesce(sum(n_steps) FILTER ({_GOES}), 0)::BIGINT AS n_steps,
    coalesce(sum(n_unique_tokens) FILTER ({_GOES}), 0)::BIGINT AS n_tokens,
    coalesce(sum(n_bytes) FILTER ({_GOES}), 0)::BIGINT AS n_bytes,
    min(ended_at) FILTER ({_GOES}) AS oldest, max(ended_at) FILTER ({_GOES}) AS newest,
    count(*) FILTER (in_version) AS n_kept_in_version, count(*) FILTER (leased) AS n_kept_leased,
    count(*) FILTER (recent) AS n_kept_recent
FROM leaving
"""


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


class Upkeep:
    """The part of ``Pool`` that copies the file and lets trajectories go."""

    _db: Database
    _messages: MessageStore
    _feedback: FeedbackWriter
    _writing: Callable[[], AbstractContextManager[Cursor]]

    def copy_to(self, target: Path) -> dict[str, Any]:
        """Copy the file and its write-ahead log as they stand between two writes; writers wait, readers don't.

        Returns ``{files: [names beside target], positions, n_steps}``, of that very moment.
        """
        source = Path(self._db.path)
        if self._db.path == ":memory:":
            raise InvalidInput("A pool in memory has no file to copy.", field="data_dir")
        with self._db.lock:
            with self._db.read() as cursor:
                positions = dict(cursor.execute("SELECT segment, next_offset FROM journal_positions").fetchall())
                n_steps = cursor.execute("SELECT count(*) FROM steps").fetchall()[0][0]
            names = []
            for path in (source, source.with_name(source.name + ".wal")):
                if path.exists():
                    copy_file(path, target.with_name(target.name + path.name.removeprefix(source.name)))
                    names.append(target.name + path.name.removeprefix(source.name))
        return {"files": names, "positions": positions, "n_steps": n_steps}

    @property
    def n_bytes(self) -> int:
        """Size of the file and its write-ahead log, bytes."""
        source = Path(self._db.path)
        paths = (source, source.with_name(source.name + ".wal"))
        return sum(path.stat().st_size for path in paths if path.exists())

    def preview_retention(self, rule: Retention) -> dict[str, Any]:
        """What the rule would delete now, and what it would spare.

        Returns ``{n_trajectories, n_steps, n_tokens, n_bytes, oldest, newest, n_kept_in_version, n_kept_leased,
        n_kept_recent}``; ``n_bytes`` is an estimate by tokens, times are UTC seconds or None.
        """
        with self._db.read() as cursor:
            return self._leaving(cursor, rule)

    def apply_retention(self, rule: Retention, *, author: str) -> dict[str, Any]:
        """Delete what the rule names, in one transaction; returns what ``preview_retention`` would have said.

        What is in a dataset version, leased, or newer than an hour stays. The file does not shrink; what is free in it
        is used again. Batches remember what they held.
        """
        with self._writing() as cursor:
            told = self._leaving(cursor, rule)
            bound = {"excess": self._excess(rule)}
            cursor.execute(f"CREATE OR REPLACE TEMP TABLE gone AS SELECT * FROM leaving WHERE {_GOES}", bound)
            cursor.execute(
                "CREATE OR REPLACE TEMP TABLE gone_steps AS SELECT step_id, step_uid FROM steps SEMI JOIN gone"
                " USING (trajectory_id)"
            )
            cursor.execute("DELETE FROM step_values WHERE step_uid IN (SELECT step_uid FROM gone_steps)")
            cursor.execute(
                "DELETE FROM feedback WHERE feedback_uid IN (SELECT feedback_uid FROM feedback_state"
                " WHERE trajectory_id IN (SELECT trajectory_id FROM gone))"
            )
            cursor.execute("DELETE FROM feedback_state WHERE trajectory_id IN (SELECT trajectory_id FROM gone)")
            for (table,) in cursor.execute(_OF_TRAJECTORIES).fetchall():
                cursor.execute(f"DELETE FROM {table} WHERE trajectory_id IN (SELECT trajectory_id FROM gone)")
            cursor.execute(_ORPHANS)
            cursor.execute(_ORPHANED_MEDIA)
            cursor.execute(
                "INSERT INTO retention_runs VALUES (?, ?, ?, ?)",
                [_text(asdict(rule)), _text(told), author, timestamp(self._db.clock())],
            )
        self._messages.forget()
        self._feedback.forget()
        return told

    def retention_runs(self) -> list[dict[str, Any]]:
        """What was deleted when, by whom and by which rule, newest first."""
        with self._db.read() as cursor:
            found = rows(cursor, "SELECT * FROM retention_runs ORDER BY run_at DESC, rowid DESC")
        return [
            {**row, "rule": decode(row["rule"]), "deleted": decode(row["deleted"]), "run_at": seconds(row["run_at"])}
            for row in found
        ]

    def _excess(self, rule: Retention) -> float | None:
        return None if rule.max_bytes is None else max(0.0, float(self.n_bytes - rule.max_bytes))

    def _leaving(self, cursor: Cursor, rule: Retention) -> dict[str, Any]:
        now = self._db.clock()
        cursor.execute(
            _CANDIDATES,
            {
                "channel": rule.channel,
                "before": None if rule.older_than_days is None else timestamp(now - rule.older_than_days * 86400),
                "consumed": rule.consumed,
                "recent": timestamp(now - REST_S),
                "n_bytes": float(self.n_bytes),
            },
        )
        told = rows(cursor, _PREVIEW, {"excess": self._excess(rule)})[0]
        return {**told, "oldest": seconds(told["oldest"]), "newest": seconds(told["newest"])}


def _text(value: Mapping[str, Any]) -> str:
    return canonical(dict(value)).decode("utf-8")


def copy_file(source: Path, target: Path) -> None:
    """Copy one file and sync it."""
    with source.open("rb") as reading, target.open("wb") as writing:
        while piece := reading.read(COPY_BYTES):
            writing.write(piece)
        writing.flush()
        os.fsync(writing.fileno())
