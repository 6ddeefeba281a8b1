"""Writes feedback, which may be late, be revised, or arrive before its step.

Every revision is stored; of each ``feedback_uid`` the latest (by ``given_at``, then arrival) is in force. It is applied
as annotations under one entry of the history, so that a page can undo it and a later revision replaces it:

- thumbs: a reward, 1.0 for up and 0.0 for down
- score: a reward (the number, or where a scale was given its place on it, 0 to 1)
- correction: the text as a ``correction``, and the tag ``corrected``
- comment: a note
- event: the tag ``event:NAME``

A value of None withdraws the feedback. Feedback whose target has not arrived waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from core.pool.state import opinions
from core.pool.store.append import trajectory_ids, uuid_text
from core.pool.store.content import canonical, content_hash, decode
from core.pool.store.database import Cursor, registered, rows, seconds, timestamp
from core.types import Annotation, AnnotationKind, FeedbackKind, Step

LABEL = "feedback"
Take = Callable[[str, int], int]
"""``take(name, n)``: the first of n new ids."""
Target = tuple[Literal["step", "trajectory", "response"], str]

_STATES = """
SELECT n.feedback_uid, n.feedback_id, n.n_revisions, n.trajectory_id, n.step_id, n.action_id, f.given_at
FROM feedback_state n JOIN feedback f USING (feedback_id)
WHERE n.feedback_uid IN (SELECT uid FROM wanted_feedback)
"""


@dataclass(slots=True)
class _State:
    feedback_id: int
    n_revisions: int
    trajectory_id: int | None
    step_id: int | None
    action_id: int | None
    given_at: float


def target_of(item: Mapping[str, Any]) -> Target:
    """The key of a feedback's target, under which it waits if the target has not arrived."""
    if item.get("step_uid") is not None:
        return "step", item["step_uid"]
    if item.get("trajectory_uid") is not None:
        return "trajectory", item["trajectory_uid"]
    return "response", item["response_id"]


def feedback_targets(steps: Iterable[Step], trajectory_uids: Iterable[str]) -> Iterator[Target]:
    """Everything that feedback may have waited for."""
    for uid in trajectory_uids:
        yield "trajectory", uid
    for step in steps:
        yield "step", step.step_uid
        if step.response_id is not None:
            yield "response", step.response_id


def annotations_of(item: Mapping[str, Any]) -> list[Annotation]:
    """The annotations of a feedback, without their target; none when it withdraws."""
    value, kind = item.get("value"), item["kind"]
    if value is None:
        return []
    annotations: list[tuple[AnnotationKind, Any]]
    if kind in (FeedbackKind.THUMBS, FeedbackKind.SCORE):
        annotations = [(AnnotationKind.REWARD, item.get("reward"))]
    elif kind == FeedbackKind.CORRECTION:
        annotations = [(AnnotationKind.CORRECTION, value), (AnnotationKind.TAG, "corrected")]
    elif kind == FeedbackKind.COMMENT:
        annotations = [(AnnotationKind.NOTE, value)]
    else:
        annotations = [(AnnotationKind.TAG, f"event:{value}")]
    return [
        Annotation(
            kind=annotation_kind.value,
            value=annotated,
            author=item["author"],
            source=item["source"],
            created_at=item["given_at"],
            note=item.get("note"),
        )
        for annotation_kind, annotated in annotations
    ]


def digest_of(item: Mapping[str, Any]) -> str:
    """The hash that recognises a repeated delivery of a revision, as in ``feedback.content_hash``."""
    return uuid_text(content_hash(canonical({key: item[key] for key in item if key != "received_at"})))


class FeedbackWriter:
    """Takes feedback inside the pool's write transaction, and remembers which targets are waited for."""

    def __init__(self) -> None:
        self._waiting: set[Target] | None = None

    def forget(self) -> None:
        """Read the waiting targets again, for instance after a transaction was rolled back."""
        self._waiting = None

    def awaited_targets(self, cursor: Cursor) -> set[Target]:
        """Targets that feedback is waiting for."""
        return set(self._targets(cursor))

    def take(
        self,
        cursor: Cursor,
        items: Sequence[Mapping[str, Any]],
        arrived: Iterable[Target],
        *,
        take_id: Take,
        now: float,
    ) -> set[int]:
        """Store new revisions and apply those in force whose target exists.

        Args:
            items: checked entries of ``feedback`` records.
            arrived: targets that this transaction brings; what waited for them is applied.

        Returns:
            The trajectories whose opinions changed.
        """
        waiting = self._targets(cursor)
        due = waiting.intersection(arrived) if waiting else set()
        if not items and not due:
            return set()
        waiting -= due
        states, changed = self._store_revisions(cursor, items, take_id)
        for uid, waited, state in _waiting_for(cursor, due):
            if not changed.get(uid):
                changed[uid] = waited
                states.setdefault(uid, state)
        places = _resolve(cursor, [item for item in changed.values() if item])
        touched: set[int] = set()
        for uid, item in changed.items():
            if item:
                touched |= self._apply(cursor, item, states[uid], places.get(_place_key(item)), take_id, now)
            _store_state(cursor, uid, states[uid])
        return touched

    def _store_revisions(
        self, cursor: Cursor, items: Sequence[Mapping[str, Any]], take_id: Take
    ) -> tuple[dict[str, _State], dict[str, Mapping[str, Any]]]:
        """Store new revisions: (state by uid, the revision now in force by uid, empty where an older one remains)."""
        uids = [item["feedback_uid"] for item in items]
        states, known = _states(cursor, uids), _known_hashes(cursor, uids)
        changed: dict[str, Mapping[str, Any]] = {}
        item: Mapping[str, Any]
        for incoming in items:
            uid = incoming["feedback_uid"]
            digest = digest_of(incoming)
            before = known.setdefault(uid, [])
            # Without a time of its own, a revision that equals an older one may be a change and its reversal.
            if digest in (before if incoming.get("given_at") is not None else before[-1:]):
                continue
            before.append(digest)
            item = {
                **incoming,
                "given_at": incoming["received_at"] if incoming.get("given_at") is None else incoming["given_at"],
            }
            feedback_id = take_id("feedback_id", 1)
            _insert(cursor, feedback_id, digest, item)
            state = states.get(uid)
            if state is None:
                states[uid] = _State(feedback_id, 1, None, None, None, item["given_at"])
                changed[uid] = item
                continue
            state.n_revisions += 1
            if item["given_at"] >= state.given_at:
                state.feedback_id, state.given_at = feedback_id, item["given_at"]
                changed[uid] = item
            else:
                changed.setdefault(uid, {})
        return states, changed

    def _apply(
        self,
        cursor: Cursor,
        item: Mapping[str, Any],
        state: _State,
        place: tuple[int, int | None] | None,
        take_id: Take,
        now: float,
    ) -> set[int]:
        """Replace a feedback's annotations by those of a new revision."""
        touched: set[int] = set()
        if state.action_id is not None:
            touched.update(_undo(cursor, state.action_id, now))
            state.action_id = None
        if place is None:
            state.trajectory_id = state.step_id = None
            self._targets(cursor).add(target_of(item))
            return touched
        state.trajectory_id, state.step_id = place
        annotations = annotations_of(item)
        if annotations:
            state.action_id = take_id("action_id", 1)
            first_id = take_id("annotation_id", len(annotations))
            opinions.insert_annotations(
                cursor, annotations, [place] * len(annotations), action_id=state.action_id, first_id=first_id
            )
            opinions.add_action(
                cursor, action_id=state.action_id, label=LABEL, author=item["author"], n=len(annotations), now=now
            )
            touched.add(place[0])
        return touched

    def _targets(self, cursor: Cursor) -> set[Target]:
        if self._waiting is None:
            waiting = rows(
                cursor,
                "SELECT f.step_uid, f.trajectory_uid, f.response_id FROM feedback_state n JOIN feedback f"
                " USING (feedback_id) WHERE n.trajectory_id IS NULL",
            )
            self._waiting = {target_of(row) for row in waiting}
        return self._waiting


def _states(cursor: Cursor, uids: Sequence[str]) -> dict[str, _State]:
    with registered(cursor, wanted_feedback=pa.table({"uid": pa.array(sorted(set(uids)), pa.string())})):
        states = cursor.execute(_STATES).fetchall()
    return {
        uid: _State(feedback_id, n_revisions, owner, step, action, seconds(given_at) or 0.0)
        for uid, feedback_id, n_revisions, owner, step, action, given_at in states
    }


def _known_hashes(cursor: Cursor, uids: Sequence[str]) -> dict[str, list[str]]:
    """Digests of the words under each uid, oldest first."""
    known: dict[str, list[str]] = {}
    with registered(cursor, wanted_feedback=pa.table({"uid": pa.array(sorted(set(uids)), pa.string())})):
        hashes = cursor.execute(
            "SELECT feedback_uid, content_hash FROM feedback"
            " WHERE feedback_uid IN (SELECT uid FROM wanted_feedback) ORDER BY feedback_id"
        ).fetchall()
    for uid, digest in hashes:
        known.setdefault(uid, []).append(digest.hex)
    return known


def _insert(cursor: Cursor, feedback_id: int, digest: str, item: Mapping[str, Any]) -> None:
    value = item.get("value")
    cursor.execute(
        "INSERT INTO feedback VALUES (?, ?, ?::UUID, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            feedback_id,
            item["feedback_uid"],
            digest,
            item.get("step_uid"),
            item.get("trajectory_uid"),
            item.get("response_id"),
            item.get("choice_index") or 0,
            item["kind"],
            None if value is None else canonical(value).decode("utf-8"),
            item.get("reward"),
            item["author"],
            item["source"],
            item.get("note"),
            canonical(item["metadata"]).decode("utf-8") if item.get("metadata") else None,
            timestamp(item["given_at"]),
            timestamp(item["received_at"]),
        ],
    )


def _store_state(cursor: Cursor, uid: str, state: _State) -> None:
    cursor.execute("DELETE FROM feedback_state WHERE feedback_uid = ?", [uid])
    cursor.execute(
        "INSERT INTO feedback_state VALUES (?, ?, ?, ?, ?, ?)",
        [uid, state.feedback_id, state.n_revisions, state.trajectory_id, state.step_id, state.action_id],
    )


def _undo(cursor: Cursor, action_id: int, now: float) -> list[int]:
    actions = cursor.execute("SELECT action_uid FROM actions WHERE action_id = ?", [action_id]).fetchall()
    if opinions.switch_action(cursor, actions[0][0], "undo", now) is None:
        return []
    touched = cursor.execute("SELECT DISTINCT trajectory_id FROM annotations WHERE action_id = ?", [action_id])
    return [row[0] for row in touched.fetchall()]


def _waiting_for(cursor: Cursor, due: set[Target]) -> list[tuple[str, dict[str, Any], _State]]:
    """Pending feedback about these targets, oldest first."""
    if not due:
        return []
    wanted = pa.table({"key": pa.array(sorted(f"{kind}:{uid}" for kind, uid in due), pa.string())})
    with registered(cursor, wanted_targets=wanted):
        waiting = rows(
            cursor,
            "SELECT f.*, n.n_revisions FROM feedback_state n JOIN feedback f USING (feedback_id)"
            " WHERE n.trajectory_id IS NULL AND coalesce('step:' || f.step_uid,"
            " 'trajectory:' || f.trajectory_uid, 'response:' || f.response_id) IN (SELECT key FROM wanted_targets)"
            " ORDER BY f.feedback_id",
        )
    woken = []
    for row in waiting:
        row["value"], row["metadata"] = decode(row["value"]), decode(row["metadata"])
        row["given_at"] = seconds(row["given_at"])
        state = _State(row["feedback_id"], row.pop("n_revisions"), None, None, None, row["given_at"])
        woken.append((row["feedback_uid"], row, state))
    return woken


def _place_key(item: Mapping[str, Any]) -> tuple[str, str, int]:
    return (*target_of(item), item.get("choice_index") or 0)


def _resolve(cursor: Cursor, items: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, int], tuple[int, int | None]]:
    """The rows of targets: (trajectory_id, step_id or None); targets that have not arrived are left out."""
    wanted: dict[str, set[str]] = {"step": set(), "trajectory": set(), "response": set()}
    for item in items:
        kind, uid = target_of(item)
        wanted[kind].add(uid)
    by_uid = _steps_where(cursor, "step_uid", wanted["step"])
    by_response = _steps_where(cursor, "response_id", wanted["response"])
    owners = trajectory_ids(cursor, wanted["trajectory"], None)
    places: dict[tuple[str, str, int], tuple[int, int | None]] = {}
    for item in items:
        kind, uid = target_of(item)
        choice = item.get("choice_index") or 0
        if kind == "trajectory" and uid in owners:
            places[kind, uid, choice] = (owners[uid], None)
        elif kind == "step" and uid in by_uid:
            places[kind, uid, choice] = by_uid[uid][0][:2]
        elif kind == "response" and uid in by_response:
            call = by_response[uid][0][2]
            choices = [place[:2] for place in reversed(by_response[uid]) if place[2] == call]
            if choice < len(choices):
                places[kind, uid, choice] = choices[choice]
    return places


def _steps_where(cursor: Cursor, column: str, values: Iterable[str]) -> dict[str, list[tuple[int, int, Any]]]:
    """Steps by ``column``, the newest first: (trajectory_id, step_id, the call it came from)."""
    wanted = sorted(values)
    if not wanted:
        return {}
    with registered(cursor, wanted_values=pa.table({"value": pa.array(wanted, pa.string())})):
        steps = cursor.execute(
            f"SELECT {column}, trajectory_id, step_id, (journal_segment, journal_offset) FROM steps"
            f" WHERE {column} IN (SELECT value FROM wanted_values) ORDER BY step_id DESC"
        ).fetchall()
    places: dict[str, list[tuple[int, int, Any]]] = {}
    for value, owner, step, call in steps:
        places.setdefault(value, []).append((owner, step, call))
    return places
