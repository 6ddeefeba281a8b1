"""Batches handed to trainers: who holds what until when, what was consumed, and what the trainer said of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from core.errors import Conflict, InvalidInput, NotFound
from core.pool.content import canonical, decode
from core.pool.database import Cursor, Database, arrow, registered, rows, seconds, timestamp

_JSON = ("view", "recipe", "totals")
_TIMES = ("leased_at", "expires_at", "finished_at")
_STEPS = """
INSERT INTO batch_steps
SELECT ?, place, step_uid, trajectory_uid, prompt_uid, step_index, group_number, trajectory, policy_version, reward,
    trajectory_reward, in_loss, advantage, step_return, token_advantages
FROM batch_rows
"""
# Expired leases hold nothing. Another consumer's lease holds whole groups of its channel; what was consumed is
# trajectories, so that new rollouts of the same prompt may be fetched later.
_IN_USE = """
SELECT DISTINCT t.trajectory_uid FROM trajectory_state t
JOIN (SELECT DISTINCT s.prompt_uid, b.channel FROM batch_steps s JOIN batches b USING (batch_uid)
    WHERE b.state = 'leased' AND (NOT $shared OR b.consumer = $consumer)) held
ON t.prompt_uid = held.prompt_uid AND t.channel = held.channel
UNION
SELECT trajectory_uid FROM (
    SELECT DISTINCT s.batch_uid, s.trajectory_uid FROM batch_steps s JOIN batches b USING (batch_uid)
    WHERE b.state = 'acked' AND (NOT $shared OR b.consumer = $consumer)
) GROUP BY trajectory_uid HAVING count(*) >= $max_uses
"""


class BatchBook:
    """The part of ``Pool`` that keeps leases and the record of consumption."""

    _db: Database

    def expire_batches(self) -> list[str]:
        """End leases whose time is over; returns their uids."""
        now = timestamp(self._db.clock())
        with self._db.read() as cursor:
            due = cursor.execute(
                "SELECT batch_uid FROM batches WHERE state = 'leased' AND expires_at <= ?", [now]
            ).fetchall()
        if not due:
            return []
        with self._db.write() as cursor:
            found = cursor.execute(
                "UPDATE batches SET state = 'expired', finished_at = ? WHERE state = 'leased' AND expires_at <= ?"
                " RETURNING batch_uid",
                [now, now],
            ).fetchall()
            for (uid,) in found:
                _event(cursor, uid, "expired", None, now)
        return [uid for (uid,) in found]

    def in_use(self, consumer: str, *, shared: bool, max_uses: int) -> pa.Array:
        """Trajectories that this consumer's next batch may not hold: string [n]."""
        sql = _IN_USE.replace("$shared", "?::BOOLEAN").replace("$consumer", "?").replace("$max_uses", "?::BIGINT")
        with self._db.read() as cursor:
            table = arrow(cursor, sql, [shared, consumer, shared, consumer, max_uses])
        return table["trajectory_uid"].combine_chunks()

    def lease_batch(self, batch: Mapping[str, Any], steps: pa.Table) -> None:
        """Store a leased batch and its steps in one transaction.

        Args:
            batch: the columns of ``batches`` by name, times in seconds; ``view``, ``recipe``, ``totals`` as values.
            steps: the columns of ``batch_steps`` but its uid.
        """
        row = {**batch, **{name: canonical(batch[name]).decode("utf-8") for name in _JSON}}
        row |= {name: None if batch.get(name) is None else timestamp(batch[name]) for name in _TIMES}
        with self._db.write() as cursor:
            cursor.execute(
                f"INSERT INTO batches ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", list(row.values())
            )
            with registered(cursor, batch_rows=steps):
                cursor.execute(_STEPS, [row["batch_uid"]])
            _event(cursor, row["batch_uid"], "leased", {"expires_at": batch["expires_at"]}, row["leased_at"])

    def finish_batch(
        self, batch_uid: str, state: str, *, consumer: str | None = None, update: int | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Acknowledge (``acked``) or give back (``released``); repeating the same word changes nothing.

        An expired lease may still be acknowledged while nobody else has got any of its trajectories.

        Raises:
            NotFound: no such batch.
            Conflict: another consumer's batch, or one whose state doesn't allow it.
        """
        with self._db.write() as cursor:
            batch = _batch(cursor, batch_uid)
            if consumer is not None and batch["consumer"] != consumer:
                raise Conflict(f"Batch {batch_uid!r} belongs to {batch['consumer']!r}.", field="consumer")
            if batch["state"] == state:
                return batch
            late = batch["state"] == "expired" and state == "acked"
            if batch["state"] != "leased" and not late:
                raise Conflict(
                    f"Batch {batch_uid!r} is {batch['state']}, so it can't be {state}.",
                    field="uid",
                    hint="Fetch again: its groups went back to the pool." if batch["state"] != "acked" else None,
                )
            if late and _taken_again(cursor, batch_uid):
                raise Conflict(
                    f"The lease of batch {batch_uid!r} ended and its groups were handed out again.",
                    field="uid",
                    hint="Ask for a longer lease_s.",
                )
            now = timestamp(self._db.clock())
            cursor.execute(
                "UPDATE batches SET state = ?, finished_at = ?, update_index = coalesce(?, update_index)"
                " WHERE batch_uid = ?",
                [state, now, update, batch_uid],
            )
            _event(cursor, batch_uid, state, detail, now)
            return _batch(cursor, batch_uid)

    def batch(self, batch_uid: str) -> dict[str, Any]:
        """One batch without its steps; times in seconds. NotFound when there is none."""
        with self._db.read() as cursor:
            return _batch(cursor, batch_uid)

    def batch_of_request(self, consumer: str, request_id: str) -> dict[str, Any] | None:
        """The newest batch that this request got, or None."""
        with self._db.read() as cursor:
            found = cursor.execute(
                "SELECT batch_uid FROM batches WHERE consumer = ? AND request_id = ?"
                " ORDER BY leased_at DESC, rowid DESC LIMIT 1",
                [consumer, request_id],
            ).fetchone()
            return None if found is None else _batch(cursor, found[0])

    def batches(self, limit: int = 100) -> list[dict[str, Any]]:
        """Newest first."""
        with self._db.read() as cursor:
            found = rows(cursor, "SELECT * FROM batches ORDER BY leased_at DESC, rowid DESC LIMIT ?", [limit])
        return [_public(row) for row in found]

    def batch_steps(self, batch_uid: str) -> pa.Table:
        """The steps of a batch in order, as they were planned."""
        with self._db.read() as cursor:
            return arrow(cursor, "SELECT * FROM batch_steps WHERE batch_uid = ? ORDER BY place", [batch_uid])

    def consumption(self, step_uid: str) -> list[dict[str, Any]]:
        """Every batch that held a step, oldest first: who, when, which update, recipe and policy version."""
        with self._db.read() as cursor:
            found = rows(
                cursor,
                "SELECT b.* EXCLUDE (totals, view, recipe), s.advantage, s.trajectory_reward"
                " FROM batch_steps s JOIN batches b USING (batch_uid) WHERE s.step_uid = ? ORDER BY b.leased_at",
                [step_uid],
            )
        return [_public(row) for row in found]

    def add_metrics(
        self, batch_uid: str, update: int | None, metrics: Mapping[str, float | None],
        steps: Sequence[tuple[str, Mapping[str, float | None]]] = (),
    ) -> int:  # fmt: skip
        """Store what a trainer measured in an update; returns how many values. InvalidInput names a foreign step."""
        now = timestamp(self._db.clock())
        values: list[tuple[str | None, str, float | None]] = [(None, name, value) for name, value in metrics.items()]
        values += [(uid, name, value) for uid, found in steps for name, value in found.items()]
        with self._db.write() as cursor:
            _batch(cursor, batch_uid)
            known = {
                uid
                for (uid,) in cursor.execute(
                    "SELECT step_uid FROM batch_steps WHERE batch_uid = ?", [batch_uid]
                ).fetchall()
            }
            for index, (uid, _) in enumerate(steps):
                if uid not in known:
                    raise InvalidInput(f"Step {uid!r} is not in this batch.", field=f"steps.{index}.step_uid")
            for step_uid, name, value in values:
                cursor.execute(
                    "INSERT INTO batch_metrics VALUES (?, ?, ?, ?, ?, ?)",
                    [batch_uid, update, step_uid, name, value, now],
                )
        return len(values)

    def metrics(self, batch_uid: str | None = None) -> list[dict[str, Any]]:
        """Posted values, oldest first: ``{batch_uid, update_index, step_uid, name, value, created_at}``."""
        with self._db.read() as cursor:
            found = rows(
                cursor,
                "SELECT * FROM batch_metrics WHERE ?::VARCHAR IS NULL OR batch_uid = ? ORDER BY created_at, rowid",
                [batch_uid, batch_uid],
            )
        return [{**row, "created_at": seconds(row["created_at"])} for row in found]


def _taken_again(cursor: Cursor, batch_uid: str) -> bool:
    row = cursor.execute(
        "SELECT count(*) FROM batch_steps mine JOIN batch_steps other USING (trajectory_uid)"
        " JOIN batches b ON b.batch_uid = other.batch_uid"
        " WHERE mine.batch_uid = ? AND b.batch_uid <> ? AND b.state IN ('leased', 'acked')"
        " AND b.leased_at >= (SELECT leased_at FROM batches WHERE batch_uid = ?)",
        [batch_uid, batch_uid, batch_uid],
    ).fetchone()
    return bool(row[0])


def _batch(cursor: Cursor, batch_uid: str) -> dict[str, Any]:
    found = rows(cursor, "SELECT * FROM batches WHERE batch_uid = ?", [batch_uid])
    if not found:
        raise NotFound(f"No batch {batch_uid!r}.", field="uid")
    return _public(found[0])


def _event(cursor: Cursor, batch_uid: str, event: str, detail: Mapping[str, Any] | None, now: Any) -> None:
    text = None if detail is None else canonical(dict(detail)).decode("utf-8")
    cursor.execute("INSERT INTO batch_events VALUES (?, ?, ?, ?)", [batch_uid, event, text, now])


def _public(row: dict[str, Any]) -> dict[str, Any]:
    row = {**row, **{name: decode(row[name]) for name in _JSON if name in row}}
    return {**row, **{name: seconds(row[name]) for name in _TIMES if name in row}}
