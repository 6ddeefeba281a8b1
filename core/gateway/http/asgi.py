"""Reading requests and sending responses as plain ASGI messages: faster than a framework's request objects."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from core.gateway.served_dialects import BadRequest
from core.scrub import header_text

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

JSON: Final = (b"content-type", b"application/json")
EVENT_STREAM: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Proxies must not buffer the events.
    (b"x-accel-buffering", b"no"),
)


MAX_BODY_BYTES: Final = 256 << 20
MAX_RATIO: Final = 200
"""Most decompressed bytes per compressed byte; repetitive chats compress to a hundredth at best."""
MAX_MEMBERS: Final = 10_000
"""Most gzip members of a body. Blocked gzip has one per 64 KiB; empty ones of 20 bytes cost time and give nothing."""
_PART: Final = 1 << 16
"""Bytes given to the decoder at a time."""
_SMALL: Final = 1 << 20
"""Decompressed size that is always allowed, bytes."""
_WINDOWS: Final = {"gzip": 31, "x-gzip": 31, "deflate": 47}
"""``Content-Encoding`` -> zlib's window bits."""


class ClientDisconnected(Exception):
    """The client disconnected while sending its request."""


class TooLarge(BadRequest):
    """A body over the limit."""

    type = "request_too_large"
    http_status = 413


class UnknownEncoding(BadRequest):
    """A body in an unsupported ``Content-Encoding``."""

    type = "unsupported_encoding"
    http_status = 415


def text_headers(headers: Headers) -> dict[str, str]:
    """Headers as text, names in lower case."""
    return {name.decode("latin-1"): header_text(value) for name, value in headers}


async def read_request(receive: Receive, headers: Mapping[str, str], max_bytes: int) -> bytes:
    """The whole request body, decompressed. Raises as ``read_body`` and ``plain_body``."""
    body = await read_body(receive, max_bytes)
    encoding = headers.get("content-encoding")
    if encoding is None:
        return body
    # Decompressing hundreds of megabytes takes a second; a thread keeps the event loop free.
    return await asyncio.to_thread(plain_body, body, encoding, max_bytes)


def plain_body(body: bytes, encoding: str | None, max_bytes: int) -> bytes:
    """A body without its ``Content-Encoding``.

    Raises:
        UnknownEncoding: neither gzip nor deflate.
        BadRequest: invalid or truncated data, or more than ``MAX_MEMBERS`` members.
        TooLarge: over ``max_bytes``, or over ``MAX_RATIO`` times the compressed size.
    """
    name = (encoding or "identity").strip().lower()
    if name == "identity":
        return body
    if name not in _WINDOWS:
        raise UnknownEncoding(
            f"the body is encoded in {encoding!r}", field="Content-Encoding", hint="gzip, deflate or none"
        )
    if not body:
        return body
    limit = min(max_bytes, max(_SMALL, MAX_RATIO * len(body)))
    pieces: list[bytes] = []
    n_bytes = at = 0
    n_members, decoder = 1, zlib.decompressobj(_WINDOWS[name])
    while at < len(body):
        if decoder.eof:
            n_members, decoder = n_members + 1, zlib.decompressobj(_WINDOWS[name])
            if n_members > MAX_MEMBERS:
                raise BadRequest(f"the {name} body has more than {MAX_MEMBERS} members", field="body")
        # The decoder copies all that follows a member, so it gets a small part of the body at a time.
        part = body[at : at + _PART]
        try:
            pieces.append(decoder.decompress(part, limit + 1 - n_bytes))
        except zlib.error as error:
            raise BadRequest(f"the body is not {name}: {error}", field="body") from error
        n_bytes += len(pieces[-1])
        if n_bytes > limit:
            raise TooLarge(f"the decompressed request is over {limit} bytes", field="body")
        at += len(part) - len(decoder.unused_data)
    if not decoder.eof:
        raise BadRequest(f"the {name} body ends in the middle", field="body")
    return b"".join(pieces)


async def read_body(receive: Receive, max_bytes: int) -> bytes:
    """The whole request body.

    Raises:
        TooLarge: more than ``max_bytes``. ClientDisconnected: the connection ended first.
    """
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnected
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        return body
    chunks = [body]
    n_bytes = len(body)
    while message.get("more_body", False):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        chunks.append(message.get("body", b""))
        n_bytes += len(chunks[-1])
        if n_bytes > max_bytes:
            raise TooLarge(f"the request is over {max_bytes} bytes", field="body")
    return b"".join(chunks)


async def disconnected(receive: Receive) -> None:
    """Return when the client has disconnected. The request must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_start(send: Send, status: int, headers: Headers) -> None:
    """Begin a response."""
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})


async def send_body(send: Send, body: bytes, *, more: bool = False) -> None:
    """A piece of a response; the last one unless ``more``."""
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def send_whole(send: Send, status: int, body: bytes, headers: Headers) -> None:
    """A response in one piece."""
    await send_start(send, status, [(b"content-length", str(len(body)).encode()), *headers])
    await send_body(send, body)
