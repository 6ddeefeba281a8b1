"""``Pool``: the one object that others hold. Methods are thin; the work stands in the modules beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from core.errors import InvalidInput, NotFound
from core.pool import bookkeeping, opinions, query
from core.pool.append import MessageStore, insert_steps, prepare, stored_uids, trajectory_ids, uuid_text
from core.pool.batches import BatchBook
from core.pool.books import Books
from core.pool.consumption import ConsumptionReads
from core.pool.credit import CreditFields
from core.pool.database import Cursor, Database, rows, timestamp
from core.pool.derive import rebuild, refresh
from core.pool.facets import check_columns, count_facets
from core.pool.feedback import FeedbackReads, FeedbackWriter, feedback_targets
from core.pool.histogram import histogram
from core.pool.kept import Answer, Kept
from core.pool.life import LifeReads
from core.pool.listing import list_steps, list_steps_after
from core.pool.numbers import Numbers
from core.pool.observing import observe_all, unobserved
from core.pool.recipes import RecipeBook
from core.pool.relabel import relabel
from core.pool.restore import sequences
from core.pool.review import ReviewQueue
from core.pool.saved import SavedViews
from core.pool.screening import Screening
from core.pool.seeing import seeing, viewing
from core.pool.spread import Spreads
from core.pool.views import compile_view, source_sql
from core.pool.warming import ReadAhead
from core.pool.whole import read_next_state, read_step, read_trajectory
from core.tree.sequences import Sequences
from core.types import Annotation, PolicyEvent, Step, View

NO_VIEW = View()


class Pool(
    Books,
    SavedViews,
    RecipeBook,
    BatchBook,
    ConsumptionReads,
    CreditFields,
    FeedbackReads,
    LifeReads,
    ReviewQueue,
    Screening,
    Spreads,
    ReadAhead,
):
    """Steps, opinions and their effective state in one DuckDB file.

    Writes take one lock and are one transaction each; reads use their own cursor and may run in any thread.
    """

    def __init__(self, database: Database) -> None:
        self._db = database
        self._messages = MessageStore()
        self._feedback = FeedbackWriter()
        self._kept, self._numbers = Kept(), Numbers(database)
        with self._db.read() as cursor:
            self._next = _next_ids(cursor)
            behind = unobserved(cursor)
        if behind:
            with self._db.write() as cursor:
                observe_all(cursor)
                refresh(cursor, None)

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        memory: str = "2GB",
        threads: int = 2,
        clock: Callable[[], float] = time.time,
    ) -> Pool:
        """Open or create the file and bring its schema up to date. PoolError when that cannot be."""
        return cls(Database(path, memory=memory, threads=threads, clock=clock))

    def close(self) -> None:
        """Wait for a running write, then close the file."""
        self._db.close()

    # Writing --------------------------------------------------------------------------------------------------

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
    ) -> int:
        """Store steps and what was said about trajectories, all or nothing; returns how many steps are new.

        A step whose uid is stored already changes nothing; if its content differs, the first is kept and a conflict
        is counted. ``parent_step_uid`` with ``n_shared_tokens`` and ``n_shared_messages`` are believed: they come
        from ``core.linking``. ``registrations``, ``completions``, ``sessions`` and ``revocations`` are journal records,
        ``feedback`` the entries of such (core/records.py), ``errors`` are (segment, next offset, reason) of records
        that could not be read.
        """
        bodies: dict[bytes, bytes] = {}
        prepared = [prepare(step, bodies) for step in steps]
        events = [("register", event) for event in registrations] + [("complete", event) for event in completions]
        now = self._db.clock()
        with self._writing() as cursor:
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
                lambda: self._take("trajectory_id"),
            )
            if fresh:
                step_ids = {item.step.step_uid: self._take("step_id") for item in fresh}
                parents = bookkeeping.parent_ids(cursor, [item.step for item in fresh], step_ids, owners)
                numbers, self._next["message_id"] = self._messages.ids(
                    cursor, bookkeeping.needed_bodies(fresh, bodies), self._next["message_id"]
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
                    cursor, self._take("event_id"), owners[event["trajectory_uid"]], kind, event, now
                )
            bookkeeping.insert_policy_events(cursor, policy_events)
            bookkeeping.insert_sessions(cursor, sessions, now)
            bookkeeping.insert_revocations(cursor, revocations)
            bookkeeping.insert_conflicts(cursor, conflicts, now)
            bookkeeping.insert_errors(cursor, errors, now)
            bookkeeping.store_positions(cursor, positions or {})
            refresh(cursor, owners.values())
            arrived = feedback_targets((item.step for item in fresh), owners)
            told = self._feedback.take(cursor, feedback, arrived, take_id=self._take, now=now)
            refresh(cursor, told)
            self._db.touch(trajectories={*owners.values(), *told})
        return len(fresh)

    def annotate(self, annotations: Sequence[Annotation], *, label: str | None = None) -> str:
        """Append opinions as one entry of the history, all or nothing; returns its ``action_uid``.

        NotFound names the uid that does not exist, InvalidInput the value that does not fit its kind.
        """
        if not annotations:
            raise InvalidInput("No annotations.", field="annotations")
        with self._writing() as cursor:
            targets = opinions.resolve_targets(cursor, annotations)
            first_id = self._take("annotation_id", len(annotations))
            action_id = self._take("action_id")
            opinions.insert_annotations(cursor, annotations, targets, action_id=action_id, first_id=first_id)
            action_uid = opinions.add_action(
                cursor,
                action_id=action_id,
                label=label,
                author=annotations[0].author,
                n=len(annotations),
                now=self._db.clock(),
            )
            relabel(cursor, action_id)
            self._db.touch(actions=[action_id])
        return action_uid

    def annotate_view(
        self,
        view: View,
        target: str,
        kind: str,
        value: Any,
        *,
        author: str,
        source: str,
        note: str | None = None,
        label: str | None = None,
    ) -> tuple[str, int]:
        """The same opinion on everything a view matches, not only on a page of it: (action_uid, how many)."""
        if target not in ("step", "trajectory"):
            raise InvalidInput("The target is 'step' or 'trajectory'.", field="target")
        number, text = opinions.encode_value(kind, value)
        column = "s.step_id" if target == "step" else "NULL::BIGINT"
        now = self._db.clock()
        with self._writing() as cursor, seeing(self._db, cursor, view) as seen, query.explained(view):
            condition = compile_view(seen)
            action_id, first_id = self._take("action_id"), self._next["annotation_id"]
            n = cursor.execute(
                f"""
                INSERT INTO annotations
                SELECT ? + row_number() OVER (ORDER BY trajectory_id, step_id) - 1, ?, trajectory_id, step_id,
                    ?, ?, ?, ?, ?, ?, ?
                FROM (SELECT DISTINCT s.trajectory_id, {column} AS step_id {source_sql(condition)})
                """,
                [
                    first_id, action_id, kind, number, text, author, source, note, timestamp(now),
                    *condition.parameters,
                ],
            ).fetchone()[0]  # fmt: skip
            self._take("annotation_id", n)
            action_uid = opinions.add_action(cursor, action_id=action_id, label=label, author=author, n=n, now=now)
            relabel(cursor, action_id)
            self._db.touch(actions=[action_id])
        return action_uid, n

    def undo(self, action_uid: str) -> None:
        """Take an action's annotations out of the effective state; nothing is deleted. Twice is once."""
        self._switch(action_uid, "undo")

    def redo(self, action_uid: str) -> None:
        """Let an undone action count again, at its old place in the order."""
        self._switch(action_uid, "redo")

    def _switch(self, action_uid: str, event: str) -> None:
        with self._writing() as cursor:
            action_id = opinions.switch_action(cursor, action_uid, event, self._db.clock())
            if action_id is not None:
                relabel(cursor, action_id)
            self._db.touch(actions=[] if action_id is None else [action_id])

    @property
    def n_writes(self) -> int:
        """Transactions committed by this process: while it stands still, so do all answers."""
        return self._db.n_writes

    def rebuild_state(self) -> None:
        """Derive the effective state again from facts and annotations; the result is what it was.

        What was observed of each call is observed anew too: a newer program may see more.
        """
        with self._writing() as cursor:
            cursor.execute("DELETE FROM step_findings")
            observe_all(cursor)
            rebuild(cursor)

    @contextmanager
    def _writing(self) -> Iterator[Cursor]:
        """The write transaction; counters and memories are put right if it fails."""
        with self._db.lock:
            saved = dict(self._next)
            try:
                with self._db.write() as cursor:
                    yield cursor
            except BaseException:
                self._next = saved
                self._messages.forget()
                self._feedback.forget()
                raise

    def _take(self, name: str, n: int = 1) -> int:
        first = self._next[name]
        self._next[name] = first + n
        return first

    def _ask(self, question: Callable[..., Answer], view: View, *more: Any) -> Answer:
        """Answer of a function in ``query`` about a view, kept until something is written."""

        def ask() -> Answer:
            with viewing(self._db, view) as (cursor, seen):
                return question(cursor, seen, *more)

        return self._kept.get(self._db.n_writes, (question.__name__, view, *more), ask)

    # Reading --------------------------------------------------------------------------------------------------

    def positions(self) -> dict[str, int]:
        """Journal segment -> next unread offset."""
        with self._db.read() as cursor:
            return dict(cursor.execute("SELECT segment, next_offset FROM journal_positions").fetchall())

    def sessions(self) -> list[dict[str, Any]]:
        """Session keys' hashes and what they are bound to, oldest first."""
        with self._db.read() as cursor:
            return bookkeeping.list_sessions(cursor)

    def policy_events(self) -> list[PolicyEvent]:
        """What trainers reported, oldest first."""
        with self._db.read() as cursor:
            return bookkeeping.list_policy_events(cursor)

    def ingest_errors(self, limit: int = 100) -> list[dict[str, Any]]:
        """Journal records that could not become steps, newest first."""
        with self._db.read() as cursor:
            return rows(
                cursor, "SELECT * FROM ingest_errors ORDER BY created_at DESC, next_offset DESC LIMIT ?", [limit]
            )

    def existing_steps(self, step_uids: Sequence[str]) -> list[str]:
        """Those of these uids that are stored, in the order given."""
        with self._db.read() as cursor:
            stored = stored_uids(cursor, step_uids)
        return [uid for uid in step_uids if uid in stored]

    def knows_trajectory(self, trajectory_uid: str) -> bool:
        """True when the trajectory has a step or was registered or completed."""
        return bool(self.known_trajectories([trajectory_uid]))

    def known_trajectories(self, trajectory_uids: Sequence[str]) -> set[str]:
        """Those of these trajectories that have a step or were registered or completed."""
        with self._db.read() as cursor:
            return set(trajectory_ids(cursor, trajectory_uids, None))

    def open_inferred(self, limit: int) -> list[str]:
        """Trajectories whose identity was inferred and that are not complete, latest last."""
        with self._db.read() as cursor:
            found = cursor.execute(
                "SELECT trajectory_uid FROM trajectory_state WHERE identity_source = 'inferred' AND NOT complete"
                " ORDER BY ended_at DESC, trajectory_id DESC LIMIT ?",
                [limit],
            ).fetchall()
        return [row[0] for row in reversed(found)]

    def count_steps(self, view: View = NO_VIEW) -> int:
        """Steps of the view."""
        return self._ask(query.count_steps, view)

    def count_trajectories(self, view: View = NO_VIEW) -> int:
        """Trajectories with at least one step of the view."""
        return self._ask(query.count_trajectories, view)

    def count_groups(self, view: View = NO_VIEW) -> int:
        """Prompt groups (per channel) with at least one step of the view."""
        return self._ask(query.count_groups, view)

    def steps(
        self, view: View = NO_VIEW, *, order: str = "created_at desc", limit: int | None = 50, offset: int = 0
    ) -> pa.Table:
        """A page of steps: the columns of ``columns.STEP_COLUMNS``."""
        return list_steps(self._numbers, view, order, limit, offset)

    def steps_after(
        self, view: View = NO_VIEW, *, order: str = "created_at asc", limit: int = 100, cursor: str | None = None
    ) -> tuple[pa.Table, str | None]:
        """A page of steps after a cursor, and the next cursor (None on the last page)."""
        with viewing(self._db, view) as (connection, seen):
            return list_steps_after(connection, seen, order, limit, cursor)

    def trajectories(
        self, view: View = NO_VIEW, *, order: str = "started_at desc", limit: int | None = 50, offset: int = 0
    ) -> pa.Table:
        """A page of the trajectories with at least one step of the view."""
        with viewing(self._db, view) as (cursor, seen):
            return query.list_trajectories(cursor, seen, order, limit, offset)

    def groups(
        self, view: View = NO_VIEW, *, order: str = "started_at desc", limit: int | None = 50, offset: int = 0
    ) -> pa.Table:
        """A page of prompt groups over the trajectories with at least one step of the view."""
        with viewing(self._db, view) as (cursor, seen):
            return query.list_groups(cursor, seen, order, limit, offset)

    def group(self, prompt_uid: str) -> dict[str, Any]:
        """One prompt group: its row per channel merged into ``channels``, and its trajectories in order."""
        view = View({"prompt_uid": prompt_uid})
        with self._db.read() as cursor:
            channels = query.list_groups(cursor, view, "channel", None, 0).to_pylist()
            if not channels:
                raise NotFound(f"No prompt group {prompt_uid!r}.", field="prompt_uid")
            members = query.list_trajectories(cursor, view, "started_at", None, 0).to_pylist()
        return {**channels[0], "channels": channels, "trajectories": members}

    def facets(self, view: View, columns: Sequence[str]) -> dict[str, list[tuple[Any, int]]]:
        """Values of each column with their number of steps, most frequent first."""
        check_columns(columns)

        def count() -> dict[str, list[tuple[Any, int]]]:
            with query.explained(view), self._numbers.reading(view, facets=len(columns) > 1) as moment:
                return count_facets(moment, columns, query.MOST_VALUES)

        found = self._kept.get(self._db.n_writes, ("facets", view, list(columns)), count)
        return {name: list(counts) for name, counts in found.items()}

    def histogram(self, view: View, column: str, bins: int = 30) -> pa.Table:
        """Columns ``low``, ``high``, ``n_steps``: equal bins over the known values."""
        return self._kept.get(
            self._db.n_writes,
            ("histogram", view, column, bins),
            lambda: histogram(self._numbers, view, column, bins),
        )

    def step(self, step_uid: str) -> dict[str, Any]:
        """One step, whole: the wire shape of DESIGN §5. NotFound when there is none."""
        with self._db.read() as cursor:
            return read_step(cursor, step_uid)

    def next_state(self, step_uid: str) -> dict[str, Any] | None:
        """``{step_uid, created_at, messages}`` of what came back on the step's answer, see ``read_next_state``."""
        with self._db.read() as cursor:
            return read_next_state(cursor, step_uid)

    def trajectory(self, trajectory_uid: str, *, tokens: bool = True) -> dict[str, Any]:
        """One trajectory with its steps in order; without ``tokens`` they come without ids and messages."""
        with self._db.read() as cursor:
            return read_trajectory(cursor, trajectory_uid, tokens=tokens)

    def annotations(self, *, step_uid: str | None = None, trajectory_uid: str | None = None) -> list[dict[str, Any]]:
        """Every opinion, oldest first, the undone ones marked ``undone``."""
        with self._db.read() as cursor:
            return opinions.list_annotations(cursor, step_uid, trajectory_uid)

    def actions(self, limit: int = 50) -> list[dict[str, Any]]:
        """The history of annotations, newest first."""
        with self._db.read() as cursor:
            return opinions.list_actions(cursor, limit)

    def sequences(self, step_uids: Sequence[str]) -> Sequences:
        """Full prompt + response of each step, in the order given."""
        with self._db.read() as cursor:
            return sequences(cursor, step_uids)

    def plan_rows(self, view: View = NO_VIEW, *, channel: str | None) -> pa.Table:
        """One row per candidate step for planning, in the order plans are made in."""
        with viewing(self._db, view) as (cursor, seen):
            return query.plan_rows(cursor, seen, channel)

    def stats(self) -> dict[str, Any]:
        """Counts of everything the pool holds."""

        def stats(cursor: Cursor, _view: View) -> dict[str, Any]:
            return query.stats(cursor)

        return dict(self._ask(stats, NO_VIEW))


_NEXT_IDS = """
SELECT
    (SELECT coalesce(max(step_id), 0) + 1 FROM steps) AS step_id,
    (SELECT coalesce(max(trajectory_id), 0) + 1 FROM trajectories) AS trajectory_id,
    (SELECT coalesce(max(message_id), 0) + 1 FROM messages) AS message_id,
    (SELECT coalesce(max(event_id), 0) + 1 FROM trajectory_events) AS event_id,
    (SELECT coalesce(max(annotation_id), 0) + 1 FROM annotations) AS annotation_id,
    (SELECT coalesce(max(action_id), 0) + 1 FROM actions) AS action_id,
    (SELECT coalesce(max(feedback_id), 0) + 1 FROM feedback) AS feedback_id
"""


def _next_ids(cursor: Cursor) -> dict[str, int]:
    return rows(cursor, _NEXT_IDS)[0]
