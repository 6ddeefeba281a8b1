"""What is asked besides answers: a question of the HTTP API that is no model call, so none of it is recorded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

import orjson

from core.errors import StudioError
from core.gateway.calls.identity import Caller, presented_keys, resolve_caller
from core.gateway.calls.recall import reach
from core.gateway.deps import GatewayDeps
from core.gateway.dialects import CHAT, BadRequest, Dialect
from core.gateway.http.asgi import JSON, AgentGone, Receive, Scope, Send, read_request, send_whole, text_headers
from core.gateway.http.fast_router import unmarked


@dataclass(frozen=True, slots=True)
class Question:
    """One request. ``path`` holds the parameters of its path, ``query`` those behind the question mark."""

    path: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    receive: Receive
    max_body_bytes: int

    async def body(self) -> bytes:
        """What was sent. Raises as ``read_request``."""
        return await read_request(self.receive, self.headers, self.max_body_bytes)

    def count(self, name: str, default: int, most: int) -> int:
        """A number of things from the query. BadRequest where it is none from 1 to ``most``."""
        told = self.query.get(name)
        if told is None:
            return default
        if not told.isdecimal() or not 1 <= int(told) <= most:
            raise BadRequest(f"{name} must be a whole number from 1 to {most}", field=name)
        return int(told)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer in somebody else's words."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = (JSON,)


class Query(ABC):
    """One endpoint. Failures have the shape of its dialect."""

    dialect: Dialect = CHAT

    def __init__(self, deps: GatewayDeps) -> None:
        self._deps = deps

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one question."""
        deps = self._deps
        headers = text_headers(scope["headers"])
        query = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True))
        question = Question(unmarked(scope.get("path_params") or {}), query, headers, receive, deps.max_body_bytes)
        dialect = self.dialect_of(headers)
        try:
            answer = await self.answer(question)
        except StudioError as error:
            await send_whole(send, error.http_status, orjson.dumps(dialect.error(error)), [JSON])
        except AgentGone:
            return
        else:
            reply = answer if isinstance(answer, Reply) else Reply(200, orjson.dumps(answer))
            await send_whole(send, reply.status, reply.body, reply.headers)

    def dialect_of(self, headers: Mapping[str, str]) -> Dialect:
        """The dialect that the agent speaks."""
        return self.dialect

    def caller(self, question: Question, request: Mapping[str, Any]) -> Caller:
        """Who asks, and for which model. Raises as ``resolve_caller``."""
        deps = self._deps
        return resolve_caller(
            path=question.path,
            headers=question.headers,
            model=request.get("model"),
            presented=presented_keys(question.headers),
            keys=deps.keys,
            api_key=deps.settings.api_key,
            channel=deps.settings.channel,
        )

    def reach(self, headers: Mapping[str, str]) -> str | None:
        """The only trajectory whose answers the caller may have back; None is any."""
        return reach(presented_keys(headers), self._deps.keys, self._deps.settings.api_key)

    @abstractmethod
    async def answer(self, question: Question) -> Any:
        """The body to send as JSON, or a ``Reply``. Raises StudioError."""
