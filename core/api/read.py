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
    table, next_cursor = call.deps.pool.steps.page_after(
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
        **pool.steps.get(uid),
        "next_state": pool.steps.next_state(uid),
        "feedback": pool.feedback.find(step_uid=uid),
        "consumption": pool.consumption.of_step(uid),
    }


def one_trajectory(call: Call) -> Any:
    """``GET trajectories/{uid}``: its steps in order, with tokens, and the feedback on it and on them."""
    pool, uid = call.deps.pool, call.path["uid"]
    return {**pool.trajectories.get(uid), "feedback": pool.feedback.find(trajectory_uid=uid)}


def one_group(call: Call) -> Any:
    """``GET groups/{uid}``."""
    return call.deps.pool.groups.get(call.path["uid"])


def stats(call: Call) -> Any:
    """``GET stats``: counts, rates, ingest lag, and what was dropped (must be 0)."""
    deps = call.deps
    live = deps.stats.snapshot(n_recent=0)
    return {
        **deps.pool.stats.totals(),
        "n_dropped": live["n_dropped"],
        "ingest_lag_s": deps.ingest.lag_s,
        "ingest_error": deps.ingest.last_error,
        "problems": deps.problems(),
        "journal_bytes": journal_bytes(deps.settings.journal_dir),
        "rates": live["rates"],
        "n_calls": live["n_calls"],
        "n_errors": live["n_errors"],
        "engines": deps.engines.status(),
        "policy_version": deps.policy.version,
        "policy_sync": deps.policy.sync_json(),
    }


def healthz(call: Call) -> Any:
    """``GET /healthz``: whether calls are captured and arrive; 503 when they don't, and what else is wrong."""
    problems = call.deps.problems()
    failures = {
        part: next((one["message"] for one in problems if one["part"] == part), None) for part in ("ingest", "pool")
    }
    body = {
        "ok": not problems,
        "ingest_error": failures["ingest"],
        "pool_error": failures["pool"],
        "problems": problems,
    }
    return json_response(body, 503 if any(one["stops"] for one in problems) else 200)


def readyz(call: Call) -> Any:
    """``GET /readyz``: 200 when calls can be taken, else 503."""
    syncing, failure = call.deps.policy.syncing, call.deps.journal.error
    ready = not syncing and failure is None
    return json_response({"ready": ready, "syncing": syncing, "journal_error": failure}, 200 if ready else 503)


ROUTES: list[tuple[str, str, Handler]] = [
    ("GET", "/steps", list_steps),
    ("GET", "/steps/{uid:uid}", one_step),
    ("GET", "/trajectories/{uid:uid}", one_trajectory),
    ("GET", "/groups/{uid:uid}", one_group),
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
