"""``pool.retention``: deletes trajectories by a rule, after a preview and a confirmation, into the trash."""

from __future__ import annotations

import hashlib
import re
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from core.errors import Conflict, InvalidInput, NotFound
from core.pool.state.derive import refresh
from core.pool.store.content import canonical, decode
from core.pool.store.database import Cursor, Database, rows, seconds, timestamp
from core.pool.store.file import PoolFile
from core.pool.store.writer import Writer
from core.pool.upkeep.confirmation import Confirmations
from core.pool.upkeep.deletion import Deletions, forget, read_deletions, record_deleted_uids
from core.pool.upkeep.trashedruns import read_note, reinsert_trashed_run, uptime, write_trashed_run

MAX_CHANGES = 8
"""The number of latest deletions and restorations whose trajectories are kept in memory."""
REST_S = 3600.0
"""Seconds. Trajectories that were added to within this time are never deleted."""


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
_TO_DELETE = "may_go AND ($excess::DOUBLE IS NULL OR n_bytes_before < $excess)"
_PREVIEW = f"""
SELECT count(*) FILTER ({_TO_DELETE}) AS n_trajectories,
    coalesce(sum(n_steps) FILTER ({_TO_DELETE}), 0)::BIGINT AS n_steps,
    coalesce(sum(n_unique_tokens) FILTER ({_TO_DELETE}), 0)::BIGINT AS n_tokens,
    coalesce(sum(n_bytes) FILTER ({_TO_DELETE}), 0)::BIGINT AS n_bytes,
    min(ended_at) FILTER ({_TO_DELETE}) AS oldest, max(ended_at) FILTER ({_TO_DELETE}) AS newest,
    count(*) FILTER (in_version) AS n_kept_in_version, count(*) FILTER (leased) AS n_kept_leased,
    count(*) FILTER (recent) AS n_kept_recent
FROM leaving
"""

_RUNS = """
SELECT r.rule, r.deleted, r.author, r.run_at, r.run_uid, back.restored_at FROM retention_runs r
LEFT JOIN restored_runs back USING (run_uid) ORDER BY r.run_at DESC, r.rowid DESC
"""
_UIDS = "SELECT trajectory_uid FROM trajectories WHERE trajectory_id IN (SELECT unnest(?::BIGINT[]))"


class RetentionRuns:
    """``pool.retention``: lets trajectories go by a rule, and puts them back.

    Attributes:
        trash: folder that deleted data is moved to; None: deletion is final.
        confirmations: tokens of previews.
        n_deletions: deletions and restorations so far: who remembers steps asks ``changed_since`` when it
            changes.
    """

    def __init__(self, database: Database, writer: Writer, file: PoolFile, trash: Path | None) -> None:
        self._db, self._writer, self._file = database, writer, file
        self.trash = trash
        self.confirmations = Confirmations(database.clock)
        self.n_deletions = 0
        self._changes: tuple[tuple[list[str], list[str]], ...] = ()

    def preview(self, rule: Retention) -> dict[str, Any]:
        """Counts of what the rule would delete now, and what it would keep.

        Returns ``{n_trajectories, n_steps, n_tokens, n_bytes, oldest, newest, n_kept_in_version, n_kept_leased,
        n_kept_recent, confirm, expires_at}``; ``n_bytes`` is an estimate by tokens, times are UTC seconds or None.
        ``confirm`` is the code that ``apply`` requires; it is valid for these trajectories until ``expires_at``.
        """
        with self._db.read() as cursor:
            counts = self._deletable(cursor, rule)
            cursor.execute(
                f"CREATE OR REPLACE TEMP TABLE gone AS SELECT * FROM leaving WHERE {_TO_DELETE}",
                {"excess": self._excess(rule)},
            )
            return {**counts, **self.confirmations.issue(_digest(cursor, rule))}

    def apply(self, rule: Retention, *, author: str, confirm: str | None = None) -> dict[str, Any]:
        """Delete what the rule names, in one transaction; returns the result of ``preview``, and ``run_uid``.

        Trajectories in a dataset version, leased, or newer than an hour are kept. Deleted ones are moved to the trash,
        if the pool has one, until their time is over. The file does not shrink; its free space is used again. Batches
        keep their records of deleted steps.

        Args:
            confirm: the token of a preview: Conflict when what would go is not what was previewed, or it has expired.
        """
        run_uid = f"run-{uuid.uuid4().hex}"
        now = self._db.clock()
        trash = None if self.trash is None else self.trash / run_uid
        try:
            with self._writer.writing() as cursor:
                counts = self._deletable(cursor, rule)
                cursor.execute(
                    f"CREATE OR REPLACE TEMP TABLE gone AS SELECT * FROM leaving WHERE {_TO_DELETE}",
                    {"excess": self._excess(rule)},
                )
                if confirm is not None:
                    self.confirmations.check(confirm, _digest(cursor, rule))
                gone = [uid for (uid,) in cursor.execute("SELECT trajectory_uid FROM gone").fetchall()]
                record_deleted_uids(cursor, run_uid)
                if trash is not None:
                    note = {"run_uid": run_uid, "at": now, "author": author, "rule": asdict(rule), "deleted": counts}
                    note |= {"up": list(uptime()), "log": self._db.log and self._db.log.generation}
                    write_trashed_run(cursor, trash, run_uid, note)
                positions = dict(cursor.execute("SELECT segment, next_offset FROM journal_positions").fetchall())
                cursor.execute(
                    "INSERT INTO retention_runs BY NAME SELECT ? AS rule, ? AS deleted, ? AS author, ? AS run_at,"
                    " ? AS run_uid, ? AS positions, ? AS next_ids",
                    [
                        _text(asdict(rule)), _text(counts), author, timestamp(now),
                        run_uid, _text(positions), _text(self._writer.next),
                    ],
                )  # fmt: skip
                forget(cursor, run_uid)
        except BaseException:
            if trash is not None:
                shutil.rmtree(trash, ignore_errors=True)
            raise
        if gone:
            self._forget_steps(gone, [])
        return {**counts, "run_uid": run_uid}

    def deletions(self) -> Deletions:
        """The deletions that were not restored."""
        with self._db.read() as cursor:
            return read_deletions(cursor)

    def restore(self, run_uid: str, *, author: str) -> int:
        """Restore the rows of a run; returns how many trajectories. NotFound when the run is not in the trash."""
        if self.trash is None or not re.fullmatch(r"run-[0-9a-f]{32}", run_uid):
            raise NotFound(f"The trash holds no run {run_uid!r}.", field="run_uid")
        with self._writer.writing() as cursor:
            if cursor.execute("SELECT count(*) FROM restored_runs WHERE run_uid = ?", [run_uid]).fetchall()[0][0]:
                raise Conflict(f"Run {run_uid!r} was restored already.", field="run_uid")
            note = read_note(self.trash / run_uid) or {}
            back = reinsert_trashed_run(cursor, self.trash / run_uid)
            cursor.execute("INSERT INTO restored_runs VALUES (?, ?, ?)", [run_uid, author, timestamp(self._db.clock())])
            if self._db.log is not None and note.get("log") == self._db.log.generation:
                # The rows themselves are already in this log.
                self._db.log_only("restored_runs")
            refresh(cursor, back)
            uids = [uid for (uid,) in cursor.execute(_UIDS, [back]).fetchall()]
        if uids:
            self._forget_steps([], uids)
        return len(back)

    def changed_since(self, n_deletions: int) -> tuple[set[str], set[str]] | None:
        """(deleted trajectories, restored ones) since ``n_deletions`` had this value; None: too many since."""
        n = self.n_deletions - n_deletions
        latest = self._changes[-n:] if n else ()
        if len(latest) < n:
            return None
        return {uid for gone, _ in latest for uid in gone}, {uid for _, back in latest for uid in back}

    def _forget_steps(self, gone: list[str], back: list[str]) -> None:
        self._changes = (*self._changes, (gone, back))[-MAX_CHANGES:]
        self.n_deletions += 1
        self._writer.forget()

    def runs(self) -> list[dict[str, Any]]:
        """The runs, newest first: counts, time, author and rule."""
        with self._db.read() as cursor:
            runs = rows(cursor, _RUNS)
        return [
            {
                **row,
                "rule": decode(row["rule"]),
                "deleted": decode(row["deleted"]),
                "run_at": seconds(row["run_at"]),
                "restored_at": seconds(row["restored_at"]),
            }
            for row in runs
        ]

    def _excess(self, rule: Retention) -> float | None:
        return None if rule.max_bytes is None else max(0.0, float(self._file.n_bytes - rule.max_bytes))

    def _deletable(self, cursor: Cursor, rule: Retention) -> dict[str, Any]:
        now = self._db.clock()
        cursor.execute(
            _CANDIDATES,
            {
                "channel": rule.channel,
                "before": None if rule.older_than_days is None else timestamp(now - rule.older_than_days * 86400),
                "consumed": rule.consumed,
                "recent": timestamp(now - REST_S),
                "n_bytes": float(self._file.n_bytes),
            },
        )
        counts = rows(cursor, _PREVIEW, {"excess": self._excess(rule)})[0]
        return {**counts, "oldest": seconds(counts["oldest"]), "newest": seconds(counts["newest"])}


def _digest(cursor: Cursor, rule: Retention) -> str:
    """The digest that a token confirms: the rule, and the trajectories and steps of ``gone``."""
    trajectories = cursor.execute("SELECT trajectory_uid, n_steps FROM gone ORDER BY trajectory_uid").fetchall()
    return hashlib.sha256(canonical([asdict(rule), [list(row) for row in trajectories]])).hexdigest()


def _text(value: Mapping[str, Any]) -> str:
    return canonical(dict(value)).decode("utf-8")
