"""Limits what is read from hosted providers, in LiteLLM's httpx transport.

Compressed bodies are decompressed here in bounded pieces.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx

from core.gateway.providers.read_counter import ReadCounter
from core.gateway.transport.connection import Bounds
from core.gateway.transport.decompression import Inflater, inflater


class _Counted(httpx.AsyncByteStream):
    """A response body, counted and decompressed."""

    def __init__(self, inner: httpx.AsyncByteStream, counter: ReadCounter, unpacker: Inflater | None) -> None:
        self._inner = inner
        self._counter = counter
        self._unpacker = unpacker

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for came in self._inner:
            self._counter.add(len(came))
            if self._unpacker is None:
                yield came
                continue
            piece = came
            while piece:
                plain = self._unpack(self._unpacker.inflate, piece)
                self._counter.add(len(plain))
                yield plain
                piece = self._unpacker.pending_input
        if self._unpacker is not None:
            self._unpack(self._unpacker.end)

    def _unpack(self, unpack: Callable[..., Any], *args: bytes) -> Any:
        try:
            return unpack(*args)
        except ValueError as error:
            self._counter.fail(str(error))

    async def aclose(self) -> None:
        """Close the provider's connection."""
        await self._inner.aclose()


def bounded(send: Callable[..., Awaitable[httpx.Response]]) -> Callable[..., Awaitable[httpx.Response]]:
    """``handle_async_request`` of an httpx transport, bounded by the current ``ReadCounter`` or by default."""

    async def handle_async_request(transport: Any, request: httpx.Request) -> httpx.Response:
        counter = ReadCounter.current() or ReadCounter(Bounds().answer)
        request.headers["accept-encoding"] = "identity"
        response = await send(transport, request)
        encoding = response.headers.pop("content-encoding", "identity")
        unpacker = inflater(encoding)
        if unpacker is None and encoding.strip().lower() not in ("", "identity"):
            await response.aclose()
            counter.fail(f"its answer is compressed as {encoding[:100]!r}, which was not asked for")
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _Counted(response.stream, counter, unpacker)
        return response

    return handle_async_request
