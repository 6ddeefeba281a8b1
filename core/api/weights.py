"""The weight sync of the studio: engines load new weights, are checked, and the version is put in force."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from typing import Any

from starlette.concurrency import run_in_threadpool

from core.api.handling import ApiDeps, Call
from core.api.routing import Router
from core.api.schemas import INT, NUM, OBJ, STR, array, obj
from core.api.train import apply_report, end_unfinished_sync
from core.api.trainer_wire import SyncIn
from core.api.wire import PolicyIn
from core.errors import Conflict, EngineError, EngineTimeout, InvalidInput, NotFound, StudioError
from core.gateway.engines.base import Engine
from core.gateway.engines.registry import EngineSet
from core.gateway.engines.weights import Weights
from core.types import PolicyEventKind

log = logging.getLogger(__name__)

routes = Router()


@routes(
    "POST",
    "/policy/sync",
    obj(version=INT, seconds=NUM, engines=array(OBJ), unreachable=array(STR)),
    statuses=(404, 409, 502, 504),
    reads_pool=False,
    example={"path": "/models/policy/version-7", "version": 7},
)
async def sync_weights(call: Call, body: SyncIn) -> Any:
    """Load new weights into the engines and put their version in force.

    New calls wait, those in flight end within drain_s, each engine loads the weights and is checked to have the
    version. If one fails, the version before stays in force, engines that had loaded the new weights load the earlier
    ones again, and the error names the engine.
    """
    deps, began = call.deps, time.monotonic()
    engines = _chosen(deps.engines, body.engines)
    weights = Weights(body.version, str(body.path))
    if deps.policy.syncing:
        raise Conflict(
            "a weight sync is in progress", hint="see GET /api/v1/policy; DELETE /api/v1/policy/sync ends it"
        )
    metadata = {**body.metadata, "path": weights.path, "engines": [engine.name for engine in engines]}
    await _report(deps, PolicyEventKind.SYNC_STARTED, weights, metadata)
    limit_s = min(body.timeout_s or deps.policy.sync_timeout_s, deps.policy.sync_timeout_s)
    loaded: list[dict[str, Any]] = []
    earlier: list[tuple[Engine, Weights | None]] = []
    try:
        async with asyncio.timeout(limit_s):
            await _drained(deps, min(body.drain_s, limit_s))
            for engine in engines:
                start = time.monotonic()
                earlier.append((engine, await _weights_before(deps, engine)))
                checked = await engine.load_weights(weights)
                loaded.append({"name": engine.name, "seconds": time.monotonic() - start, "checked": checked})
    except (StudioError, TimeoutError) as error:
        failure = error if isinstance(error, StudioError) else _too_slow(engines[len(loaded)], weights, limit_s)
        kept = await _put_back(earlier)
        await run_in_threadpool(end_unfinished_sync, deps, failure.message)
        version = deps.policy.version
        in_force = "no version is" if version is None else f"version {version} stays"
        failure.message = f"{failure.message}; {in_force} in force{kept}"
        raise failure from error
    await _report(deps, PolicyEventKind.SYNC_FINISHED, weights, metadata)
    return {
        "version": weights.version,
        "seconds": time.monotonic() - began,
        "engines": loaded,
        "unreachable": deps.unreachable(),
    }


def _chosen(engines: EngineSet, names: Sequence[str] | None) -> list[Engine]:
    known = {engine.name: engine for engine in engines.engines()}
    for number, name in enumerate(names or ()):
        if name not in known:
            raise NotFound(f"no engine {name!r}", field=f"engines.{number}", hint=f"engines: {', '.join(known)}")
    chosen = engines.of_policy() if names is None else [known[name] for name in dict.fromkeys(names)]
    if not chosen:
        raise InvalidInput("no engine is to load the weights", field="engines", hint="name at least one")
    return chosen


async def _report(deps: ApiDeps, event: PolicyEventKind, weights: Weights, metadata: dict[str, Any]) -> None:
    report = PolicyIn(version=weights.version, event=event, metadata=metadata)
    await run_in_threadpool(apply_report, deps, report)


async def _drained(deps: ApiDeps, limit_s: float) -> None:
    """Return when no call is in flight, or after the limit."""
    began = time.monotonic()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await deps.policy.drained()
    await run_in_threadpool(deps.drain_workers, max(0.0, limit_s - (time.monotonic() - began)))


async def _weights_before(deps: ApiDeps, engine: Engine) -> Weights | None:
    """The weights that the engine has: what it reports, else what the last sync loaded."""
    reported = await engine.weights()
    if reported is not None:
        return reported
    synced = deps.policy.weights_in_force(engine.name)
    return None if synced is None else Weights(synced[1], synced[0])


def _too_slow(engine: Engine, weights: Weights, limit_s: float) -> EngineError:
    return EngineTimeout(
        f"engine {engine.name!r} did not load version {weights.version} within {limit_s:g} s",
        field="timeout_s",
        hint="CLAW_STUDIO_POLICY_SYNC_TIMEOUT_S sets the limit",
    )


async def _put_back(earlier: Sequence[tuple[Engine, Weights | None]]) -> str:
    """Load the earlier weights again; returns a clause that names the engines in which this failed, or nothing."""
    unknown: list[str] = []
    for engine, before in earlier:
        try:
            if before is None or await engine.weights() != before:
                if before is None:
                    unknown.append(engine.name)
                else:
                    await engine.load_weights(before)
        except EngineError as error:
            log.warning("engine %r could not load the earlier weights again: %s", engine.name, error.message)
            unknown.append(engine.name)
    return f"; unknown weights: {', '.join(map(repr, unknown))}" if unknown else ""
