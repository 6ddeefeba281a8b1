"""The keep-alive connections to all engines that are called directly, and how long one may wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from core.gateway.transport.connection import Bounds, Disconnected
from core.gateway.transport.http1 import HttpClient

KEEPALIVE_S = 60.0


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds.

    Attributes:
        total: one answer, start-up of the engine included.
        connect: until an address takes the connection.
        first_byte: of a stream; None is as long as the whole answer may take.
        idle: longest silence in the middle of a stream.
    """

    total: float = 900.0
    connect: float = 10.0
    first_byte: float | None = None
    idle: float = 300.0


class Connections:
    """One client per event loop, closed when its loop ends. ``bounds``: most that is read of an answer."""

    def __init__(self, bounds: Bounds | None = None) -> None:
        self.bounds = bounds or Bounds()
        self._clients: dict[asyncio.AbstractEventLoop, HttpClient] = {}
        self._scopes: dict[asyncio.AbstractEventLoop, AsyncGenerator[HttpClient, None]] = {}

    async def client(self) -> HttpClient:
        """The running loop's client."""
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            # Loops close their async generators when they end, and this one closes the connections.
            self._scopes[loop] = self._scope(loop)
            client = await anext(self._scopes[loop])
        return client

    async def aside(
        self, method: str, url: str, headers: Mapping[str, str], body: Mapping[str, Any] | None = None
    ) -> tuple[int, bytes]:
        """Ask an engine what is no model call; status and body, of which no more than ``bounds.aside`` is read.

        Raises:
            HttpError: no answer, a broken one, or one that is too long. ValueError: a header that is none.
        """
        client = await self.client()
        data = b"" if body is None else orjson.dumps(body)
        said = {**headers, "Content-Type": "application/json"} if body is not None else headers
        for attempt in (1, 2):
            try:
                async with await client.request(method, url, headers=said, body=data) as answer:
                    return answer.status, await answer.read(self.bounds.aside)
            except Disconnected:
                # An idle connection may be closed by the engine just when it is used: one new try tells.
                if attempt == 2:
                    raise
        raise AssertionError("unreachable")

    async def _scope(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[HttpClient, None]:
        client = self._clients[loop] = HttpClient(keepalive_s=KEEPALIVE_S, bounds=self.bounds)
        try:
            yield client
        finally:
            del self._clients[loop], self._scopes[loop]
            client.close()
