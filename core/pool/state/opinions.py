"""Opinions: appended, undone, redone, never overwritten."""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from core.errors import InvalidInput, NotFound
from core.pool.state.editvalue import checked_edit
from core.pool.store.append import trajectory_ids
from core.pool.store.content import canonical, decode
from core.pool.store.database import Cursor, registered, rows, timestamp
from core.types import Annotation, AnnotationKind

QUALITIES = ("good", "bad", "unsure")


def encode_value(kind: str, value: Any) -> tuple[float | None, str | None]:
    """An annotation's value as (number, text). InvalidInput names what does not fit its kind."""
    if kind == AnnotationKind.REWARD:
        if value is None:
            return None, None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise InvalidInput("A reward is a finite number, or null to withdraw it.", field="value")
        return float(value), None
    if kind == AnnotationKind.QUALITY:
        if value is not None and value not in QUALITIES:
            raise InvalidInput(
                f"Quality {value!r} is unknown.", field="value", hint=f"One of {', '.join(QUALITIES)}, or null."
            )
        return None, value
    if kind == AnnotationKind.TRAINABLE:
        if value is not None and not isinstance(value, bool):
            raise InvalidInput("trainable is true, false, or null for the default rule.", field="value")
        return (None if value is None else float(value)), None
    if kind == AnnotationKind.CORRECT:
        if value is not None and not isinstance(value, bool):
            raise InvalidInput("correct is true, false, or null to withdraw it.", field="value")
        return (None if value is None else float(value)), None
    if kind == AnnotationKind.TAG:
        name = value.strip() if isinstance(value, str) else ""
        on = not name.startswith("-")
        name = name if on else name[1:].strip()
        if not name:
            raise InvalidInput("A tag is a name.", field="value", hint="'name' puts it on, '-name' takes it off.")
        return float(on), name
    if kind in (AnnotationKind.NOTE, AnnotationKind.CORRECTION):
        if not isinstance(value, str) or not value.strip():
            raise InvalidInput(f"A {kind} is a text.", field="value")
        return None, value
    if kind == AnnotationKind.EDIT:
        return None, None if value is None else canonical(checked_edit(value)).decode("utf-8")
    raise InvalidInput(
        f"Annotation kind {kind!r} is unknown.", field="kind", hint=f"One of {', '.join(AnnotationKind)}."
    )


def decode_value(kind: str, number: float | None, text: str | None) -> Any:
    """The value as it was given: the inverse of ``encode_value``."""
    if kind in (AnnotationKind.TRAINABLE, AnnotationKind.CORRECT):
        return None if number is None else bool(number)
    if kind == AnnotationKind.TAG:
        return text if number else f"-{text}"
    if kind == AnnotationKind.EDIT:
        return decode(text)
    return number if kind == AnnotationKind.REWARD else text


def add_action(cursor: Cursor, *, action_id: int, label: str | None, author: str | None, n: int, now: float) -> str:
    """Open one entry of the history; returns its uid."""
    action_uid = f"act-{uuid.uuid4().hex}"
    cursor.execute(
        "INSERT INTO actions VALUES (?, ?, ?, ?, ?, ?)",
        [action_id, action_uid, label, author, n, timestamp(now)],
    )
    return action_uid


def resolve_targets(cursor: Cursor, annotations: Sequence[Annotation]) -> list[tuple[int, int | None]]:
    """(trajectory_id, step_id or None) of each annotation. NotFound names the first uid that does not exist."""
    for item in annotations:
        if (item.step_uid is None) == (item.trajectory_uid is None):
            raise InvalidInput(
                "An annotation is about a step or about a trajectory.",
                field="target",
                hint="Give exactly one of step_uid and trajectory_uid.",
            )
    step_uids = list(dict.fromkeys(a.step_uid for a in annotations if a.step_uid is not None))
    steps: dict[str, tuple[int, int]] = {}
    if step_uids:
        with registered(cursor, wanted_uids=pa.table({"uid": pa.array(step_uids, pa.string())})):
            step_rows = cursor.execute(
                "SELECT step_uid, trajectory_id, step_id FROM step_state"
                " WHERE step_uid IN (SELECT uid FROM wanted_uids)"
            ).fetchall()
        steps = {uid: (owner, step) for uid, owner, step in step_rows}
    owners = trajectory_ids(cursor, (a.trajectory_uid for a in annotations if a.trajectory_uid is not None), None)
    targets: list[tuple[int, int | None]] = []
    for item in annotations:
        if item.step_uid is not None:
            if item.step_uid not in steps:
                raise NotFound(f"No step {item.step_uid!r}.", field="step_uid")
            targets.append(steps[item.step_uid])
        elif item.trajectory_uid is not None:
            if item.trajectory_uid not in owners:
                raise NotFound(f"No trajectory {item.trajectory_uid!r}.", field="trajectory_uid")
            targets.append((owners[item.trajectory_uid], None))
    return targets


def insert_annotations(
    cursor: Cursor,
    annotations: Sequence[Annotation],
    targets: Sequence[tuple[int, int | None]],
    *,
    action_id: int,
    first_id: int,
) -> None:
    """Append resolved annotations under one action."""
    encoded = [encode_value(a.kind, a.value) for a in annotations]
    table = pa.table(
        {
            "annotation_id": pa.array(range(first_id, first_id + len(annotations)), pa.int64()),
            "action_id": pa.array([action_id] * len(annotations), pa.int64()),
            "trajectory_id": pa.array([owner for owner, _ in targets], pa.int64()),
            "step_id": pa.array([step for _, step in targets], pa.int64()),
            "kind": pa.array([str(a.kind) for a in annotations], pa.string()),
            "value_number": pa.array([number for number, _ in encoded], pa.float64()),
            "value_text": pa.array([text for _, text in encoded], pa.string()),
            "author": pa.array([a.author for a in annotations], pa.string()),
            "source": pa.array([a.source for a in annotations], pa.string()),
            "note": pa.array([a.note for a in annotations], pa.string()),
            "created_at": pa.array([timestamp(a.created_at) for a in annotations], pa.timestamp("us")),
        }
    )
    with registered(cursor, new_annotations=table):
        cursor.execute("INSERT INTO annotations BY NAME SELECT * FROM new_annotations")


_ACTIONS = """
SELECT action_uid, label, author, n_annotations, created_at,
    coalesce((SELECT arg_max(event, event_id) FROM action_events e WHERE e.action_id = a.action_id), 'redo') = 'undo'
        AS undone,
    (SELECT list(DISTINCT kind ORDER BY kind) FROM annotations n WHERE n.action_id = a.action_id) AS kinds
FROM actions a ORDER BY action_id DESC LIMIT ?
"""


def list_actions(cursor: Cursor, limit: int) -> list[dict[str, Any]]:
    """The history, newest first."""
    return rows(cursor, _ACTIONS, [limit])


def find_action(cursor: Cursor, action_uid: str) -> tuple[int, bool]:
    """(action_id, whether it is undone). NotFound when there is no such action."""
    actions = cursor.execute(
        "SELECT a.action_id, arg_max(e.event, e.event_id) = 'undo' FROM actions a"
        " LEFT JOIN action_events e USING (action_id) WHERE a.action_uid = ? GROUP BY a.action_id",
        [action_uid],
    ).fetchall()
    if not actions:
        raise NotFound(f"No action {action_uid!r} in the history.", field="action_uid")
    return actions[0][0], bool(actions[0][1])


def switch_action(cursor: Cursor, action_uid: str, event: str, now: float) -> int | None:
    """Undo or redo an action; returns its action_id, None when nothing changes."""
    action_id, undone = find_action(cursor, action_uid)
    if undone == (event == "undo"):
        return None
    cursor.execute(
        "INSERT INTO action_events SELECT coalesce(max(event_id), 0) + 1, ?, ?, ? FROM action_events",
        [action_id, event, timestamp(now)],
    )
    return action_id


_ANNOTATIONS = """
SELECT a.annotation_id, x.action_uid, s.step_uid, t.trajectory_uid, a.kind, a.value_number, a.value_text,
    a.author, a.source, a.note, a.created_at,
    coalesce((SELECT arg_max(event, event_id) FROM action_events e WHERE e.action_id = a.action_id), 'redo') = 'undo'
        AS undone
FROM annotations a
JOIN actions x USING (action_id)
JOIN trajectories t USING (trajectory_id)
LEFT JOIN step_state s ON s.step_id = a.step_id
WHERE ($step_uid IS NULL OR s.step_uid = $step_uid)
    AND ($trajectory_uid IS NULL OR t.trajectory_uid = $trajectory_uid)
ORDER BY a.annotation_id
"""


def list_annotations(cursor: Cursor, step_uid: str | None, trajectory_uid: str | None) -> list[dict[str, Any]]:
    """Every opinion about a step, or about a trajectory and all its steps, oldest first, undone ones marked."""
    annotations = rows_named(cursor, _ANNOTATIONS, {"step_uid": step_uid, "trajectory_uid": trajectory_uid})
    for row in annotations:
        row["value"] = decode_value(row["kind"], row.pop("value_number"), row.pop("value_text"))
        if row["step_uid"] is not None:
            row["target"] = {"step_uid": row["step_uid"]}
        else:
            row["target"] = {"trajectory_uid": row["trajectory_uid"]}
    return annotations


def rows_named(cursor: Cursor, sql: str, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """Like ``rows`` with named parameters."""
    result = cursor.execute(sql, parameters)
    names = [column[0] for column in result.description]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]
