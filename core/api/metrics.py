"""``GET /metrics``: operational metrics in Prometheus' text format.

The gateway keeps plain counters. They are converted to Prometheus metric families at each request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client import Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector
from starlette.responses import Response

from core.api.handling import ApiDeps, Call
from core.api.routing import Router
from core.api.schemas import STR
from core.gateway.access.roles import Role
from core.journal import LOCAL, journal_bytes

routes = Router()
GATEWAY_STATES: Final = ("up", "starting", "restarting", "silent", "unknown")
NODE_STATES: Final = ("up", "starting", "unreachable", "gone")
THIS_MACHINE: Final = "studio"
"""The label ``node`` of the machine that has the pool."""
_BY: Final = ("channel", "source", "agent", "model", "engine", "identity_source")


@routes("GET", "/metrics", STR, media=("text/plain",), at_root=Role.ADMIN, reads_pool=False)
def metrics(call: Call) -> Response:
    """Prometheus metrics."""
    return Response(generate_latest(Metrics(call.deps)), media_type=CONTENT_TYPE_PLAIN_0_0_4)


class Metrics(Collector):
    """Collects the current values. A value of None is unknown and left out."""

    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def collect(self) -> Iterator[Metric]:
        """All families, in the order of docs/metrics.md."""
        deps = self._deps
        live, pool, engines = deps.stats.snapshot(n_recent=0), deps.pool.stats.totals(), deps.engines.status()
        counter, gauge = CounterMetricFamily, GaugeMetricFamily
        yield counter("claw_calls", "Model calls answered", live["n_calls"])
        yield counter("claw_call_errors", "Calls that ended in an error", live["n_errors"])
        yield counter("claw_calls_aborted", "Calls whose agent disconnected", live["n_aborted"])
        yield counter("claw_dropped", "Answers that were not stored; must be 0", live["n_dropped"])
        turned_away = "Requests refused before their body was read, by reason"
        yield labelled(counter("claw_refused", turned_away, labels=["reason"]), live["refused"])
        yield gauge("claw_calls_in_flight", "Calls being served", live["n_in_flight"])
        tokens = {kind: live[f"n_{kind}_tokens"] for kind in ("prompt", "response")}
        yield labelled(counter("claw_tokens", "Tokens of answered calls", labels=["kind"]), tokens)
        yield _histogram("claw_call_seconds", "From a request to its record on disk", live["latency"])
        for name in _BY:
            family = counter(f"claw_calls_by_{name}", f"Model calls answered, by {name}", labels=[name])
            yield labelled(family, live["by"][name])

        def of_engines(family: CounterMetricFamily | GaugeMetricFamily, what: str) -> Metric:
            return labelled(family, {str(engine["name"]): engine.get(what) for engine in engines})

        named = ["engine"]
        yield of_engines(gauge("claw_engine_up", "1 if the engine's last call succeeded", labels=named), "ok")
        yield of_engines(counter("claw_engine_calls", "Calls of an engine", labels=named), "n_calls")
        yield of_engines(counter("claw_engine_errors", "Calls of an engine that failed", labels=named), "n_errors")
        yield of_engines(gauge("claw_engine_in_flight", "Calls at an engine", labels=named), "in_flight")
        waiting = "Calls that wait for a free slot at an engine"
        yield of_engines(gauge("claw_engine_waiting", waiting, labels=named), "waiting")
        yield gauge("claw_policy_version", "Version of the weights that sample", deps.policy.version)
        yield gauge("claw_policy_syncing", "1 while weights are exchanged and calls wait", deps.policy.syncing)
        expired = "1 after a weight sync that was not finished in time"
        yield gauge("claw_policy_sync_expired", expired, deps.policy.sync_expired)
        yield gauge("claw_ingest_lag_seconds", "Age of the oldest call that is not in the pool yet", deps.ingest.lag_s)
        held = "Calls that wait for a silent writer of another machine"
        yield gauge("claw_ingest_held_records", held, deps.ingest.n_held)
        late = "Calls of other machines that were stored after later calls of their trajectory"
        yield counter("claw_ingest_late_records", late, deps.ingest.n_late)
        behind = {one["writer"]: one["behind_s"] for one in deps.ingest.other_writers()}
        about = "How far a writer of another machine is behind"
        yield labelled(gauge("claw_writer_behind_seconds", about, labels=["writer"]), behind)
        yield counter("claw_ingest_records", "Journal records read", deps.ingest.n_ingested)
        yield gauge("claw_ingest_failing", "1 while ingest fails", deps.ingest.last_error is not None)
        yield gauge("claw_journal_failing", "1 while calls can't be written to disk", deps.journal.error is not None)
        yield gauge("claw_journal_damages", "Damaged places in the journal", deps.ingest.n_damages)
        ended = counter("claw_thread_ends", "Threads that ended and were restarted", labels=["thread"])
        yield labelled(ended, deps.n_ends)
        yield gauge("claw_journal_bytes", "Size of the journal, all writers", journal_bytes(deps.settings.journal_dir))
        if deps.settings.journal_target != LOCAL:
            n_bytes, waited_s = deps.unshipped()
            yield gauge("claw_journal_unshipped_bytes", "Bytes that the journal's target has not confirmed", n_bytes)
            waiting = "How long the journal's target has not confirmed the oldest of them"
            yield gauge("claw_journal_unshipped_seconds", waiting, waited_s)
        yield from _of_machines(deps)
        yield gauge("claw_steps", "Steps in the pool", pool["n_steps"])
        yield gauge("claw_trajectories", "Trajectories in the pool", pool["n_trajectories"])
        yield gauge("claw_groups", "Prompt groups in the pool", pool["n_groups"])


def _of_machines(deps: ApiDeps) -> Iterator[Metric]:
    """Gateways of all machines; nodes, if there is a cluster."""
    cluster, here = deps.cluster(), deps.gateways()
    nodes = [] if cluster is None else cluster["nodes"]
    gateways = [*here, *(one for node in nodes for one in node["gateways"])]
    about = "Gateways of all machines, by state"
    yield labelled(GaugeMetricFamily("claw_gateways", about, labels=["state"]), _by_state(gateways, GATEWAY_STATES))
    restarts = CounterMetricFamily("claw_gateway_restarts", "Gateways that were started again", labels=["node"])
    n_here = sum(one["n_restarts"] for one in here)
    yield labelled(restarts, {THIS_MACHINE: n_here} | {node["node"]: node["n_restarts"] for node in nodes})
    about = "Other machines of the cluster, by state"
    by_state = {} if cluster is None else _by_state(nodes, NODE_STATES)
    yield labelled(GaugeMetricFamily("claw_nodes", about, labels=["state"]), by_state)
    about = "Machines that have not applied the last change of keys or weights; they hold their calls"
    n_late = None if cluster is None else len(cluster["unreachable"])
    yield GaugeMetricFamily("claw_nodes_without_last_change", about, n_late)
    at_risk = nodes if deps.settings.journal_target == LOCAL else []
    for name, what, about in (
        ("claw_node_at_risk_bytes", "at_risk_bytes", "Bytes that are on a machine's disk and not here"),
        ("claw_node_at_risk_seconds", "behind_s", "For how long calls that a machine answers may be on its disk only"),
    ):
        yield labelled(GaugeMetricFamily(name, about, labels=["node"]), {node["node"]: node[what] for node in at_risk})


def _by_state(items: Iterable[Mapping[str, Any]], states: Sequence[str]) -> dict[str, float | None]:
    counts = Counter(item["state"] for item in items)
    return {state: counts[state] for state in states}


def labelled(
    family: CounterMetricFamily | GaugeMetricFamily, values: Mapping[str, float | None]
) -> CounterMetricFamily | GaugeMetricFamily:
    """Add values to a metric family with one label. ``values``: label -> value; None is left out."""
    for label, value in values.items():
        if value is not None:
            family.add_metric([label], value)
    return family


def _histogram(name: str, about: str, latency: Mapping[str, Any]) -> Metric:
    buckets: Iterable[tuple[float, int]] = latency["buckets"]
    bounds = [(f"{le:g}", n) for le, n in buckets]
    return HistogramMetricFamily(name, about, [*bounds, ("+Inf", latency["count"])], latency["sum"])
