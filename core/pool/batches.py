"""``pool.batches``: batches leased to trainers, until when, their states, and the metrics that trainers report."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from core.errors import Conflict, InvalidInput, NotFound
from core.pool.store.changes import NO_CHANGES
from core.pool.store.content import canonical, decode
from core.pool.store.database import Cursor, Database, arrow, registered, rows, seconds, timestamp
from core.pool.upkeep.opinionlog import read_plan

PLACE = "place"
"""The part of a plan that is stored beside the opinions log."""
STATES = ("leased", "acked", "released", "expired")
STEP_COLUMNS = ("step_uid", "trajectory_uid", "prompt_uid", "policy_version", "trajectory_reward", "advantage")
Metrics = Mapping[str, float | None]
StepMetrics = Sequence[tuple[str, Metrics]]
NO_METRICS: Metrics = {}
_TIMES = ("leased_at", "expires_at", "finished_at", "created_at", "seen_at")

# A lease holds whole groups of its channel, so that no other trainer gets the rest of one. What was consumed is
# trajectories: new rollouts of the same prompt are a new group.
_IN_USE = """
SELECT DISTINCT t.trajectory_uid FROM trajectory_state t
JOIN (
    SELECT DISTINCT s.prompt_uid, b.channel FROM batch_steps s JOIN batches b USING (batch_uid)
    WHERE b.state = 'leased' AND (NOT $shared OR b.consumer = $consumer)
) held ON t.prompt_uid = held.prompt_uid AND t.channel = held.channel
UNION
SELECT DISTINCT s.trajectory_uid FROM batch_steps s JOIN batches b USING (batch_uid)
WHERE b.state = 'leased' AND (NOT $shared OR b.consumer = $consumer)
UNION
SELECT trajectory_uid FROM (
    SELECT DISTINCT s.batch_uid, s.trajectory_uid FROM batch_steps s JOIN batches b USING (batch_uid)
    WHERE b.state = 'acked' AND (NOT $shared OR b.consumer = $consumer)
) GROUP BY trajectory_uid HAVING $max_uses IS NOT NULL AND count(*) >= $max_uses::BIGINT
"""
_RUNNING = """
SELECT batch_uid, epoch(expires_at), epoch(coalesce(
    (SELECT max(e.created_at) FROM batch_events e WHERE e.batch_uid = b.batch_uid AND e.event IN ('leased', 'renewed')),
    leased_at
)) FROM batches b WHERE state = 'leased'
"""
# By the order of the events: their times are the clock's, which may have been set back in between.
_TAKEN_AGAIN = """
SELECT count(*) FROM batch_steps mine
JOIN batch_steps other USING (trajectory_uid)
JOIN batches b ON b.batch_uid = other.batch_uid
JOIN batch_events e ON e.batch_uid = b.batch_uid AND e.event = b.state
WHERE mine.batch_uid = $uid AND b.batch_uid <> $uid AND b.state IN ('leased', 'acked')
    AND e.rowid > (SELECT coalesce(max(rowid), -1) FROM batch_events WHERE batch_uid = $uid AND event = 'leased')
"""


class Batches:
    """``pool.batches``: leases, and the record of consumption. Times are UTC seconds.

    A lease ends after its time has passed, not when the clock shows ``expires_at``: a clock that is set forward would
    hand a trainer's groups to another one.

    Args:
        database: the pool's file.
        elapsed: seconds that no setting of the clock changes; by default the database's clock.
    """

    def __init__(self, database: Database, elapsed: Callable[[], float] | None = None) -> None:
        self._db = database
        self._elapsed = elapsed or database.clock
        self._ends: dict[str, float] = {}
        self._ends_lock = threading.Lock()

    def expire(self) -> list[str]:
        """End leases whose time is over; returns their uids."""
        with self._db.read() as cursor:
            if not any(left <= 0 for left in self._left_s(cursor).values()):
                return []
        now = timestamp(self._db.clock())
        with self._db.write(NO_CHANGES) as cursor:
            # A lease may have been renewed meanwhile.
            expired = [uid for uid, left in self._left_s(cursor).items() if left <= 0]
            for uid in expired:
                cursor.execute("UPDATE batches SET state = 'expired', finished_at = ? WHERE batch_uid = ?", [now, uid])
                _event(cursor, uid, "expired", None, now)
        with self._ends_lock:
            for uid in expired:
                self._ends.pop(uid, None)
        return expired

    def next_expiry(self) -> float | None:
        """When the first running lease ends; None when there is none."""
        with self._db.read() as cursor:
            left = self._left_s(cursor).values()
        return self._db.clock() + min(left) if left else None

    def _left_s(self, cursor: Cursor) -> dict[str, float]:
        """How long each running lease may still last, seconds.

        A lease of an earlier run has what the clock leaves of it, and at most what it was given: the clock may have
        been set meanwhile.
        """
        leased = cursor.execute(_RUNNING).fetchall()
        now, elapsed = self._db.clock(), self._elapsed()
        with self._ends_lock:
            for uid, until, granted_at in leased:
                self._ends.setdefault(uid, elapsed + min(until - now, until - granted_at))
            return {uid: round(self._ends[uid] - elapsed, 3) for uid, *_ in leased}

    def _lasts(self, batch_uid: str, lease_s: float) -> None:
        with self._ends_lock:
            self._ends[batch_uid] = self._elapsed() + lease_s

    def in_use(self, consumer: str, *, shared: bool, max_uses: int | None) -> pa.Array:
        """Trajectories that this consumer's next batch may not hold: string [n].

        Args:
            consumer: the name of the consumer.
            shared: other consumers' leases and consumption don't count.
            max_uses: consumed batches after which a trajectory is used up; None: never.
        """
        with self._db.read() as cursor:
            table = arrow(cursor, _IN_USE, {"consumer": consumer, "shared": shared, "max_uses": max_uses})
        return table["trajectory_uid"].combine_chunks()

    def lease(self, batch: Mapping[str, Any], steps: pa.Table, parts: Mapping[str, bytes]) -> None:
        """Store a leased batch, its steps and its plan in one transaction.

        Args:
            batch: columns of ``batches`` by name, times in seconds.
            steps: at least ``STEP_COLUMNS``.
            parts: the frozen plan.
        """
        uid = batch["batch_uid"]
        row = {name: timestamp(value) if name in _TIMES else value for name, value in batch.items()}
        with self._db.write(NO_CHANGES) as cursor:
            if (log := self._db.log) is not None:
                parts = {PLACE: log.keep_plan(uid, parts).encode()}
            cursor.execute(
                f"INSERT INTO batches ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", list(row.values())
            )
            with registered(cursor, batch_rows=steps.select(STEP_COLUMNS)):
                cursor.execute(f"INSERT INTO batch_steps SELECT ?, {', '.join(STEP_COLUMNS)} FROM batch_rows", [uid])
            cursor.executemany("INSERT INTO batch_plans VALUES (?, ?, ?)", [[uid, *part] for part in parts.items()])
            _event(cursor, uid, "leased", {"expires_at": batch["expires_at"]}, timestamp(batch["leased_at"]))
            self._lasts(uid, batch["expires_at"] - batch["leased_at"])

    def renew(self, batch_uid: str, expires_at: float, *, consumer: str | None = None) -> dict[str, Any]:
        """Move a running lease's end. NotFound, or Conflict when it runs no more or is another consumer's."""
        with self._db.write(NO_CHANGES) as cursor:
            batch = _owned(cursor, batch_uid, consumer)
            if batch["state"] != "leased":
                raise _wrong_state(batch, "renewed")
            cursor.execute("UPDATE batches SET expires_at = ? WHERE batch_uid = ?", [timestamp(expires_at), batch_uid])
            _event(cursor, batch_uid, "renewed", {"expires_at": expires_at}, timestamp(self._db.clock()))
            self._lasts(batch_uid, expires_at - self._db.clock())
            return _batch(cursor, batch_uid)

    def finish(
        self, batch_uid: str, state: str, *, consumer: str | None = None, update: int | None = None,
        detail: Mapping[str, Any] | None = None, metrics: Metrics = NO_METRICS, steps: StepMetrics = (),
    ) -> dict[str, Any]:  # fmt: skip
        """Acknowledge (``acked``) or give back (``released``) a batch; repeating the same call changes nothing.

        ``metrics`` and ``steps`` (as in ``add_metrics``) are stored in the same transaction.

        An expired lease may still be acknowledged if no other batch has got one of its trajectories since.

        Raises:
            NotFound: no such batch.
            Conflict: another consumer's batch, or one whose state doesn't allow it.
            InvalidInput: a metric of a step that the batch doesn't hold.
        """
        with self._db.write(NO_CHANGES) as cursor:
            batch = _owned(cursor, batch_uid, consumer)
            if batch["state"] == state:
                return batch
            late = batch["state"] == "expired" and state == "acked"
            if batch["state"] != "leased" and not late:
                raise _wrong_state(batch, state)
            if late and cursor.execute(_TAKEN_AGAIN, {"uid": batch_uid}).fetchone()[0]:
                raise Conflict(
                    f"The lease of batch {batch_uid!r} ended and its trajectories were handed out again.",
                    field="uid",
                    hint="Ask for a longer lease_s, or renew in time.",
                )
            now = timestamp(self._db.clock())
            cursor.execute(
                "UPDATE batches SET state = ?, finished_at = ?, update_index = coalesce(?, update_index)"
                " WHERE batch_uid = ?",
                [state, now, update, batch_uid],
            )
            _event(cursor, batch_uid, state, detail, now)
            _insert_metrics(cursor, batch_uid, update, metrics, steps, now)
            with self._ends_lock:
                self._ends.pop(batch_uid, None)
            return _batch(cursor, batch_uid)

    def get(self, batch_uid: str) -> dict[str, Any]:
        """One batch and its ``events``, oldest first. NotFound when there is none."""
        with self._db.read() as cursor:
            events = rows(
                cursor,
                "SELECT event, detail, created_at FROM batch_events WHERE batch_uid = ? ORDER BY created_at, rowid",
                [batch_uid],
            )
            return {
                **_batch(cursor, batch_uid),
                "events": [public({**event, "detail": decode(event["detail"])}) for event in events],
            }

    def plan(self, batch_uid: str) -> dict[str, bytes]:
        """The frozen plan by part. NotFound when there is no such batch, OpinionsError when it can't be read."""
        with self._db.read() as cursor:
            _batch(cursor, batch_uid)
            parts = dict(
                cursor.execute("SELECT part, body FROM batch_plans WHERE batch_uid = ?", [batch_uid]).fetchall()
            )
        log = self._db.log
        if PLACE not in parts or log is None:
            return parts
        return read_plan(log.directory, batch_uid, parts[PLACE].decode())

    def of_request(self, consumer: str, request_id: str) -> dict[str, Any] | None:
        """The batch that this request holds or has consumed, else the newest that it got, or None."""
        with self._db.read() as cursor:
            batches = rows(
                cursor,
                "SELECT * FROM batches WHERE consumer = ? AND request_id = ?"
                " ORDER BY state IN ('leased', 'acked') DESC, leased_at DESC, rowid DESC LIMIT 1",
                [consumer, request_id],
            )
        return public(batches[0]) if batches else None

    def newest(self, *, channel: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """Newest first."""
        with self._db.read() as cursor:
            batches = rows(
                cursor,
                "SELECT * FROM batches WHERE $channel::VARCHAR IS NULL OR channel = $channel"
                " ORDER BY leased_at DESC, rowid DESC LIMIT $limit",
                {"channel": channel, "limit": limit},
            )
        return [public(row) for row in batches]

    def add_metrics(self, batch_uid: str, update: int | None, metrics: Metrics, steps: StepMetrics = ()) -> int:
        """Store a trainer's metrics of an update; returns how many values.

        NotFound for an unknown batch, InvalidInput for a step that the batch doesn't hold; nothing is stored then.
        """
        with self._db.write(NO_CHANGES) as cursor:
            _batch(cursor, batch_uid)
            return _insert_metrics(cursor, batch_uid, update, metrics, steps, timestamp(self._db.clock()))

    def metrics(self, batch_uid: str | None = None, *, of_steps: bool = False) -> list[dict[str, Any]]:
        """Posted values, oldest first: ``{batch_uid, update_index, step_uid, name, value, created_at}``.

        Args:
            batch_uid: of one batch; None: of all.
            of_steps: those of single steps, else those of whole updates.
        """
        with self._db.read() as cursor:
            metrics = rows(
                cursor,
                "SELECT * FROM batch_metrics WHERE ($uid::VARCHAR IS NULL OR batch_uid = $uid)"
                " AND (step_uid IS NOT NULL) = $of_steps ORDER BY created_at, rowid",
                {"uid": batch_uid, "of_steps": of_steps},
            )
        return [public(row) for row in metrics]


def _insert_metrics(
    cursor: Cursor, batch_uid: str, update: int | None, metrics: Metrics, steps: StepMetrics, now: Any
) -> int:
    values: list[tuple[str | None, str, float | None]] = [(None, name, value) for name, value in metrics.items()]
    values += [(uid, name, value) for uid, of_step in steps for name, value in of_step.items()]
    if not values:
        return 0
    uids, names, numbers = zip(*values, strict=True)
    table = pa.table(
        {
            "step_uid": pa.array(uids, pa.string()),
            "name": pa.array(names, pa.string()),
            "value": pa.array(numbers, pa.float64()),
        }
    )
    with registered(cursor, metric_rows=table):
        foreign = cursor.execute(
            "SELECT step_uid FROM metric_rows WHERE step_uid IS NOT NULL AND step_uid NOT IN"
            " (SELECT step_uid FROM batch_steps WHERE batch_uid = ?) LIMIT 1",
            [batch_uid],
        ).fetchall()
        if foreign:
            uid = foreign[0][0]
            place = [one for one, _ in steps].index(uid)
            raise InvalidInput(f"Step {uid!r} is not in this batch.", field=f"steps.{place}.step_uid")
        cursor.execute(
            "INSERT INTO batch_metrics SELECT ?, ?, step_uid, name, value, ? FROM metric_rows",
            [batch_uid, update, now],
        )
    return len(values)


def _owned(cursor: Cursor, batch_uid: str, consumer: str | None) -> dict[str, Any]:
    batch = _batch(cursor, batch_uid)
    if consumer is not None and batch["consumer"] != consumer:
        raise Conflict(f"Batch {batch_uid!r} belongs to {batch['consumer']!r}.", field="consumer")
    return batch


def _wrong_state(batch: Mapping[str, Any], wanted: str) -> Conflict:
    went_back = batch["state"] in ("expired", "released")
    return Conflict(
        f"Batch {batch['batch_uid']!r} is {batch['state']}, so it can't be {wanted}.",
        field="uid",
        hint="Its groups went back to the pool: fetch again." if went_back else None,
    )


def _batch(cursor: Cursor, batch_uid: str) -> dict[str, Any]:
    batches = rows(cursor, "SELECT * FROM batches WHERE batch_uid = ?", [batch_uid])
    if not batches:
        raise NotFound(f"No batch {batch_uid!r}.", field="uid")
    return public(batches[0])


def _event(cursor: Cursor, batch_uid: str, event: str, detail: Mapping[str, Any] | None, now: Any) -> None:
    text = None if detail is None else canonical(dict(detail)).decode("utf-8")
    cursor.execute("INSERT INTO batch_events VALUES (?, ?, ?, ?)", [batch_uid, event, text, now])


def public(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with its times in UTC seconds."""
    return {name: seconds(value) if name in _TIMES else value for name, value in row.items()}
