"""The few facts that every page shows about the running service: gateway, engine, ingest lag, dropped calls."""

from __future__ import annotations

from dataclasses import dataclass

from studio import state
from studio.glossary import WORDS
from studio.widgets.format import count, seconds

LAG_WARN_S = 2.0
LAG_BAD_S = 30.0


@dataclass(frozen=True, slots=True)
class Light:
    """One status chip: ``tone`` is good, warn, bad or muted."""

    label: str
    value: str
    tone: str
    detail: str


def lights() -> list[Light]:
    """The chips of the page head, best known facts only."""
    service = state.service()
    dropped = service.stats.snapshot().get("n_dropped", 0)
    lag = service.ingest.lag_s
    error = service.ingest.last_error
    return [
        Light("Gateway", service.base_url.removeprefix("http://"), "good", "Agents call this address."),
        _engine_light(service.engines.status()),
        Light(
            "Ingest lag",
            "failed" if error else seconds(lag),
            "bad" if error or (lag or 0.0) > LAG_BAD_S else "warn" if (lag or 0.0) > LAG_WARN_S else "good",
            str(error) if error else WORDS["ingest lag"],
        ),
        Light("Dropped", count(dropped), "bad" if dropped else "good", WORDS["dropped"]),
    ]


def _engine_light(engines: list[dict]) -> Light:
    if not engines:
        return Light("Engine", "none", "bad", "No policy engine is configured; see Settings.")
    first = engines[0]
    names = ", ".join(str(engine["name"]) for engine in engines)
    ok = [engine.get("ok") for engine in engines]
    if all(ok):
        return Light("Engine", names, "good", str(first.get("base_url") or first.get("kind")))
    if any(state is None for state in ok):
        return Light("Engine", f"{names} starting", "warn", "Not probed yet.")
    errors = "; ".join(str(engine.get("error")) for engine in engines if not engine.get("ok"))
    return Light("Engine", f"{names} down", "bad", errors)
