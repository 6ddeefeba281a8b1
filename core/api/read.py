"""What anyone may read: steps, trajectories, groups, counts, health."""

from __future__ import annotations

from typing import Any

import orjson

from core.api.handling import Call, Handler, json_response
from core.api.metrics import metrics
from core.errors import InvalidInput
from core.journal import journal_bytes
from core.types import View

MAX_PAGE = 1000


def list_steps(call: Call) -> Any:
    """``GET steps?view=&where=&filters=&order=&limit=&cursor=``; also ``trajectory_uid``, ``prompt_uid``, ``channel``.

    ``view`` is a saved view's name, ``filters`` are typed filters as a JSON object; all that is given must hold.
    """
    filters = _json_filters(call.query.get("filters", ""))
    filters |= {name: call.query[name] for name in ("trajectory_uid", "prompt_uid", "channel") if call.query.get(name)}
    if call.query.get("view"):
        filters["saved_view"] = call.query["view"]
    view = View(filters=filters, where=call.query.get("where", ""))
    table, next_cursor = call.deps.pool.steps_after(
        view,
        order=call.query.get("order", "created_at"),
        limit=call.int_query("limit", 100, low=1, high=MAX_PAGE),
        cursor=call.query.get("cursor"),
    )
    steps = [{**row, "metadata": orjson.loads(row["metadata"])} for row in table.to_pylist()]
    return {"steps": steps, "next_cursor": next_cursor}


def _json_filters(text: str) -> dict[str, Any]:
    try:
        filters = orjson.loads(text) if text else {}
    except orjson.JSONDecodeError as error:
        raise InvalidInput("filters is not JSON.", field="filters", hint='For instance {"agent": "coder"}.') from error
    if not isinstance(filters, dict):
        raise InvalidInput("filters is a JSON object.", field="filters", hint='For instance {"agent": "coder"}.')
    return filters


def one_step(call: Call) -> Any:
    """``GET steps/{uid}``: with tokens and messages, what came back on it, the feedback, and who consumed it when."""
    pool, uid = call.deps.pool, call.path["uid"]
    return {
        **pool.step(uid),
        "next_state": pool.next_state(uid),
        "feedback": pool.feedback(step_uid=uid),
        "consumption": pool.consumption(uid),
    }


def one_trajectory(call: Call) -> Any:
    """``GET trajectories/{uid}``: its steps in order, with tokens, and the feedback on it and on them."""
    pool, uid = call.deps.pool, call.path["uid"]
    return {**pool.trajectory(uid), "feedback": pool.feedback(trajectory_uid=uid)}


def one_group(call: Call) -> Any:
    """``GET groups/{uid}``."""
    return call.deps.pool.group(call.path["uid"])


def stats(call: Call) -> Any:
    """``GET stats``: counts, rates, ingest lag, and what was dropped (must be 0)."""
    deps = call.deps
    live = deps.stats.snapshot()
    return {
        **deps.pool.stats(),
        "n_dropped": live["n_dropped"],
        "ingest_lag_s": deps.ingest.lag_s,
        "ingest_error": deps.ingest.last_error,
        "journal_bytes": journal_bytes(deps.settings.journal_dir),
        "rates": live["rates"],
        "n_calls": live["n_calls"],
        "n_errors": live["n_errors"],
        "engines": deps.engines.status(),
        "policy_version": deps.policy.version,
    }


def healthz(call: Call) -> Any:
    """``GET /healthz``: the process answers, and says whether its parts do."""
    return {"ok": call.deps.ingest.last_error is None, "ingest_error": call.deps.ingest.last_error}


def readyz(call: Call) -> Any:
    """``GET /readyz``: 200 when calls can be taken, else 503."""
    ready = not call.deps.policy.syncing
    return json_response({"ready": ready, "syncing": call.deps.policy.syncing}, 200 if ready else 503)


ROUTES: list[tuple[str, str, Handler]] = [
    ("GET", "/steps", list_steps),
    ("GET", "/steps/{uid:path}", one_step),
    ("GET", "/trajectories/{uid:path}", one_trajectory),
    ("GET", "/groups/{uid:path}", one_group),
    ("GET", "/stats", stats),
    ("GET", "/healthz", healthz),
    ("GET", "/readyz", readyz),
    ("GET", "/metrics", metrics),
]

ROOT_ROUTES: list[tuple[str, str, Handler]] = [
    ("GET", "/healthz", healthz),
    ("GET", "/readyz", readyz),
    ("GET", "/metrics", metrics),
]
