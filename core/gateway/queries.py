"""What agents ask besides for answers: which models there are, how long a prompt is, an answer once more.

None of it is a model call, so none of it is recorded.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from core.dialects import Names
from core.errors import EngineError, NotFound, StudioError
from core.gateway.asgi import JSON, AgentGone, Receive, Scope, Send, read_body, send_whole
from core.gateway.capture import parse_request
from core.gateway.deps import GatewayDeps
from core.gateway.dialects import CHAT, MESSAGES, RESPONSES, Dialect
from core.gateway.engine import Engine
from core.gateway.identity import authorize, presented_keys, resolve_caller
from core.gateway.recall import find_response, reach, recall, response_of

BYTES_PER_TOKEN: Final = 4
"""Of JSON, roughly; for engines that can't be asked."""


class Query(ABC):
    """One endpoint. Failures have the shape of its dialect."""

    dialect: Dialect = CHAT

    def __init__(self, deps: GatewayDeps) -> None:
        self._deps = deps

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one question."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        dialect = self.dialect_of(headers)
        try:
            authorize(presented_keys(headers), self._deps.keys, self._deps.settings.api_key)
            answer = await self.answer(scope.get("path_params") or {}, headers, receive)
        except StudioError as error:
            await send_whole(send, error.http_status, orjson.dumps(dialect.error(error)), [JSON])
        except AgentGone:
            return
        else:
            await send_whole(send, 200, orjson.dumps(answer), [JSON])

    def dialect_of(self, headers: Mapping[str, str]) -> Dialect:
        """The dialect that the agent speaks."""
        return self.dialect

    def reach(self, headers: Mapping[str, str]) -> str | None:
        """The only trajectory whose answers the caller may have back; None is any."""
        return reach(presented_keys(headers), self._deps.keys, self._deps.settings.api_key)

    @abstractmethod
    async def answer(self, path: Mapping[str, str], headers: Mapping[str, str], receive: Receive) -> Any:
        """The body to send. Raises StudioError."""


class Models(Query):
    """``GET models`` and ``GET models/{model}``: in Anthropic's shape for who says ``anthropic-version``."""

    def dialect_of(self, headers: Mapping[str, str]) -> Dialect:
        """Both APIs have this path; the header tells them apart."""
        return MESSAGES if "anthropic-version" in headers else CHAT

    async def answer(self, path: Mapping[str, str], headers: Mapping[str, str], receive: Receive) -> Any:
        """List; an engine that does not answer is listed by the names it was configured with."""
        listed = await asyncio.gather(*(_models_of(engine) for engine in self._deps.engines.engines()))
        known = {entry["id"]: entry for entries in listed for entry in entries if "id" in entry}
        anthropic = self.dialect_of(headers) is MESSAGES
        data = [_card(entry) for entry in known.values()] if anthropic else list(known.values())
        if (asked := path.get("model")) is not None:
            found = next((entry for entry in data if entry["id"] == asked), None)
            if found is None:
                raise NotFound(f"no engine lists the model {asked!r}", field="model")
            return found
        if not anthropic:
            return {"object": "list", "data": data}
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
        return {"data": data, "has_more": False, **ends}


class CountTokens(Query):
    """``POST messages/count_tokens`` and ``POST responses/input_tokens``: how long the prompt of a request is."""

    def __init__(self, deps: GatewayDeps, dialect: Dialect) -> None:
        super().__init__(deps)
        self.dialect = dialect

    async def answer(self, path: Mapping[str, str], headers: Mapping[str, str], receive: Receive) -> Any:
        """``input_tokens`` by the engine's own tokenizer; with ``estimated: true`` where it can't be asked."""
        deps = self._deps
        request = parse_request(await read_body(receive, deps.max_body_bytes))
        caller = resolve_caller(
            path=path,
            headers=headers,
            model=request.get("model"),
            presented=presented_keys(headers),
            keys=deps.keys,
            api_key=deps.settings.api_key,
            channel=deps.settings.channel,
        )
        within = self.reach(headers)
        items = await recall(deps.journal.directory, self.dialect.name, request, within)
        chat = self.dialect.wire.open(request, Names(""), items).asked
        prompt = {name: chat[name] for name in ("messages", "tools") if name in chat}
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


class StoredResponse(Query):
    """``GET responses/{response_id}``: an answer of earlier, read from the journal."""

    dialect = RESPONSES

    async def answer(self, path: Mapping[str, str], headers: Mapping[str, str], receive: Receive) -> Any:
        """The response object as it was given."""
        response_id = path["response_id"]
        record = await asyncio.to_thread(find_response, self._deps.journal.directory, response_id, self.reach(headers))
        if record is None:
            raise NotFound(f"Response with id {response_id!r} not found.", field="response_id")
        return response_of(record)


def _card(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A model in Anthropic's shape."""
    created = entry.get("created")
    at = datetime.fromtimestamp(created if isinstance(created, int | float) else 0, UTC)
    return {
        "type": "model",
        "id": entry["id"],
        "display_name": entry["id"],
        "created_at": at.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


async def _models_of(engine: Engine) -> list[dict[str, Any]]:
    try:
        return await engine.list_models()
    except (EngineError, TimeoutError):
        return [
            {"id": name, "object": "model", "created": 0, "owned_by": engine.name} for name in engine.plain_models()
        ]
