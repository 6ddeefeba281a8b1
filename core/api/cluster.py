"""The cluster's routes: its nodes, and dropping one that does not come back."""

from __future__ import annotations

from typing import Any

from core.api.handling import Call
from core.api.routing import Router
from core.api.schemas import INT, NUM, OBJ, STR, array, obj, or_null
from core.errors import NotFound

routes = Router()


@routes(
    "GET",
    "/cluster",
    obj(
        cluster=or_null(
            obj(
                address=STR,
                nodes=array(OBJ),
                supervisor_seen_s=or_null(NUM),
                at_risk_bytes=INT,
                unreachable=array(STR),
                journal_target=STR,
            )
        )
    ),
    reads_pool=False,
)
def show(call: Call) -> Any:
    """The cluster's nodes with their gateways, restarts, lag and bytes at risk; null on one machine."""
    return {"cluster": call.deps.cluster()}


@routes("DELETE", "/cluster/nodes/{name}", obj(forgotten=STR), statuses=(404,), reads_pool=False)
def forget(call: Call) -> Any:
    """Drop a node whose disk does not come back: its records are waited for no more."""
    name = call.path["name"]
    if not call.deps.forget_node(name):
        raise NotFound(f"no node {name!r}", field="name", hint="see GET /api/v1/cluster")
    return {"forgotten": name}
