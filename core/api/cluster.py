"""The cluster's routes: its nodes and gateways, and dropping a node that does not come back."""

from __future__ import annotations

from typing import Any

from core.api.handling import ApiDeps, Call
from core.api.routing import Router
from core.api.schemas import BOOL, INT, INT_OR_NULL, NUM, NUM_OR_NULL, OBJ, STR, array, obj, or_null
from core.errors import NotFound
from core.journal import LOCAL

routes = Router()


def topology(deps: ApiDeps) -> dict[str, Any]:
    """Nodes, gateways and writers: what takes calls, what was not handed over yet, and what is in force.

    ``cluster`` is as of ``core.cluster.hub.Hub.status``, None on one machine. ``gateways`` are those of this machine,
    as of ``core.workers.fleet.Fleet.workers``. ``writers`` are those of other machines, ``{writer, behind_s, state}``.
    ``n_held`` calls wait for them, the oldest for ``held_s``. ``unshipped_*``: what the journal's target has not
    confirmed, of all machines; None with the target ``local``. ``totals`` count this machine as a node;
    ``at_risk_*``: bytes that are on another machine's disk only, and for how many seconds; None with a target.
    """
    copied = deps.settings.journal_target != LOCAL
    n_bytes, waited_s = deps.unshipped() if copied else (None, None)
    cluster, here = deps.cluster(), deps.gateways()
    return {
        "cluster": cluster,
        "gateways": here,
        "totals": _totals([] if cluster is None else cluster["nodes"], here, at_risk=not copied),
        "writers": deps.ingest.other_writers(),
        "n_held": deps.ingest.n_held,
        "held_s": deps.ingest.held_s,
        "ingest_lag_s": deps.ingest.lag_s,
        "journal_target": deps.settings.journal_target,
        "unshipped_bytes": n_bytes,
        "unshipped_s": waited_s,
        "in_force": {
            "policy_version": deps.policy.version,
            "syncing": deps.policy.syncing,
            "n_keys": deps.keys.n_in_force(),
            "unreachable": deps.unreachable(),
        },
    }


def _totals(nodes: list[dict[str, Any]], here: list[dict[str, Any]], *, at_risk: bool) -> dict[str, Any]:
    gateways = [*here, *(one for node in nodes for one in node["gateways"])]
    behind_s = [node["behind_s"] for node in nodes if node["behind_s"] is not None]
    return {
        "n_nodes": 1 + len(nodes),
        "n_nodes_up": 1 + sum(node["state"] == "up" for node in nodes),
        "n_gateways": len(gateways),
        "n_gateways_up": sum(one["state"] == "up" for one in gateways),
        "n_restarts": sum(one["n_restarts"] for one in here) + sum(node["n_restarts"] for node in nodes),
        "at_risk_bytes": sum(node["at_risk_bytes"] for node in nodes) if at_risk else None,
        "at_risk_s": max(behind_s, default=0.0) if at_risk else None,
    }


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
        ),
        gateways=array(OBJ),
        totals=obj(
            n_nodes=INT,
            n_nodes_up=INT,
            n_gateways=INT,
            n_gateways_up=INT,
            n_restarts=INT,
            at_risk_bytes=INT_OR_NULL,
            at_risk_s=NUM_OR_NULL,
        ),
        writers=array(obj(writer=STR, behind_s=NUM, state=STR)),
        n_held=INT,
        held_s=NUM,
        ingest_lag_s=NUM,
        journal_target=STR,
        unshipped_bytes=INT_OR_NULL,
        unshipped_s=NUM_OR_NULL,
        in_force=obj(policy_version=INT_OR_NULL, syncing=BOOL, n_keys=INT, unreachable=array(STR)),
    ),
    reads_pool=False,
)
def show(call: Call) -> Any:
    """Gateways, restarts, lag and bytes at risk: of the cluster's nodes (null on one machine) and of this machine."""
    return topology(call.deps)


@routes("DELETE", "/cluster/nodes/{name}", obj(forgotten=STR), statuses=(404,), reads_pool=False)
def forget(call: Call) -> Any:
    """Drop a node whose disk does not come back: its records are waited for no more."""
    name = call.path["name"]
    if not call.deps.forget_node(name):
        raise NotFound(f"no node {name!r}", field="name", hint="see GET /api/v1/cluster")
    return {"forgotten": name}
