"""The keep-alive connections to all engines that are called directly, and how long one may wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import aiohttp

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
    """One session per event loop, closed when its loop ends."""

    def __init__(self) -> None:
        self._sessions: dict[asyncio.AbstractEventLoop, aiohttp.ClientSession] = {}
        self._scopes: dict[asyncio.AbstractEventLoop, AsyncGenerator[aiohttp.ClientSession, None]] = {}

    async def session(self) -> aiohttp.ClientSession:
        """The running loop's session."""
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None:
            # Loops close their async generators when they end, and this one closes the session.
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
        self._sessions[loop] = session
        try:
            yield session
        finally:
            del self._sessions[loop], self._scopes[loop]
            await session.close()
