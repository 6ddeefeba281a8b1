"""The trainers' routes for plans, exports and policy versions (see ``batches`` and ``recipes`` for the others)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pyarrow as pa

from core.api import wire
from core.api.handling import ApiDeps, Call
from core.api.routing import Router
from core.api.schemas import INT, OBJ, POLICY, STR, TOTALS, array, obj
from core.api.trainer_wire import ComputeValuesIn, ValuesIn
from core.batch.plan import Plan, plan
from core.batch.recipe import parse_recipe
from core.batch.values import value_steps
from core.errors import Conflict
from core.export import export
from core.records import policy_record

routes = Router()


def make_plan(call: Call, body: wire.PlanIn) -> Plan:
    """Plan with the view and recipe of a request."""
    return plan(call.deps.pool, body.view.view(), parse_recipe(body.recipe))


@routes("POST", "/plans", obj(totals=TOTALS, groups=array(OBJ), excluded=array(obj(reason=STR))), statuses=(404,))
def plans(call: Call, body: wire.PlanIn) -> Any:
    """The plan of a view and a recipe, with reasons for excluded steps."""
    return make_plan(call, body).to_json()


@routes("POST", "/exports", obj(path=STR, manifest_path=STR, n_rows=INT, n_tokens=INT), statuses=(404, 409))
def exports(call: Call, body: wire.ExportIn) -> Any:
    """Write a plan to files on the service's machine."""
    out = body.out or call.deps.settings.export_dir
    result = export(make_plan(call, body), call.deps.pool, body.format, out, options=body.options)
    return {
        "path": str(result.path),
        "manifest_path": str(result.manifest_path),
        "n_rows": result.n_rows,
        "n_tokens": result.n_tokens,
    }


@routes("POST", "/values", obj(model=STR, accepted=INT), statuses=(404,))
def store_values(call: Call, body: ValuesIn) -> Any:
    """Store a critic's values of steps, computed elsewhere.

    Recipes name the critic as ``value_model``.
    """
    table = pa.table(
        {
            "step_uid": pa.array([one.step_uid for one in body.values], pa.string()),
            "value": pa.array([one.value for one in body.values], pa.float64()),
        }
    )
    return {"model": body.model, "accepted": call.deps.pool.values.store(body.model, table)}


@routes("POST", "/values/compute", obj(model=STR, accepted=INT), statuses=(404,))
def compute_values(call: Call, body: ComputeValuesIn) -> Any:
    """Compute and store values of steps with a model on the service's machine.

    The model must have a value head.
    """
    # A critic learns from failures too.
    every_step = {} if "algorithm" in body.recipe else {"algorithm": "sft", "options": {"min_reward": None}}
    target_plan = plan(call.deps.pool, body.view.view(), parse_recipe({**every_step, **body.recipe}))
    table = value_steps(target_plan, call.deps.pool.training, body.model_dir)
    return {"model": body.name, "accepted": call.deps.pool.values.store(body.name, table)}


@routes("GET", "/values", OBJ)
def value_models(call: Call) -> Any:
    """Critics with stored values."""
    return {"models": call.deps.pool.values.models()}


@routes("POST", "/policy", POLICY, reads_pool=False)
def report_policy(call: Call, body: wire.PolicyIn) -> Any:
    """Report the policy's version or a weight sync.

    It is on disk before it takes effect, and applies to calls that start afterwards.
    """
    apply_report(call.deps, body)
    return policy_state(call)


def apply_report(deps: ApiDeps, body: wire.PolicyIn) -> None:
    """Write a report to the journal, then apply it. Staleness in later requests counts from its version."""
    now = deps.clock()
    stored = deps.journal.append(
        policy_record(at=now, version=body.version, event=body.event.value, metadata=body.metadata)
    )
    deps.ingest.expect([stored.result()])
    deps.policy.apply(body.event.value, body.version, at=now, metadata=body.metadata)


@routes("DELETE", "/policy/sync", POLICY, statuses=(409,), reads_pool=False)
def end_sync(call: Call) -> Any:
    """End an unfinished weight sync: the version before it stays active.

    For use after a trainer has died. If the new weights are loaded already, report ``sync_finished`` instead.
    """
    end_unfinished_sync(call.deps)
    return policy_state(call)


def end_unfinished_sync(deps: ApiDeps, reason: str | None = None) -> None:
    """End an unfinished weight sync; the version before it stays active.

    Args:
        reason: why it failed, for the history.

    Raises:
        Conflict: no sync is in progress.
    """
    running = deps.policy.sync_json()
    if running is None:
        raise Conflict("no weight sync is in progress", hint="see GET /api/v1/policy")
    version, now = deps.policy.version, deps.clock()
    if version is not None:
        metadata = {"ended_sync": running["version"], **({} if reason is None else {"failed": reason})}
        stored = deps.journal.append(policy_record(at=now, version=version, event="registered", metadata=metadata))
        deps.ingest.expect([stored.result()])
        deps.policy.apply("registered", version, at=now, metadata=metadata)
    else:
        # An unknown version can't be recorded, and it need not be: a restart ends the sync in any case.
        deps.policy.end_sync()


@routes("GET", "/policy", POLICY, reads_pool=False)
def policy_state(call: Call) -> Any:
    """The policy's version, the current weight sync, and the history.

    unreachable: nodes of the cluster that take no calls until they have the last change.
    """
    policy = call.deps.policy
    return {
        "version": policy.version,
        "syncing": policy.syncing,
        "sync": policy.sync_json(),
        "history": [asdict(event) for event in list(policy.history)],
        "unreachable": call.deps.unreachable(),
    }
