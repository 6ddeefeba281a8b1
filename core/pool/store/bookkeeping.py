"""Reads and writes the small tables: trajectory events, sessions, policy events, journal positions, failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from core.pool.store.append import Prepared
from core.pool.store.content import canonical, decode
from core.pool.store.database import Cursor, registered, rows, seconds, timestamp
from core.types import PolicyEvent, Step


def json_text(value: Mapping[str, Any] | None) -> str | None:
    """A metadata mapping as JSON; NULL when there is none."""
    return canonical(dict(value)).decode("utf-8") if value else None


def needed_bodies(prepared: Sequence[Prepared], bodies: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The message bodies that these steps bring themselves: the shared ones are stored already."""
    needed: dict[bytes, bytes] = {}
    for item in prepared:
        for digest in (*(item.message_hashes or ()), item.response_hash, item.tools_hash):
            if digest is not None:
                needed[digest] = bodies[digest]
    return needed


def parent_ids(
    cursor: Cursor, steps: Sequence[Step], step_ids: Mapping[str, int], owners: Mapping[str, int]
) -> dict[str, int]:
    """Ids of the parents named by ``steps``: step uid -> parent id.

    Only an earlier step of the same trajectory can be a parent; any other is left out, and its child is stored whole.
    """
    parent_uids = {step.parent_step_uid for step in steps if step.parent_step_uid is not None}
    places: dict[str, tuple[int, int]] = {
        step.step_uid: (step_ids[step.step_uid], owners[step.trajectory_uid]) for step in steps
    }
    missing = sorted(parent_uids - set(places))
    if missing:
        with registered(cursor, wanted_uids=pa.table({"uid": pa.array(missing, pa.string())})):
            stored = cursor.execute(
                "SELECT step_uid, step_id, trajectory_id FROM step_state"
                " WHERE step_uid IN (SELECT uid FROM wanted_uids)"
            ).fetchall()
        places |= {uid: (step_id, owner) for uid, step_id, owner in stored}
    parents: dict[str, int] = {}
    for step in steps:
        parent = places.get(step.parent_step_uid or "")
        if parent and parent[1] == owners[step.trajectory_uid] and parent[0] < step_ids[step.step_uid]:
            parents[step.step_uid] = parent[0]
    return parents


def insert_event(
    cursor: Cursor, event_id: int, trajectory_id: int, kind: str, event: Mapping[str, Any], now: float
) -> None:
    """Store a ``register`` or ``complete`` record."""
    cursor.execute(
        "INSERT INTO trajectory_events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            event_id,
            trajectory_id,
            kind,
            event.get("prompt_uid"),
            event.get("channel"),
            event.get("agent"),
            event.get("reward"),
            event.get("outcome"),
            json_text(event.get("metadata")),
            timestamp(event.get("at", now)),
        ],
    )


def insert_policy_events(cursor: Cursor, events: Sequence[PolicyEvent]) -> None:
    """Store reports about the policy's weights."""
    for event in events:
        cursor.execute(
            "INSERT INTO policy_events SELECT coalesce(max(event_id), 0) + 1, ?, ?, ?, ? FROM policy_events",
            [event.version, event.event, json_text(event.metadata), timestamp(event.created_at)],
        )


def list_policy_events(cursor: Cursor) -> list[PolicyEvent]:
    """Policy events in the order they were stored."""
    events = cursor.execute(
        "SELECT version, event, created_at, metadata FROM policy_events ORDER BY event_id"
    ).fetchall()
    return [
        PolicyEvent(version, event, seconds(created_at) or 0.0, decode(metadata) or {})
        for version, event, created_at, metadata in events
    ]


def insert_sessions(cursor: Cursor, sessions: Sequence[Mapping[str, Any]], now: float) -> None:
    """Store ``session`` records."""
    for session in sessions:
        cursor.execute(
            "INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [
                session["key_sha256"],
                session["trajectory_uid"],
                session.get("prompt_uid"),
                session["channel"],
                session.get("agent"),
                json_text(session.get("metadata")),
                timestamp(session.get("at", now)),
                json_text(session.get("limits")),
            ],
        )


def insert_revocations(cursor: Cursor, revocations: Sequence[Mapping[str, Any]]) -> None:
    """Store ``revoke`` records."""
    for revocation in revocations:
        cursor.execute("INSERT INTO revocations VALUES (?, ?)", [revocation["key_sha256"], timestamp(revocation["at"])])


def list_sessions(cursor: Cursor) -> list[dict[str, Any]]:
    """Session rows in the shape of ``session`` records, with ``revoked_at`` (None while the key holds)."""
    sessions = rows(
        cursor,
        "SELECT s.*, r.revoked_at FROM sessions s LEFT JOIN"
        " (SELECT key_sha256, min(created_at) AS revoked_at FROM revocations GROUP BY key_sha256) r USING (key_sha256)"
        " ORDER BY s.created_at, key_sha256",
    )
    for row in sessions:
        row["metadata"] = decode(row["metadata"]) or {}
        row["limits"] = decode(row["limits"]) or {}
        row["at"] = seconds(row.pop("created_at"))
        row["revoked_at"] = seconds(row["revoked_at"])
    return sessions


def spent(cursor: Cursor, trajectory_uid: str) -> tuple[int, int]:
    """A trajectory's number of calls and of their prompt and response tokens; unknown counts as 0."""
    sums = cursor.execute(
        "SELECT count(*), coalesce(sum(coalesce(n_prompt_tokens, 0) + coalesce(n_response_tokens, 0)), 0)"
        " FROM steps JOIN trajectories USING (trajectory_id) WHERE trajectory_uid = ?",
        [trajectory_uid],
    ).fetchone()
    assert sums is not None
    return int(sums[0]), int(sums[1])


def insert_conflicts(cursor: Cursor, conflicts: Sequence[tuple[str, str]], now: float) -> None:
    """Count steps whose uid was taken by other content; the same conflict counts once."""
    for step_uid, digest in conflicts:
        cursor.execute(
            "INSERT INTO conflicts SELECT ?, ?::UUID, ? WHERE NOT EXISTS"
            " (FROM conflicts WHERE step_uid = ? AND content_hash = ?::UUID)",
            [step_uid, digest, timestamp(now), step_uid, digest],
        )


def insert_errors(cursor: Cursor, errors: Sequence[tuple[str, int, str]], now: float) -> None:
    """Store records that could not become steps: (segment, next offset, reason)."""
    for segment, next_offset, reason in errors:
        cursor.execute("INSERT INTO ingest_errors VALUES (?, ?, ?, ?)", [segment, next_offset, reason, timestamp(now)])


def insert_damages(cursor: Cursor, damages: Sequence[tuple[str, int, int, str]], now: float) -> None:
    """Store places of the journal that hold no record, as (segment, offset, next offset, reason); each counts once."""
    for segment, offset, next_offset, reason in damages:
        cursor.execute(
            "INSERT INTO journal_damages VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            [segment, offset, next_offset, reason, timestamp(now)],
        )


def store_positions(cursor: Cursor, positions: Mapping[str, int]) -> None:
    """Remember how far each journal segment is read."""
    for segment, next_offset in positions.items():
        cursor.execute(
            "INSERT INTO journal_positions VALUES (?, ?)"
            " ON CONFLICT (segment) DO UPDATE SET next_offset = excluded.next_offset",
            [segment, next_offset],
        )


def replace_held(cursor: Cursor, held: Sequence[tuple[Any, ...]], released: Sequence[tuple[str, int]]) -> None:
    """Forget the released records, (segment, offset) each, and remember the held ones, rows of ``held_records``."""
    if released:
        table = pa.table({"segment": [one[0] for one in released], "record_offset": [one[1] for one in released]})
        with registered(cursor, released_records=table):
            cursor.execute(
                "DELETE FROM held_records WHERE (segment, record_offset) IN"
                " (SELECT (segment, record_offset) FROM released_records)"
            )
    for row in held:
        cursor.execute("INSERT INTO held_records VALUES (?, ?, ?, ?, ?::VARCHAR[], ?::VARCHAR[])", list(row))
