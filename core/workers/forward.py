"""Forwards all requests except model calls from a gateway worker to the owner process."""

from __future__ import annotations

import logging
from typing import Final

import orjson

from core.errors import StudioError
from core.gateway.access.admission import WORKER_HEADER
from core.gateway.http.asgi import (
    JSON,
    ClientDisconnected,
    Receive,
    Scope,
    Send,
    read_body,
    send_body,
    send_start,
    send_whole,
)
from core.gateway.transport.connection import HttpError
from core.gateway.transport.http1 import HttpClient

log = logging.getLogger(__name__)

HOP_BY_HOP: Final = frozenset(
    {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "content-length"}
)
"""Headers that apply to one connection only."""
DROPPED_HEADERS: Final = HOP_BY_HOP | {WORKER_HEADER, "expect"}
"""Request headers that are not forwarded: clients must not set the worker header, and the body is already read."""


class OwnerUnreachable(StudioError):
    """The owner process does not answer."""

    type = "owner_away"
    http_status = 503


class Forwarder:
    """An ASGI application that forwards requests and streams responses back.

    Args:
        address: root of the owner's server, ``http://127.0.0.1:PORT``.
        client: of the running event loop.
        token: proves to the owner that this process forwarded a request.
        max_body_bytes: larger requests get 413.
    """

    def __init__(self, address: str, client: HttpClient, *, token: str, max_body_bytes: int = 256 << 20) -> None:
        self._address = address
        self._client = client
        self._token = token
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        try:
            body = await read_body(receive, self._max_body_bytes)
        except ClientDisconnected:
            return
        except StudioError as error:
            await _refuse(send, error)
            return
        path = (scope.get("raw_path") or scope["path"].encode()).decode("ascii", "surrogateescape")
        query = scope["query_string"].decode("ascii", "surrogateescape")
        headers = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in scope["headers"]
            if name.decode("latin-1") not in DROPPED_HEADERS
        ]
        sender = scope.get("client")
        headers.append((WORKER_HEADER, f"{self._token} {sender[0] if sender else ''}"))
        started = False
        try:
            url = f"{self._address}{path}" + (f"?{query}" if query else "")
            async with await self._client.request(scope["method"], url, headers=headers, body=body) as answer:
                kept = [
                    (name.encode("latin-1"), value.encode("latin-1"))
                    for name, value in answer.headers.items()
                    if name not in HOP_BY_HOP
                ]
                started = True
                await send_start(send, answer.status, kept)
                while piece := await answer.readany():
                    await send_body(send, piece, more=True)
                await send_body(send, b"")
        except (HttpError, ValueError) as error:
            log.warning("%s %s could not be forwarded: %s", scope["method"], path, error)
            if started:
                # A normal end would make the partial response look complete.
                raise
            await _refuse(send, OwnerUnreachable("the service's main process does not answer", hint="try again"))


async def _refuse(send: Send, error: StudioError) -> None:
    headers: list[tuple[bytes, bytes]] = [JSON]
    if error.http_status == 503:
        headers.append((b"retry-after", b"1"))
    await send_whole(send, error.http_status, orjson.dumps(error.as_dict()), headers)
