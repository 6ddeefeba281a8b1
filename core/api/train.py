"""What trainers call beside batches and recipes: plans, exports, policy versions."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pyarrow as pa

from core.api import wire
from core.api.handling import ApiDeps, Call, Handler
from core.api.trainer_wire import ComputeValuesIn, ValuesIn
from core.batch.plan import Plan, plan
from core.batch.recipe import parse_recipe
from core.batch.values import value_steps
from core.errors import Conflict
from core.export import export
from core.records import policy_record


def make_plan(call: Call, body: wire.PlanIn) -> Plan:
    """The one plan function, given the wire's view and recipe."""
    return plan(call.deps.pool, body.view.view(), parse_recipe(body.recipe))


def plans(call: Call) -> Any:
    """``POST plans``: what would be trained, and what not and why."""
    return make_plan(call, wire.check(wire.PlanIn, call.json())).to_json()


def exports(call: Call) -> Any:
    """``POST exports``: write the plan's files on this machine."""
    body = wire.check(wire.ExportIn, call.json())
    out = body.out or call.deps.settings.export_dir
    result = export(make_plan(call, body), call.deps.pool, body.format, out, options=body.options)
    return {
        "path": str(result.path),
        "manifest_path": str(result.manifest_path),
        "n_rows": result.n_rows,
        "n_tokens": result.n_tokens,
    }


def store_values(call: Call) -> Any:
    """``POST values``: a critic's values of steps, computed elsewhere; recipes name it as ``value_model``."""
    body = wire.check(ValuesIn, call.json())
    table = pa.table(
        {
            "step_uid": pa.array([one.step_uid for one in body.values], pa.string()),
            "value": pa.array([one.value for one in body.values], pa.float64()),
        }
    )
    return {"model": body.model, "accepted": call.deps.pool.values.store(body.model, table)}


def compute_values(call: Call) -> Any:
    """``POST values/compute``: the same, by a model with a value head in a folder on this machine."""
    body = wire.check(ComputeValuesIn, call.json())
    made = plan(call.deps.pool, body.view.view(), parse_recipe({"algorithm": "sft", **body.recipe}))
    table = value_steps(made, call.deps.pool.training, body.model_dir)
    return {"model": body.name, "accepted": call.deps.pool.values.store(body.name, table)}


def value_models(call: Call) -> Any:
    """``GET values``: critics with stored values."""
    return {"models": call.deps.pool.values.models()}


def report_policy(call: Call) -> Any:
    """``POST policy``: durable, then in force for the calls that start next."""
    put_in_force(call.deps, wire.check(wire.PolicyIn, call.json()))
    return policy_state(call)


def put_in_force(deps: ApiDeps, body: wire.PolicyIn) -> None:
    """Journal a report, then have it in force."""
    now = deps.clock()
    deps.journal.append(
        policy_record(at=now, version=body.version, event=body.event.value, metadata=body.metadata)
    ).result()
    deps.policy.apply(body.event.value, body.version, at=now, metadata=body.metadata)


def end_sync(call: Call) -> Any:
    """``DELETE policy/sync``: calls go on with the version that was in force before; for when a trainer died.

    Where the new weights are in already, ``POST policy`` with ``sync_finished`` says so instead.
    """
    give_up_sync(call.deps)
    return policy_state(call)


def give_up_sync(deps: ApiDeps) -> None:
    """End the weight sync that nobody finishes.

    Raises:
        Conflict: none has begun.
    """
    told = deps.policy.sync_json()
    if told is None:
        raise Conflict("no weight sync has begun", hint="GET /api/v1/policy tells the state")
    version, now = deps.policy.version, deps.clock()
    if version is not None:
        metadata = {"ended_sync": told["version"]}
        deps.journal.append(policy_record(at=now, version=version, event="registered", metadata=metadata)).result()
        deps.policy.apply("registered", version, at=now, metadata=metadata)
    else:
        # A version that is not known can't be put on record; after a restart no sync is under way in any case.
        deps.policy.end_sync()


def policy_state(call: Call) -> Any:
    """``GET policy``."""
    policy = call.deps.policy
    return {
        "version": policy.version,
        "syncing": policy.syncing,
        "sync": policy.sync_json(),
        "history": [asdict(event) for event in list(policy.history)],
    }


ROUTES: list[tuple[str, str, Handler]] = [
    ("POST", "/plans", plans),
    ("POST", "/exports", exports),
    ("POST", "/values", store_values),
    ("POST", "/values/compute", compute_values),
    ("GET", "/values", value_models),
    ("POST", "/policy", report_policy),
    ("GET", "/policy", policy_state),
    ("DELETE", "/policy/sync", end_sync),
]
