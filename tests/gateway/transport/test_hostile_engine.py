"""An engine whose answer has no end costs a bounded amount of memory, and a typed error."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable

import pytest

from core.gateway.transport.connection import Bounds, HttpError
from core.gateway.transport.http1 import HttpClient

PLAIN, HEAD = 16 << 20, 100_000


async def head_without_end() -> AsyncIterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nX-Long: "
    while True:
        yield b"a" * 65_536


async def headers_without_end() -> AsyncIterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\n"
    while True:
        yield b"X-One-More: of very many\r\n" * 1000


async def interim_without_end() -> AsyncIterator[bytes]:
    while True:
        yield b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 1000


async def bomb() -> AsyncIterator[bytes]:
    squeezed = gzip.compress(b"\0" * (PLAIN + 1))
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(squeezed)}\r\n\r\n"
    yield head.encode() + squeezed


async def n_bytes_sent(answer: Callable[[], AsyncIterator[bytes]], read: Callable, bounds: Bounds) -> int:
    """Bytes that the engine got rid of."""
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        try:
            async for piece in answer():
                writer.write(piece)
                await writer.drain()
                sent += len(piece)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = HttpClient(bounds=bounds)
    try:
        port = server.sockets[0].getsockname()[1]
        async with asyncio.timeout(60):
            await read(await client.request("POST", f"http://127.0.0.1:{port}/v1/x", body=b"{}"))
    finally:
        client.close()
        server.close()
    return sent


@pytest.mark.parametrize("answer", [head_without_end, headers_without_end, interim_without_end])
def test_a_head_without_end_is_refused(answer: Callable[[], AsyncIterator[bytes]]) -> None:
    async def read(_: object) -> None:
        raise AssertionError("there was no head")

    with pytest.raises(HttpError, match=f"its headers are over {HEAD} bytes"):
        asyncio.run(n_bytes_sent(answer, read, Bounds(head=HEAD)))


def test_a_bomb_is_inflated_a_bounded_piece_at_a_time() -> None:
    longest, total = 0, 0

    async def read(got) -> None:
        nonlocal longest, total
        while piece := await got.readany():
            longest, total = max(longest, len(piece)), total + len(piece)

    asyncio.run(n_bytes_sent(bomb, read, Bounds()))
    assert total == PLAIN + 1
    assert longest <= 1 << 20


def test_a_body_that_is_too_long_is_refused() -> None:
    async def read(got) -> None:
        await got.read()

    with pytest.raises(HttpError, match="its answer is over"):
        asyncio.run(n_bytes_sent(bomb, read, Bounds(answer=1 << 21)))
