"""Endpoints about engines: model list, token counts, health, and calls passed through to an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from core.dialects import ResponseIds
from core.dialects.messages_request import CONTINUE
from core.errors import EngineError, NotFound
from core.gateway.calls.capture import parse_request
from core.gateway.calls.earlier_responses import expand_input
from core.gateway.deps import GatewayDeps
from core.gateway.engines.base import Engine
from core.gateway.http.asgi import JSON
from core.gateway.queries.base import Endpoint, HttpReply, HttpRequest
from core.gateway.served_dialects import CHAT, MESSAGES, BadRequest, ServedDialect
from core.scrub import scrubbed

BYTES_PER_TOKEN: Final = 4
"""A rough estimate for JSON, where the engine can't count."""
NOT_CAPTURED: Final = (b"x-captured", b"false")
"""A header of responses that were passed through and not recorded."""
_PAGE: Final = 20
_MAX_PAGE: Final = 1000


class ListModels(Endpoint):
    """``GET models`` and ``GET models/{model}``; in Anthropic's shape for requests with ``anthropic-version``."""

    def dialect_of(self, headers: Mapping[str, str]) -> ServedDialect:
        """Both APIs have this path; the header decides."""
        return MESSAGES if "anthropic-version" in headers else CHAT

    async def answer(self, http_request: HttpRequest) -> Any:
        """The list; an engine that does not answer is listed by its configured names."""
        listed = await asyncio.gather(*(_models_of(engine) for engine in self._deps.engines.engines()))
        known = {entry["id"]: entry for entries in listed for entry in entries if "id" in entry}
        anthropic = self.dialect_of(http_request.headers) is MESSAGES
        data = [_card(entry) for entry in known.values()] if anthropic else list(known.values())
        if (name := http_request.path.get("model")) is not None:
            model = next((entry for entry in data if entry["id"] == name), None)
            if model is None:
                raise NotFound(f"no engine lists the model {name!r}", field="model")
            return model
        return _page(data, http_request) if anthropic else {"object": "list", "data": data}


class CountTokens(Endpoint):
    """``POST messages/count_tokens`` and ``POST responses/input_tokens``: the token count of a request's prompt."""

    def __init__(self, deps: GatewayDeps, dialect: ServedDialect) -> None:
        super().__init__(deps)
        self.dialect = dialect

    async def answer(self, http_request: HttpRequest) -> Any:
        """``input_tokens`` by the engine's own tokenizer; an estimate with ``estimated: true`` where it can't count."""
        deps, headers = self._deps, http_request.headers
        request = parse_request(await http_request.body())
        caller = self.caller(http_request, request)
        within = self.readable_trajectory(headers)
        items = await expand_input(deps.journal.directory, self.dialect.name, request, within)
        chat = self.dialect.wire.open(request, ResponseIds(""), items).engine_request
        prompt = {name: chat[name] for name in ("messages", "tools", *CONTINUE) if name in chat}
        try:
            engine = await deps.engines.pick(caller.model)
            counted = await engine.count_tokens(prompt, caller.model, caller.foreign_key)
        except EngineError:
            counted = None
        body: dict[str, Any] = {} if self.dialect is MESSAGES else {"object": "response.input_tokens"}
        if counted is not None:
            return {**body, "input_tokens": counted}
        estimate = -(-len(orjson.dumps(prompt)) // BYTES_PER_TOKEN)
        return {**body, "input_tokens": estimate, "estimated": True}


class Passthrough(Endpoint):
    """Embeddings and tokenizer calls, passed through to the engine and not recorded.

    Args:
        path: the engine's path, with ``/v1`` where it has one.
    """

    def __init__(self, deps: GatewayDeps, path: str) -> None:
        super().__init__(deps)
        self._path = path

    async def answer(self, http_request: HttpRequest) -> Any:
        """The engine's response, unchanged."""
        request = parse_request(await http_request.body())
        caller = self.caller(http_request, request)
        engine = await self._deps.engines.pick(caller.model)
        status, content_type, body = await engine.pass_on(self._path, request, caller.model, caller.foreign_key)
        kind = (b"content-type", content_type.encode("latin-1", "replace")) if content_type else JSON
        return HttpReply(status, body, (kind, NOT_CAPTURED))


class HealthEndpoint(Endpoint):
    """``GET /health``: whether the default engine is alive. An engine that starts on demand counts as alive."""

    async def answer(self, http_request: HttpRequest) -> Any:
        """200 or 503."""
        engine = self._deps.engines.resolve(None)
        alive = await engine.check() is not False
        body = {"status": "ok" if alive else "unavailable"}
        return HttpReply(200 if alive else 503, orjson.dumps(body), (JSON, NOT_CAPTURED))


def _card(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A model in Anthropic's shape, with all keys of its API."""
    created, length = entry.get("created"), entry.get("max_model_len")
    at = datetime.fromtimestamp(created if isinstance(created, int | float) else 0, UTC)
    return {
        "type": "model",
        "id": entry["id"],
        "display_name": entry["id"],
        "created_at": at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": length if isinstance(length, int) else None,
        **dict.fromkeys(("capabilities", "deprecated_at", "line", "max_tokens", "retires_at")),
    }


def _page(cards: Sequence[dict[str, Any]], http_request: HttpRequest) -> dict[str, Any]:
    """A page of Anthropic's list. BadRequest if ``after_id`` or ``before_id`` is not in the list."""
    limit = http_request.count("limit", _PAGE, _MAX_PAGE)
    ids = [card["id"] for card in cards]
    places = {}
    for name in ("after_id", "before_id"):
        if (model := http_request.query.get(name)) is not None:
            if model not in ids:
                raise BadRequest(f"{name} {model!r} is no model of this list", field=name)
            places[name] = ids.index(model)
    start, end = places.get("after_id", -1) + 1, places.get("before_id", len(ids))
    backwards = "before_id" in places and "after_id" not in places
    shown = cards[max(end - limit, 0) : end] if backwards else cards[start : min(start + limit, end)]
    ends = {"first_id": shown[0]["id"], "last_id": shown[-1]["id"]} if shown else {"first_id": None, "last_id": None}
    return {"data": list(shown), "has_more": len(shown) < (end if backwards else end - start), **ends}


async def _models_of(engine: Engine) -> list[dict[str, Any]]:
    try:
        listed: list[dict[str, Any]] = scrubbed(await engine.list_models(), engine.secrets())
        return listed
    except (EngineError, TimeoutError):
        return [
            {"id": name, "object": "model", "created": 0, "owned_by": engine.name} for name in engine.plain_models()
        ]
