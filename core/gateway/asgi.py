"""The bare ASGI messages of the capture path: a framework's request and response objects cost more than it has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from core.gateway.dialects import BadRequest

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

JSON: Final = (b"content-type", b"application/json")
EVENT_STREAM: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Proxies in between must not collect the events.
    (b"x-accel-buffering", b"no"),
)


class AgentGone(Exception):
    """The agent closed the connection while sending its request."""


class TooLarge(BadRequest):
    """A body over the limit."""

    type = "request_too_large"
    http_status = 413


async def read_body(receive: Receive, max_bytes: int) -> bytes:
    """The whole request body.

    Raises:
        TooLarge: more than ``max_bytes``. AgentGone: the connection ended first.
    """
    message = await receive()
    if message["type"] == "http.disconnect":
        raise AgentGone
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        return body
    chunks = [body]
    n_bytes = len(body)
    while message.get("more_body", False):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise AgentGone
        chunks.append(message.get("body", b""))
        n_bytes += len(chunks[-1])
        if n_bytes > max_bytes:
            raise TooLarge(f"the request is over {max_bytes} bytes", field="body")
    return b"".join(chunks)


async def disconnected(receive: Receive) -> None:
    """Return when the agent has gone. The request has to be read already."""
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
