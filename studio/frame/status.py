"""Status lights of the running service in the head of every page: gateway, engine, ingest lag, dropped calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from core.gateway.engines.capabilities import streaming_line
from core.gateway.engines.flavours import findings_line
from studio import state
from studio.glossary import WORDS
from studio.kit.format import count, seconds

LAG_WARN_S = 2.0
LAG_BAD_S = 30.0


@dataclass(frozen=True, slots=True)
class StatusLight:
    """One status chip: ``tone`` is good, warn, bad or muted."""

    label: str
    value: str
    tone: str
    detail: str


def status_lights() -> list[StatusLight]:
    """The lights of the page head, in order."""
    service = state.service()
    dropped = service.stats.n_dropped
    lag = service.ingest.lag_s
    error = service.ingest.last_error
    problems = service.problems()
    messages = "\n".join(one["message"] for one in problems if one["part"] != "ingest")
    stops = any(one["stops"] for one in problems)
    return [
        StatusLight(
            "Gateway",
            service.base_url.removeprefix("http://"),
            "bad" if stops else "warn" if messages else "good",
            messages or "Agents call this address.",
        ),
        _engine_light(service.engines.status()),
        StatusLight(
            "Ingest lag",
            "failed" if error else seconds(lag),
            "bad" if error or (lag or 0.0) > LAG_BAD_S else "warn" if (lag or 0.0) > LAG_WARN_S else "good",
            str(error) if error else WORDS["ingest lag"],
        ),
        StatusLight("Dropped", count(dropped), "bad" if dropped else "good", WORDS["dropped"]),
    ]


def _engine_light(engines: list[dict[str, Any]]) -> StatusLight:
    if not engines:
        return StatusLight("Engine", "none", "bad", "No policy engine is configured; see Settings.")
    default = next((engine for engine in engines if engine.get("default")), engines[0])
    detail = "\n".join(f"{engine['name']}: {engine_state(engine)}" for engine in engines)
    tone = {True: "good", False: "bad", None: "muted"}[default["ok"]]
    value = f"{default['name']} failing" if default["ok"] is False else str(default["name"])
    return StatusLight("Engine", value, tone, detail)


def engine_state(engine: dict[str, Any]) -> str:
    """One line about an engine of ``engines.status()``: its error, or its probed capabilities and its load."""
    if engine.get("error"):
        waits = "" if engine.get("healthy", True) else " · paused before the next attempt"
        return f"{engine['error']}{waits}"
    findings = findings_line(engine.get("findings") or {})
    parts = [findings or ("works" if engine.get("ok") else "not called yet")]
    if engine.get("ok"):
        parts.append(streaming_line(engine.get("streaming") or {}))
    if engine.get("in_flight") or engine.get("waiting"):
        concurrency = f" of {engine['concurrency']}" if engine.get("concurrency") else ""
        parts.append(f"{engine['in_flight']}{concurrency} in flight, {engine['waiting']} waiting")
    return " · ".join(parts)
