"""``GET /metrics``: what an operator watches, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from starlette.responses import PlainTextResponse

from core.api.handling import ApiDeps, Call
from core.api.routing import Router
from core.api.schemas import STR
from core.journal import journal_bytes

routes = Router()
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
Sample = tuple[str, Mapping[str, str], float | None]
"""What is behind the family's name, labels, value; None is unknown, and left out."""
Family = tuple[str, str, str, Iterable[Sample]]
"""Name, type, help, samples."""

_BY: Final = ("channel", "source", "agent", "model", "engine", "identity_source")


@routes("GET", "/metrics", STR, media=("text/plain",), at_root=True)
def metrics(call: Call) -> PlainTextResponse:
    """Prometheus metrics."""
    return PlainTextResponse(text_of(families(call.deps)), media_type=CONTENT_TYPE)


def families(deps: ApiDeps) -> list[Family]:
    """What is measured now."""
    live, pool, engines = deps.stats.snapshot(n_recent=0), deps.pool.stats.totals(), deps.engines.status()
    tokens = (({"kind": kind}, live[f"n_{kind}_tokens"]) for kind in ("prompt", "response"))
    return [
        ("claw_calls", "counter", "Model calls answered", _one("_total", live["n_calls"])),
        ("claw_call_errors", "counter", "Calls that ended in an error", _one("_total", live["n_errors"])),
        ("claw_calls_aborted", "counter", "Calls whose agent went away", _one("_total", live["n_aborted"])),
        ("claw_dropped", "counter", "Answers that were not stored; must be 0", _one("_total", live["n_dropped"])),
        (
            "claw_refused",
            "counter",
            "Requests turned away before their body was read, by reason",
            [("_total", {"reason": reason}, n) for reason, n in live["refused"].items()],
        ),
        ("claw_calls_in_flight", "gauge", "Calls being served", _one("", live["n_in_flight"])),
        ("claw_tokens", "counter", "Tokens of answered calls", [("_total", *one) for one in tokens]),
        ("claw_call_seconds", "histogram", "From a request to its record on disk", _histogram(live["latency"])),
        *(
            (f"claw_calls_by_{name}", "counter", f"Model calls answered, by {name}", _by(name, live["by"][name]))
            for name in _BY
        ),
        ("claw_engine_up", "gauge", "1 where the engine's last call succeeded", _engines(engines, "ok")),
        ("claw_engine_calls", "counter", "Calls of an engine", _engines(engines, "n_calls", "_total")),
        ("claw_engine_errors", "counter", "Calls of an engine that failed", _engines(engines, "n_errors", "_total")),
        ("claw_engine_in_flight", "gauge", "Calls at an engine", _engines(engines, "in_flight")),
        ("claw_engine_waiting", "gauge", "Calls that wait for a place at an engine", _engines(engines, "waiting")),
        ("claw_policy_version", "gauge", "Version of the weights that sample", _one("", deps.policy.version)),
        ("claw_policy_syncing", "gauge", "1 while weights are exchanged and calls wait", _one("", deps.policy.syncing)),
        (
            "claw_policy_sync_expired",
            "gauge",
            "1 after a weight sync that nobody finished in time",
            _one("", deps.policy.sync_expired),
        ),
        (
            "claw_ingest_lag_seconds",
            "gauge",
            "Age of the oldest unreadable call",
            _one("", deps.ingest.lag_s),
        ),
        ("claw_ingest_records", "counter", "Journal records read", _one("_total", deps.ingest.n_ingested)),
        ("claw_ingest_failing", "gauge", "1 while ingest stands still", _one("", deps.ingest.last_error is not None)),
        (
            "claw_journal_failing",
            "gauge",
            "1 while no call is made durable",
            _one("", deps.journal.error is not None),
        ),
        ("claw_journal_damages", "gauge", "Places of the journal that hold no record", _one("", deps.ingest.n_damages)),
        (
            "claw_thread_ends",
            "counter",
            "Threads that ended and were started again",
            [("_total", {"thread": name}, n) for name, n in deps.n_ends.items()],
        ),
        (
            "claw_journal_bytes",
            "gauge",
            "Size of the journal, all writers",
            _one("", journal_bytes(deps.settings.journal_dir)),
        ),
        ("claw_steps", "gauge", "Steps in the pool", _one("", pool["n_steps"])),
        ("claw_trajectories", "gauge", "Trajectories in the pool", _one("", pool["n_trajectories"])),
        ("claw_groups", "gauge", "Prompt groups in the pool", _one("", pool["n_groups"])),
    ]


def text_of(found: Iterable[Family]) -> str:
    """Prometheus' text format, version 0.0.4."""
    lines: list[str] = []
    for name, kind, about, samples in found:
        # In this version a counter's family has its samples' name.
        family = f"{name}_total" if kind == "counter" else name
        lines += [f"# HELP {family} {about}", f"# TYPE {family} {kind}"]
        for suffix, labels, value in samples:
            if value is not None:
                inner = ",".join(f'{key}="{_escaped(label)}"' for key, label in labels.items())
                lines.append(
                    f"{name}{suffix}{{{inner}}} {_number(value)}" if inner else f"{name}{suffix} {_number(value)}"
                )
    return "\n".join([*lines, ""])


def _one(suffix: str, value: float | None) -> list[Sample]:
    return [(suffix, {}, value)]


def _by(name: str, counts: Mapping[str, int]) -> list[Sample]:
    return [("_total", {name: value}, n) for value, n in counts.items()]


def _engines(engines: Iterable[Mapping[str, Any]], what: str, suffix: str = "") -> list[Sample]:
    return [(suffix, {"engine": str(engine["name"])}, engine.get(what)) for engine in engines]


def _histogram(latency: Mapping[str, Any]) -> list[Sample]:
    buckets: list[Sample] = [("_bucket", {"le": _number(le)}, n) for le, n in latency["buckets"]]
    count = latency["count"]
    return [*buckets, ("_bucket", {"le": "+Inf"}, count), ("_sum", {}, latency["sum"]), ("_count", {}, count)]


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    """Exact: counters grow past what six digits show."""
    return str(int(value)) if isinstance(value, int) or value.is_integer() else repr(value)
