"""A plan serialized to bytes and back, so that later labels do not change a leased plan."""

from __future__ import annotations

from collections.abc import Mapping

import orjson
import pyarrow as pa

from core.batch.funnel import Excluded
from core.batch.recipe import parse_recipe
from core.batch.result import Plan
from core.batch.source import PlanPool, PlanSource
from core.batch.versions import VersionSource
from core.errors import PoolError
from core.types import View

TABLES = ("steps", "trajectories", "pairs")


def serialize_plan(plan: Plan) -> dict[str, bytes]:
    """The plan by part: ``head`` is JSON, the tables are compressed Arrow streams. Token ids stay in the pool."""
    head = {
        "view": plan.view_json(),
        "recipe": plan.recipe.to_json(),
        "hash": plan.hash,
        "policy_version": plan.policy_version,
        "excluded": [reason.to_json() for reason in plan.excluded],
        "remaining": plan.remaining,
        "level": plan.level,
        "lacks": plan.lacks,
        "dataset_version": plan.dataset_version,
    }
    parts = {"head": orjson.dumps(head)}
    for name in TABLES:
        table: pa.Table | None = getattr(plan, name)
        if table is not None:
            parts[name] = _pack(table)
    return parts


def deserialize_plan(parts: Mapping[str, bytes], pool: PlanPool) -> Plan:
    """The plan that was serialized. PoolError when a part is missing."""
    if not {"head", "steps", "trajectories"} <= parts.keys():
        raise PoolError(f"a stored plan holds only {', '.join(sorted(parts)) or 'nothing'}", field="batch_uid")
    head = orjson.loads(parts["head"])
    version = head.get("dataset_version")
    reader: PlanSource = pool.training if version is None else VersionSource(pool, version["version_uid"])
    return Plan(
        view=View(head["view"]["filters"], head["view"]["where"]),
        recipe=parse_recipe(head["recipe"]),
        hash=head["hash"],
        policy_version=head["policy_version"],
        steps=_unpack(parts["steps"]),
        trajectories=_unpack(parts["trajectories"]),
        excluded=[
            Excluded(**{**reason, "view": View(reason["view"]["filters"], reason["view"]["where"])})
            for reason in head["excluded"]
        ],
        remaining=[(stage, groups, trajectories, steps) for stage, groups, trajectories, steps in head["remaining"]],
        reader=reader,
        level=head["level"],
        lacks=head["lacks"],
        pairs=_unpack(parts["pairs"]) if "pairs" in parts else None,
        dataset_version=version,
    )


def _pack(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def _unpack(data: bytes) -> pa.Table:
    with pa.ipc.open_stream(data) as stream:
        return stream.read_all()
