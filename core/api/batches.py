"""The batch routes: fetch, acknowledge, release, renew, read again; and trainers' metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import orjson
import pyarrow as pa
from starlette.concurrency import run_in_threadpool
from starlette.responses import FileResponse, Response, StreamingResponse

from core.api.handling import ApiDeps, Call, json_response
from core.api.routing import PREFIX, Router
from core.api.schemas import BATCH, BINARY, INT, LIMIT, OBJ, STR, array, obj
from core.api.trainer_wire import AckIn, FetchIn, MetricsIn, ReleaseIn, RenewIn
from core.batch.arrays import SCHEMA, TOKEN_COLUMNS, step_tables
from core.batch.leases import LeasedBatch
from core.batch.plan import Plan
from core.export import export
from core.export.base import source_of

routes = Router()

ARROW = "application/vnd.apache.arrow.stream"
INLINE_TOKENS_MAX = 4_000_000
"""JSON responses contain the steps of batches up to this many tokens; larger batches are read from their file."""
POLL_S = 0.1
LEAST_PAUSE_S = 0.25


@routes(
    "POST",
    "/batches/fetch",
    OBJ,
    statuses=(404, 409),
    media=("application/json", "application/vnd.apache.arrow.stream"),
)
async def fetch(call: Call, body: FetchIn) -> Any:
    """Lease a batch.

    Waits up to wait_s seconds until enough groups are ready. If there are too few, batch_uid is null, and missing,
    totals and excluded give the reasons.
    """
    deps, wanted = call.deps, body.fetch()
    deadline = time.monotonic() + body.wait_s
    while True:
        seen, began = deps.pool.n_writes, time.monotonic()
        leased = await run_in_threadpool(deps.leases.fetch, wanted)
        now = time.monotonic()
        if leased.batch is not None or now >= deadline:
            return await run_in_threadpool(_fetched, deps, body, leased)
        # Planning over a large pool is slow. Pause at least as long, so that other requests are served.
        await asyncio.sleep(min(max(LEAST_PAUSE_S, now - began), deadline - now))
        expiry = await run_in_threadpool(deps.pool.batches.next_expiry)
        while deps.pool.n_writes == seen and time.monotonic() < deadline:
            if expiry is not None and deps.clock() >= expiry:
                break
            await asyncio.sleep(POLL_S)


def _fetched(deps: ApiDeps, body: FetchIn, leased: LeasedBatch) -> Response:
    plan, batch = leased.plan, leased.batch
    head = {
        **(batch or {"batch_uid": None, "consumer": body.consumer}),
        "repeated": leased.repeated,
        "missing": leased.missing,
        "recipe_name": leased.chosen.name,
        "recipe_version": leased.chosen.version,
        "view": plan.view_json(),
        "recipe": plan.recipe.to_json(),
        "plan_hash": plan.hash,
        "dataset_version": plan.dataset_version,
        "level": plan.level,
        "totals": plan.counts,
        "excluded": [reason.to_json() for reason in plan.excluded],
        "lacks": plan.lacks,
    }
    if batch is None:
        return json_response(head)
    head["file"] = f"{PREFIX}/batches/{batch['batch_uid']}/file?format=arrow"
    headers = {"X-Batch-Uid": batch["batch_uid"]}
    if body.format == "arrow":
        return StreamingResponse(_arrow(deps, plan, head), media_type=ARROW, headers=headers)
    inline = body.format == "json" and plan.counts["n_tokens"] <= INLINE_TOKENS_MAX
    steps = (
        [row for table in step_tables(plan, source_of(plan, deps.pool)) for row in table.to_pylist()]
        if inline
        else None
    )
    return json_response({**head, "groups": _groups(plan), "steps": steps}, headers=headers)


def _groups(plan: Plan) -> list[dict[str, Any]]:
    return [
        {
            "prompt_uid": group.prompt_uid,
            "trajectories": [
                {"trajectory_uid": one.trajectory_uid, "step_uids": one.step_uids, "advantage": one.advantage}
                for one in group.trajectories
            ],
        }
        for group in plan.groups
    ]


def _arrow(deps: ApiDeps, plan: Plan, head: dict[str, Any]) -> Iterator[bytes]:
    """An Arrow stream with ``core.batch.arrays.SCHEMA``; the schema's metadata ``batch`` is ``head`` as JSON."""
    pieces: list[bytes] = []
    sink = pa.PythonFile(_Pieces(pieces), mode="w")
    schema = SCHEMA.with_metadata({"batch": orjson.dumps(head)})
    with pa.ipc.new_stream(sink, schema) as writer:
        for table in step_tables(plan, source_of(plan, deps.pool)):
            writer.write_table(table)
            yield b"".join(pieces)
            pieces.clear()
    yield b"".join(pieces)


class _Pieces:
    """A file object that appends written bytes to a list."""

    closed = False

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def write(self, data: bytes) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Does nothing: writes are not buffered."""

    def close(self) -> None:
        """Does nothing: the list belongs to the caller."""


@routes("GET", "/batches", obj(batches=array(BATCH)), query={"channel": STR, "limit": LIMIT})
def batches(call: Call) -> Any:
    """List batches, newest first."""
    call.deps.pool.batches.expire()
    limit = call.int_query("limit", 100, low=1, high=1000)
    return {"batches": call.deps.pool.batches.newest(channel=call.query.get("channel"), limit=limit)}


@routes("GET", "/batches/{uid}", BATCH, statuses=(404,))
def one_batch(call: Call) -> Any:
    """One batch.

    Its state, history, contents and metrics, without token ids; those are in its file.
    """
    pool, uid = call.deps.pool, call.path["uid"]
    pool.batches.expire()
    batch = pool.batches.get(uid)
    plan = call.deps.leases.plan_of(uid)
    names = (*SCHEMA.names, "reward_share")
    fields = [name for name in names if name not in TOKEN_COLUMNS and name in plan.steps.column_names]
    return {
        **batch,
        "view": plan.view_json(),
        "recipe": plan.recipe.to_json(),
        "level": plan.level,
        "totals": plan.counts,
        "excluded": [reason.to_json() for reason in plan.excluded],
        "groups": _groups(plan),
        "steps": plan.steps.select(fields).to_pylist(),
        "metrics": pool.batches.metrics(uid),
        "step_metrics": pool.batches.metrics(uid, of_steps=True),
        "file": f"{PREFIX}/batches/{uid}/file?format=arrow",
    }


@routes(
    "GET",
    "/batches/{uid}/file",
    BINARY,
    query={"format": STR},
    statuses=(404, 409),
    media=("application/octet-stream",),
)
def file(call: Call) -> Any:
    """One batch as a file.

    The leased plan as ``arrow`` or in any export format.
    """
    deps, uid = call.deps, call.path["uid"]
    plan = deps.leases.plan_of(uid)
    name = call.query.get("format", "arrow")
    if name == "arrow":
        head = {"batch_uid": uid, "recipe": plan.recipe.to_json(), "level": plan.level, "totals": plan.counts}
        return StreamingResponse(_arrow(deps, plan, head), media_type=ARROW, headers={"X-Batch-Uid": uid})
    written = export(plan, deps.pool, name, deps.settings.export_dir / "batches" / uid, clock=deps.clock)
    return FileResponse(written.path, filename=written.path.name, headers={"X-Batch-Uid": uid})


@routes("POST", "/batches/{uid}/ack", OBJ, statuses=(404, 409))
def ack(call: Call, body: AckIn) -> Any:
    """Acknowledge a batch.

    Reports the update in which it was used, with metrics.
    """
    call.deps.pool.batches.expire()
    return call.deps.pool.batches.finish(
        call.path["uid"],
        "acked",
        consumer=body.consumer,
        update=body.update,
        metrics=body.metrics,
        steps=_step_metrics(body),
    )


@routes("POST", "/batches/{uid}/release", OBJ, statuses=(404, 409))
def release(call: Call, body: ReleaseIn) -> Any:
    """Release a batch."""
    detail = None if body.reason is None else {"reason": body.reason}
    call.deps.pool.batches.expire()
    return call.deps.pool.batches.finish(call.path["uid"], "released", consumer=body.consumer, detail=detail)


@routes("POST", "/batches/{uid}/renew", OBJ, statuses=(404, 409))
def renew(call: Call, body: RenewIn) -> Any:
    """Renew the lease of a batch."""
    call.deps.pool.batches.expire()
    return call.deps.pool.batches.renew(call.path["uid"], call.deps.clock() + body.lease_s, consumer=body.consumer)


@routes("POST", "/batches/{uid}/metrics", obj(accepted=INT), statuses=(404, 409))
def metrics(call: Call, body: MetricsIn) -> Any:
    """Add metrics of a batch.

    During the update or after it.
    """
    n = call.deps.pool.batches.add_metrics(call.path["uid"], body.update, body.metrics, _step_metrics(body))
    return {"accepted": n}


def _step_metrics(body: MetricsIn) -> list[tuple[str, dict[str, float | None]]]:
    return [(one.step_uid, one.metrics) for one in body.steps]
