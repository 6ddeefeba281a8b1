"""Session keys over HTTP: listed by id, never shown again, taken back for good."""

from __future__ import annotations

from typing import Any

from core.api.handling import CATCH_UP_S, Call, Handler
from core.gateway.access.keys import key_id
from core.records import revoke_record


def list_keys(call: Call) -> Any:
    """``GET sessions?trajectory_uid=&limit=``: newest first; of a key only its id is known."""
    deps = call.deps
    limit = call.int_query("limit", 100, low=1, high=10_000)
    wanted = call.query.get("trajectory_uid")
    deps.ingest.catch_up(CATCH_UP_S)
    rows = [row for row in reversed(deps.pool.journal.sessions()) if wanted in (None, row["trajectory_uid"])]
    return {
        "sessions": [
            {
                "key_id": key_id(row["key_sha256"]),
                "trajectory_uid": row["trajectory_uid"],
                "prompt_uid": row["prompt_uid"],
                "channel": row["channel"],
                "agent": row["agent"],
                "metadata": row["metadata"],
                "limits": row["limits"],
                "created_at": row["at"],
                "revoked_at": row["revoked_at"],
            }
            for row in rows[:limit]
        ],
        "n_sessions": len(rows),
    }


def revoke(call: Call) -> Any:
    """``DELETE sessions/{name}``: a key_id, or a trajectory_uid for all its keys. Durable before it is in force."""
    deps = call.deps
    found = deps.keys.find(call.path["name"])
    fresh = [key_sha256 for key_sha256 in found if not deps.keys.is_revoked(key_sha256)]
    for key_sha256 in fresh:
        deps.journal.append(revoke_record(at=deps.clock(), key_sha256=key_sha256)).result()
        deps.keys.revoke(key_sha256)
    return {"revoked": [key_id(key_sha256) for key_sha256 in fresh], "n_keys": len(found)}


ROUTES: list[tuple[str, str, Handler]] = [
    ("GET", "/sessions", list_keys),
    ("DELETE", "/sessions/{name:path}", revoke),
]
