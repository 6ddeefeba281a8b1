"""The session key routes: list keys by id, and revoke them. The secret itself is never shown."""

from __future__ import annotations

from typing import Any

from core.api.handling import CATCH_UP_S, ApiDeps, Call
from core.api.routing import Router
from core.api.schemas import INT, SESSION, STR, array, bounded_integer, obj
from core.gateway.access.keys import key_id
from core.records import revoke_record

routes = Router()


@routes(
    "GET",
    "/sessions",
    obj(sessions=array(SESSION), n_sessions=INT),
    query={"trajectory_uid": STR, "limit": bounded_integer(1, 10_000)},
)
def list_keys(call: Call) -> Any:
    """Session keys by id, newest first.

    The secret itself is shown only when a key is created.
    """
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


@routes(
    "DELETE",
    "/sessions/{name:path}",
    obj(revoked=array(STR), n_keys=INT, unreachable=array(STR)),
    statuses=(404,),
    reads_pool=False,
)
def revoke(call: Call) -> Any:
    """Revoke a key (key_id) or all keys of a trajectory.

    The revocation is on disk before it takes effect, and in force on all machines when this returns: the nodes in
    unreachable take no calls until they have it.
    """
    hashes = call.deps.keys.find(call.path["name"])
    revoked = revoke_keys(call.deps, call.path["name"])
    return {"revoked": revoked, "n_keys": len(hashes), "unreachable": call.deps.unreachable()}


def revoke_keys(deps: ApiDeps, name: str) -> list[str]:
    """Revoke a key by its key_id, or all keys of a trajectory; returns the ids of those that were in force.

    Raises:
        NotFound: there is no such key.
    """
    fresh = [key_sha256 for key_sha256 in deps.keys.find(name) if not deps.keys.is_revoked(key_sha256)]
    for key_sha256 in fresh:
        deps.journal.append(revoke_record(at=deps.clock(), key_sha256=key_sha256)).result()
        deps.keys.revoke(key_sha256)
    return [key_id(key_sha256) for key_sha256 in fresh]
