"""Keep-alive connections to engines, one HTTP client per event loop, and the timeouts of calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from core.gateway.transport.connection import Bounds, Disconnected
from core.gateway.transport.http1 import HttpClient
from core.gateway.transport.proxies import Proxies

KEEPALIVE_S = 60.0


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts in seconds.

    Attributes:
        total: one answer, including the engine's start.
        connect: opening a connection.
        first_byte: until the first bytes of a stream; None is as long as ``total``.
        idle: longest silence within a stream.
    """

    total: float = 900.0
    connect: float = 10.0
    first_byte: float | None = None
    idle: float = 300.0


class ConnectionPool:
    """One client per event loop, closed when its loop ends. ``bounds``: size limits of answers."""

    def __init__(self, bounds: Bounds | None = None) -> None:
        self.bounds = bounds or Bounds()
        self._clients: dict[asyncio.AbstractEventLoop, HttpClient] = {}
        self._scopes: dict[asyncio.AbstractEventLoop, AsyncGenerator[HttpClient, None]] = {}

    async def client(self) -> HttpClient:
        """The running loop's client."""
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            # Closing a loop closes its async generators, and this one closes the connections.
            self._scopes[loop] = self._scope(loop)
            client = await anext(self._scopes[loop])
        return client

    async def request_aside(
        self, method: str, url: str, headers: Mapping[str, str], body: Mapping[str, Any] | None = None
    ) -> tuple[int, bytes]:
        """Send a request that is no model call; returns status and body, at most ``bounds.aside`` bytes.

        Raises:
            HttpError: no response, a broken one, or one that is too long. ValueError: an invalid header.
        """
        client = await self.client()
        data = b"" if body is None else orjson.dumps(body)
        sent_headers = {**headers, "Content-Type": "application/json"} if body is not None else headers
        for attempt in (1, 2):
            try:
                async with await client.request(method, url, headers=sent_headers, body=data) as answer:
                    return answer.status, await answer.read(self.bounds.aside)
            except Disconnected:
                # The engine may have closed an idle connection just now, so one retry is made.
                if attempt == 2:
                    raise
        raise AssertionError("unreachable")

    async def _scope(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[HttpClient, None]:
        client = self._clients[loop] = HttpClient(
            keepalive_s=KEEPALIVE_S, bounds=self.bounds, proxies=Proxies.of_environment()
        )
        try:
            yield client
        finally:
            del self._clients[loop], self._scopes[loop]
            client.close()
