"""The capture routes, under ``/v1`` and under ``/{trajectory_uid}/{prompt_uid}/v1``."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from starlette.routing import Route

from core.errors import EngineError, StudioError
from core.gateway.asgi import JSON, Receive, Scope, Send, send_whole
from core.gateway.capture import Capture
from core.gateway.deps import GatewayDeps
from core.gateway.dialects import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Dialect
from core.gateway.engines import Engine
from core.gateway.identity import authorize, presented_keys

__all__ = ["GatewayDeps", "create_gateway"]

PREFIXES = ("/v1", "/{trajectory_uid}/{prompt_uid}/v1")


def create_gateway(deps: GatewayDeps) -> list[Route]:
    """The routes to be mounted at an application's root."""
    routes: list[Route] = []
    for prefix in PREFIXES:
        for dialect in (CHAT, COMPLETIONS, RESPONSES, MESSAGES):
            routes.append(Route(f"{prefix}/{dialect.path}", Capture(deps, dialect), methods=["POST"]))
        routes.append(Route(f"{prefix}/models", Models(deps), methods=["GET"]))
    return routes


class Models:
    """``GET models``: what all engines serve, in the OpenAI shape."""

    def __init__(self, deps: GatewayDeps) -> None:
        self._deps = deps

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """List; an engine that does not answer is listed by the names it was configured with."""
        try:
            _authorize(self._deps, scope)
        except StudioError as error:
            await _send_error(send, error, CHAT)
            return
        listed = await asyncio.gather(*(_models_of(engine) for engine in self._deps.engines.engines()))
        data = list({entry["id"]: entry for entries in listed for entry in entries if "id" in entry}.values())
        await send_whole(send, 200, orjson.dumps({"object": "list", "data": data}), [JSON])


async def _models_of(engine: Engine) -> list[dict[str, Any]]:
    try:
        return await engine.list_models()
    except (EngineError, TimeoutError):
        return [
            {"id": name, "object": "model", "created": 0, "owned_by": engine.name} for name in engine.plain_models()
        ]


def _authorize(deps: GatewayDeps, scope: Scope) -> None:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    authorize(presented_keys(headers), deps.keys, deps.settings.api_key)


async def _send_error(send: Send, error: StudioError, dialect: Dialect) -> None:
    await send_whole(send, error.http_status, orjson.dumps(dialect.error(error)), [JSON])
