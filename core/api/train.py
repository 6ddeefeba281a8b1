"""What trainers call beside batches and recipes: plans, exports, policy versions."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from core.api import wire
from core.api.handling import Call, Handler
from core.api.trainer_wire import ComputeValuesIn, ValuesIn
from core.batch.plan import Plan, plan
from core.batch.recipe import parse_recipe
from core.batch.values import value_steps
from core.errors import InvalidInput
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
    out = Path(body.out) if body.out else call.deps.settings.export_dir
    if body.out and not out.is_absolute():
        raise InvalidInput("out is not an absolute path", field="out", hint="the service has its own working folder")
    result = export(make_plan(call, body), call.deps.pool, body.format, out, **body.options)
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
    return {"model": body.model, "accepted": call.deps.pool.store_values(body.model, table)}


def compute_values(call: Call) -> Any:
    """``POST values/compute``: the same, by a model with a value head in a folder on this machine."""
    body = wire.check(ComputeValuesIn, call.json())
    made = plan(call.deps.pool, body.view.view(), parse_recipe({"algorithm": "sft", **body.recipe}))
    table = value_steps(made, call.deps.pool, Path(body.model_dir))
    return {"model": body.name, "accepted": call.deps.pool.store_values(body.name, table)}


def value_models(call: Call) -> Any:
    """``GET values``: critics with stored values."""
    return {"models": call.deps.pool.value_models()}


def report_policy(call: Call) -> Any:
    """``POST policy``: durable, then in force for the calls that start next."""
    deps = call.deps
    body = wire.check(wire.PolicyIn, call.json())
    now = deps.clock()
    deps.journal.append(
        policy_record(at=now, version=body.version, event=body.event.value, metadata=body.metadata)
    ).result()
    deps.policy.apply(body.event.value, body.version, at=now, metadata=body.metadata)
    return policy_state(call)


def policy_state(call: Call) -> Any:
    """``GET policy``."""
    policy = call.deps.policy
    return {
        "version": policy.version,
        "syncing": policy.syncing,
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
]
