"""The keep-alive connections to all engines that are called directly, and how long one may wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import aiohttp

from core.gateway.http1 import HttpClient

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
    """Per event loop one client for model calls and one session for all else, closed when their loop ends."""

    def __init__(self) -> None:
        self._clients: dict[asyncio.AbstractEventLoop, HttpClient] = {}
        self._sessions: dict[asyncio.AbstractEventLoop, aiohttp.ClientSession] = {}
        self._scopes: dict[asyncio.AbstractEventLoop, AsyncGenerator[aiohttp.ClientSession, None]] = {}

    async def client(self) -> HttpClient:
        """The running loop's client."""
        client = self._clients.get(asyncio.get_running_loop())
        if client is None:
            await self.session()
            client = self._clients[asyncio.get_running_loop()]
        return client

    async def session(self) -> aiohttp.ClientSession:
        """The running loop's session."""
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None:
            # Loops close their async generators when they end, and this one closes the connections.
            self._scopes[loop] = self._scope(loop)
            session = await anext(self._scopes[loop])
        return session

    async def _scope(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[aiohttp.ClientSession, None]:
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            # Large prompts come compressed from nobody; small answers are not worth inflating.
            headers={"Accept-Encoding": "identity"},
        )
        client = self._clients[loop] = HttpClient(keepalive_s=KEEPALIVE_S)
        self._sessions[loop] = session
        try:
            yield session
        finally:
            del self._clients[loop], self._sessions[loop], self._scopes[loop]
            client.close()
            await session.close()
