"""The read routes: steps, trajectories, groups, counts, health."""

from __future__ import annotations

from typing import Any

import orjson

from core.api.handling import Call, json_response
from core.api.routing import Router
from core.api.schemas import (
    ANY,
    BOOL,
    FEEDBACK,
    INT,
    INT_OR_NULL,
    LIMIT,
    NEXT,
    NUM,
    NUM_OR_NULL,
    OBJ,
    STEP_ROW,
    STR,
    TEXT_OR_NULL,
    WHOLE_STEP,
    array,
    obj,
    or_null,
)
from core.api.wire import FILTERS_NOTE, WHERE_NOTE
from core.errors import InvalidInput
from core.gateway.access.roles import Role
from core.journal import LOCAL, journal_bytes
from core.types import View

routes = Router()

MAX_PAGE = 1000


@routes(
    "GET",
    "/steps",
    obj(steps=array(STEP_ROW), next_cursor=TEXT_OR_NULL),
    query={
        "view": {**STR, "description": "Name of a saved view"},
        "where": {**STR, "description": WHERE_NOTE},
        "filters": {**STR, "description": f"A JSON object. {FILTERS_NOTE}"},
        "order": STR,
        "limit": LIMIT,
        "cursor": STR,
        "trajectory_uid": STR,
        "prompt_uid": STR,
        "channel": STR,
    },
    statuses=(404,),
)
def list_steps(call: Call) -> Any:
    """A page of steps.

    All given conditions must hold.
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


@routes(
    "GET",
    "/steps/{uid:uid}",
    {"allOf": [WHOLE_STEP, obj(next_state=or_null(NEXT), feedback=array(FEEDBACK), consumption=ANY)]},
    statuses=(404,),
)
def one_step(call: Call) -> Any:
    """One step with tokens, messages, feedback and its batches."""
    pool, uid = call.deps.pool, call.path["uid"]
    return {
        **pool.steps.get(uid),
        "next_state": pool.steps.next_state(uid),
        "feedback": pool.feedback.find(step_uid=uid),
        "consumption": pool.consumption.of_step(uid),
    }


@routes(
    "GET",
    "/trajectories/{uid:uid}",
    obj(
        trajectory_uid=STR,
        prompt_uid=TEXT_OR_NULL,
        channel=STR,
        complete=BOOL,
        reward=NUM_OR_NULL,
        steps=array(WHOLE_STEP),
        feedback=array(FEEDBACK),
    ),
    statuses=(404,),
)
def one_trajectory(call: Call) -> Any:
    """One trajectory with its steps in order."""
    pool, uid = call.deps.pool, call.path["uid"]
    return {**pool.trajectories.get(uid), "feedback": pool.feedback.find(trajectory_uid=uid)}


@routes("GET", "/groups/{uid:uid}", obj(prompt_uid=STR, channels=array(OBJ), trajectories=array(OBJ)), statuses=(404,))
def one_group(call: Call) -> Any:
    """One prompt group."""
    return call.deps.pool.groups.get(call.path["uid"])


@routes(
    "GET",
    "/stats",
    obj(
        n_steps=INT,
        n_trajectories=INT,
        n_groups=INT,
        n_dropped=INT,
        ingest_lag_s=NUM,
        n_held=INT,
        n_late=INT,
        other_writers=array(OBJ),
        problems=array(OBJ),
        journal_bytes=INT,
        journal_target=STR,
        unshipped_bytes=INT_OR_NULL,
        unshipped_s=NUM_OR_NULL,
        rates=OBJ,
        n_calls=INT,
        n_errors=INT,
        engines=array(OBJ),
        policy_version=INT_OR_NULL,
    ),
)
def stats(call: Call) -> Any:
    """Counts, rates, ingest lag, dropped calls."""
    deps = call.deps
    live = deps.stats.snapshot(n_recent=0)
    copied = deps.settings.journal_target != LOCAL
    unshipped_bytes, unshipped_s = deps.unshipped() if copied else (None, None)
    return {
        **deps.pool.stats.totals(),
        "n_dropped": live["n_dropped"],
        "ingest_lag_s": deps.ingest.lag_s,
        "ingest_error": deps.ingest.last_error,
        "n_held": deps.ingest.n_held,
        "n_late": deps.ingest.n_late,
        "other_writers": deps.ingest.other_writers(),
        "problems": deps.problems(),
        "journal_bytes": journal_bytes(deps.settings.journal_dir),
        "journal_target": deps.settings.journal_target,
        "unshipped_bytes": unshipped_bytes,
        "unshipped_s": unshipped_s,
        "rates": live["rates"],
        "n_calls": live["n_calls"],
        "n_errors": live["n_errors"],
        "engines": deps.engines.status(),
        "policy_version": deps.policy.version,
        "policy_sync": deps.policy.sync_json(),
    }


@routes(
    "GET",
    "/healthz",
    obj(ok=BOOL, problems=array(OBJ)),
    statuses=(503,),
    same_at=(503,),
    at_root=Role.OPEN,
    reads_pool=False,
)
def healthz(call: Call) -> Any:
    """Whether calls are captured and ingested; 503 if not."""
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


@routes("GET", "/readyz", obj(ready=BOOL), statuses=(503,), same_at=(503,), at_root=Role.OPEN, reads_pool=False)
def readyz(call: Call) -> Any:
    """Whether calls are accepted."""
    syncing, failure = call.deps.policy.syncing, call.deps.journal.error
    ready = not syncing and failure is None
    return json_response({"ready": ready, "syncing": syncing, "journal_error": failure}, 200 if ready else 503)
