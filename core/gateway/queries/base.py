"""Base class of HTTP endpoints that are not model calls and are not recorded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

import orjson

from core.errors import StudioError
from core.gateway.calls.earlier_responses import readable_trajectory
from core.gateway.calls.identity import Caller, presented_keys, resolve_caller
from core.gateway.deps import GatewayDeps
from core.gateway.http.asgi import (
    JSON,
    ClientDisconnected,
    Receive,
    Scope,
    Send,
    read_request,
    send_whole,
    text_headers,
)
from core.gateway.http.fast_router import decode_slashes
from core.gateway.served_dialects import CHAT, BadRequest, ServedDialect


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One HTTP request. ``path`` holds its path parameters, ``query`` its query parameters."""

    path: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    receive: Receive
    max_body_bytes: int

    async def body(self) -> bytes:
        """The request body. Raises as ``read_request``."""
        return await read_request(self.receive, self.headers, self.max_body_bytes)

    def count(self, name: str, default: int, maximum: int) -> int:
        """An integer query parameter. BadRequest unless it is from 1 to ``maximum``."""
        value = self.query.get(name)
        if value is None:
            return default
        if not value.isdecimal() or not 1 <= int(value) <= maximum:
            raise BadRequest(f"{name} must be a whole number from 1 to {maximum}", field=name)
        return int(value)


@dataclass(frozen=True, slots=True)
class HttpReply:
    """An HTTP response that is sent as it is."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = (JSON,)


class Endpoint(ABC):
    """One ASGI endpoint. Errors have the shape of its dialect."""

    dialect: ServedDialect = CHAT

    def __init__(self, deps: GatewayDeps) -> None:
        self._deps = deps

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        deps = self._deps
        headers = text_headers(scope["headers"])
        query = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True))
        http_request = HttpRequest(
            decode_slashes(scope.get("path_params") or {}), query, headers, receive, deps.max_body_bytes
        )
        dialect = self.dialect_of(headers)
        try:
            answer = await self.answer(http_request)
        except StudioError as error:
            await send_whole(send, error.http_status, orjson.dumps(dialect.error(error)), [JSON])
        except ClientDisconnected:
            return
        else:
            http_reply = answer if isinstance(answer, HttpReply) else HttpReply(200, orjson.dumps(answer))
            await send_whole(send, http_reply.status, http_reply.body, http_reply.headers)

    def dialect_of(self, headers: Mapping[str, str]) -> ServedDialect:
        """The dialect of the response."""
        return self.dialect

    def caller(self, http_request: HttpRequest, request: Mapping[str, Any]) -> Caller:
        """The caller and the requested model. Raises as ``resolve_caller``."""
        deps = self._deps
        return resolve_caller(
            path=http_request.path,
            headers=http_request.headers,
            model=request.get("model"),
            presented=presented_keys(http_request.headers),
            keys=deps.keys,
            api_key=deps.settings.api_key,
            channel=deps.settings.channel,
        )

    def readable_trajectory(self, headers: Mapping[str, str]) -> str | None:
        """The only trajectory whose stored responses the caller may read; None means any."""
        return readable_trajectory(presented_keys(headers), self._deps.keys, self._deps.settings.api_key)

    @abstractmethod
    async def answer(self, http_request: HttpRequest) -> Any:
        """The body to send as JSON, or a ``HttpReply``. Raises StudioError."""
