"""``pool.steps``: appends steps with reports on their trajectories, and reads steps, pages of steps and token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from core.pool.cache.cache import Cache
from core.pool.query import reads
from core.pool.query.lifecycle import read_lifecycle
from core.pool.query.listing import list_steps, list_steps_after
from core.pool.query.viewreader import ViewReader
from core.pool.query.views import NO_VIEW
from core.pool.state.derive import refresh
from core.pool.state.feedback_writer import feedback_targets
from core.pool.store import bookkeeping
from core.pool.store.append import insert_steps, prepare, stored_uids, trajectory_ids, uuid_text
from core.pool.store.database import Database
from core.pool.store.details import read_next_state, read_step, read_turn
from core.pool.store.restore import sequences
from core.pool.store.writer import Writer
from core.pool.upkeep.recovery import Recovery
from core.tree.sequences import Sequences
from core.types import PolicyEvent, Step, View


class Steps:
    """``pool.steps``: one model call each."""

    def __init__(
        self, database: Database, writer: Writer, recovery: Recovery, reader: ViewReader, cache: Cache
    ) -> None:
        self._db, self._writer, self._recovery = database, writer, recovery
        self._reader, self._cache = reader, cache

    def append(
        self,
        steps: Sequence[Step],
        *,
        registrations: Sequence[Mapping[str, Any]] = (),
        completions: Sequence[Mapping[str, Any]] = (),
        policy_events: Sequence[PolicyEvent] = (),
        sessions: Sequence[Mapping[str, Any]] = (),
        revocations: Sequence[Mapping[str, Any]] = (),
        feedback: Sequence[Mapping[str, Any]] = (),
        positions: Mapping[str, int] | None = None,
        errors: Sequence[tuple[str, int, str]] = (),
        damages: Sequence[tuple[str, int, int, str]] = (),
        held: Sequence[tuple[Any, ...]] = (),
        released: Sequence[tuple[str, int]] = (),
    ) -> int:
        """Store steps and reports about trajectories, all or nothing; returns how many steps are new.

        A step whose uid is stored already changes nothing; if its content differs, the first is kept and a conflict
        is counted. ``parent_step_uid`` with ``n_shared_tokens`` and ``n_shared_messages`` are believed: they come
        from ``core.linking``. ``registrations``, ``completions``, ``sessions`` and ``revocations`` are journal records,
        ``feedback`` the entries of such (core/records.py), ``errors`` are (segment, next offset, reason) of records
        that could not be read, ``damages`` (segment, offset, next offset, reason) of bytes that are no record.
        ``held`` are rows of ``held_records``: records that are read and not stored yet; ``released`` (segment, offset)
        of those that wait no longer.
        """
        bodies: dict[bytes, bytes] = {}
        prepared = [prepare(step, bodies) for step in steps]
        events = [("register", event) for event in registrations] + [("complete", event) for event in completions]
        now = self._db.clock()
        with self._writer.writing() as cursor:
            stored = stored_uids(cursor, (item.step.step_uid for item in prepared))
            seen = {uid: digest for uid, (_, digest) in stored.items()}
            fresh, conflicts = [], []
            for item in prepared:
                uid, digest = item.step.step_uid, uuid_text(item.content)
                if uid not in seen:
                    seen[uid] = digest
                    fresh.append(item)
                elif seen[uid] != digest:
                    conflicts.append((uid, digest))
            owners = trajectory_ids(
                cursor,
                [item.step.trajectory_uid for item in fresh] + [event["trajectory_uid"] for _, event in events],
                lambda: self._writer.take("trajectory_id"),
            )
            if fresh:
                step_ids = {item.step.step_uid: self._writer.take("step_id") for item in fresh}
                parents = bookkeeping.parent_ids(cursor, [item.step for item in fresh], step_ids, owners)
                numbers, self._writer.next["message_id"] = self._writer.messages.ids(
                    cursor, bookkeeping.needed_bodies(fresh, bodies), self._writer.next["message_id"]
                )
                insert_steps(
                    cursor,
                    fresh,
                    step_ids=step_ids,
                    parent_ids=parents,
                    trajectory_ids=owners,
                    message_ids=numbers,
                    now=now,
                )
            for kind, event in events:
                bookkeeping.insert_event(
                    cursor, self._writer.take("event_id"), owners[event["trajectory_uid"]], kind, event, now
                )
            bookkeeping.insert_policy_events(cursor, policy_events)
            bookkeeping.insert_sessions(cursor, sessions, now)
            bookkeeping.insert_revocations(cursor, revocations)
            bookkeeping.insert_conflicts(cursor, conflicts, now)
            bookkeeping.insert_errors(cursor, errors, now)
            bookkeeping.insert_damages(cursor, damages, now)
            bookkeeping.replace_held(cursor, held, released)
            bookkeeping.store_positions(cursor, positions or {})
            refresh(cursor, owners.values())
            labelled: set[int] = set()
            if self._recovery.log_is_ahead:
                self._recovery.hold(cursor, feedback)
            else:
                arrived = feedback_targets((item.step for item in fresh), owners)
                labelled = self._writer.feedback.take(cursor, feedback, arrived, take_id=self._writer.take, now=now)
            refresh(cursor, labelled)
            self._db.touch(trajectories={*owners.values(), *labelled})
        return len(fresh)

    def existing(self, step_uids: Sequence[str]) -> list[str]:
        """Those of these uids that are stored, in the order given."""
        with self._db.read() as cursor:
            stored = stored_uids(cursor, step_uids)
        return [uid for uid in step_uids if uid in stored]

    def page(
        self, view: View = NO_VIEW, *, order: str = "created_at desc", limit: int | None = 50, offset: int = 0
    ) -> pa.Table:
        """A page of steps: the columns of ``columns.STEP_COLUMNS``."""
        return list_steps(self._cache.columns, view, order, limit, offset)

    def page_after(
        self, view: View = NO_VIEW, *, order: str = "created_at asc", limit: int = 100, cursor: str | None = None
    ) -> tuple[pa.Table, str | None]:
        """A page of steps after a cursor, and the next cursor (None on the last page)."""
        with self._reader.reading(view) as (connection, seen):
            return list_steps_after(connection, seen, order, limit, cursor)

    def count(self, view: View = NO_VIEW) -> int:
        """Steps of the view."""
        return self._cache.ask(reads.count_steps, view)

    def get(self, step_uid: str, *, tokens: bool = True) -> dict[str, Any]:
        """One step, whole: the wire shape of the HTTP contract; without ``tokens`` their ids, log-probs and mask are
        left out. NotFound when there is none."""
        with self._db.read() as cursor:
            return read_step(cursor, step_uid, tokens=tokens)

    def turn(self, step_uid: str) -> dict[str, Any]:
        """One step of ``trajectories.turns``: without tokens, with only the messages that its prompt adds to its
        parent's. NotFound when there is none."""
        with self._db.read() as cursor:
            return read_turn(cursor, step_uid)

    def next_state(self, step_uid: str) -> dict[str, Any] | None:
        """``{step_uid, created_at, messages}`` that followed the step's answer, see ``read_next_state``."""
        with self._db.read() as cursor:
            return read_next_state(cursor, step_uid)

    def sequences(self, step_uids: Sequence[str]) -> Sequences:
        """Full prompt + response of each step, in the order given."""
        with self._db.read() as cursor:
            return sequences(cursor, step_uids)

    def stage_times(self, step_uid: str) -> dict[str, float | None]:
        """When a step reached each of ``life.STAGES``, UTC seconds; None: not yet, or unknown. NotFound as ``get``."""
        with self._db.read() as cursor:
            return read_lifecycle(cursor, step_uid)
