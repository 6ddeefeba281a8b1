"""A small HTTP/1.1 client for engines: keep-alive connections, request bodies of known length, whole or streamed
responses.

A general client costs several times as much as the rest of a call; see ``bench/gateway``.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Final

from cachetools import LRUCache

from core.gateway.transport.connection import Bounds, ConnectError, EngineConnection, HttpError
from core.gateway.transport.decompression import Inflater, inflater
from core.gateway.transport.proxies import Proxies, Proxy, tls_context
from core.gateway.transport.request import Origin, Target, read_url, request_bytes
from core.gateway.transport.tunnel import tunnel

_MAX_ORIGINS: Final = 1024


class HttpClient:
    """The connections of one event loop, reused after each response that was read to its end.

    Args:
        connect_timeout_s: longest wait for a connection.
        keepalive_s: idle connections are closed after this time.
        bounds: size limits of responses.
        proxies: proxies to servers on other machines; None connects to all servers directly.
    """

    def __init__(
        self,
        *,
        connect_timeout_s: float = 10.0,
        keepalive_s: float = 60.0,
        bounds: Bounds | None = None,
        proxies: Proxies | None = None,
    ) -> None:
        self.bounds = bounds or Bounds()
        self._connect_timeout_s = connect_timeout_s
        self._keepalive_s = keepalive_s
        self._proxies = proxies
        self._idle: dict[Origin, deque[EngineConnection]] = {}
        self._not_reused: set[Origin] = set()
        self._open: set[EngineConnection] = set()
        self._targets: LRUCache[tuple[str, str], Target] = LRUCache(_MAX_ORIGINS)
        self._tls: ssl.SSLContext | None = None
        self._sweeping: asyncio.TimerHandle | None = None

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
        body: bytes = b"",
        connect_timeout_s: float | None = None,
    ) -> HttpAnswer:
        """Send a request and wait for the head of its response. Cancelling closes the connection.

        Given headers replace the client's own (``Host``, ``User-Agent``, ``Accept``, ``Accept-Encoding``).

        Raises:
            ConnectError: no connection. Disconnected: closed without a response; on a reused connection the server may
                still be well. HttpError: an invalid response. ValueError: an invalid header.
        """
        target = self._target(method, url)
        data = request_bytes(target, headers, body, method)
        timeout_s = self._connect_timeout_s if connect_timeout_s is None else connect_timeout_s
        connection = self._kept(target.origin) or await self._connect(target.origin, target.proxy, timeout_s)
        status, answered = await connection.ask(data, method)
        return HttpAnswer(status, answered, connection, self.bounds.answer)

    def close(self) -> None:
        """Close all connections; responses that are being read break off."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in list(self._open):
            connection.close()

    def _kept(self, origin: Origin) -> EngineConnection | None:
        idle = self._idle.get(origin)
        while idle:
            # The connection used last is the most likely to be open.
            connection = idle.pop()
            if connection.usable:
                return connection
            connection.close()
        return None

    async def _connect(self, origin: Origin, proxy: Proxy | None, timeout_s: float) -> EngineConnection:
        host, port, tls = origin
        connection = EngineConnection(self, origin)
        connect = partial(asyncio.get_running_loop().create_connection, lambda: connection)
        try:
            if tls and self._tls is None:
                self._tls = tls_context()
            async with asyncio.timeout(timeout_s):
                if proxy is None:
                    await connect(host, port, ssl=self._tls if tls else None)
                elif tls:
                    through = await tunnel(proxy, host, port)
                    await connect(sock=through, ssl=self._tls, server_hostname=host)
                else:
                    await connect(proxy.host, proxy.port)
        except TimeoutError as error:
            raise ConnectError(f"no connection{_proxy_note(proxy)} within {timeout_s:g} s") from error
        except OSError as error:
            raise ConnectError(_reason(error) + _proxy_note(proxy)) from error
        return connection

    def _target(self, method: str, url: str) -> Target:
        """Where a URL leads, and the request's fixed lines."""
        target = self._targets.get((method, url))
        if target is None:
            try:
                target = self._targets[method, url] = read_url(method, url, self._proxies)
            except OSError as error:
                raise ConnectError(str(error)) from error
        return target

    def opened(self, connection: EngineConnection) -> None:
        """Register an open connection."""
        self._open.add(connection)

    def closed(self, connection: EngineConnection) -> None:
        """Forget a closed connection."""
        self._open.discard(connection)

    def keep(self, connection: EngineConnection) -> None:
        """Keep a connection for reuse."""
        if connection.origin in self._not_reused:
            connection.close()
            return
        self._idle.setdefault(connection.origin, deque()).append(connection)
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(self._keepalive_s, self._close_idle)

    def stop_reuse(self, origin: Origin) -> None:
        """Stop reusing connections to this origin, because one caller could get the response to another."""
        self._not_reused.add(origin)
        for connection in self._idle.pop(origin, ()):
            connection.close()

    def _close_idle(self) -> None:
        """Close connections that were idle for too long."""
        self._sweeping = None
        loop = asyncio.get_running_loop()
        before = loop.time() - self._keepalive_s
        for origin, idle in list(self._idle.items()):
            while idle and (idle[0].idle_since <= before or not idle[0].usable):
                idle.popleft().close()
            if not idle:
                del self._idle[origin]
        if self._idle:
            self._sweeping = loop.call_later(self._keepalive_s / 2, self._close_idle)


class HttpAnswer:
    """The head of a response, and its body as it arrives. Leaving the context releases the connection.

    Attributes:
        status: HTTP status.
        headers: names in lower case; repeated ones are joined by a comma.
    """

    __slots__ = ("_connection", "_inflater", "_max_bytes", "_n_bytes", "_n_idle", "headers", "status")

    def __init__(
        self, status: int, headers: Mapping[str, str], connection: EngineConnection, max_bytes: int | None
    ) -> None:
        self.status = status
        self._max_bytes = max_bytes
        self.headers = headers
        self._connection = connection
        self._n_bytes = self._n_idle = 0
        self._inflater = inflater(headers.get("content-encoding", ""))

    @property
    def content_type(self) -> str:
        """The media type in lower case; empty if there is none."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def read(self, max_bytes: int | None = None) -> bytes:
        """The whole body. Raises HttpError if it broke off or is over ``max_bytes`` or the client's limit."""
        if max_bytes is not None:
            self._max_bytes = max_bytes if self._max_bytes is None else min(max_bytes, self._max_bytes)
        pieces = []
        while piece := await self.readany():
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def readany(self) -> bytes:
        """What has arrived since the last read, at least one byte; empty at the end.

        Raises:
            HttpError: broken off, invalid compression, or over the client's limit.
        """
        max_bytes = self._max_bytes
        if max_bytes is not None and self._n_bytes > max_bytes:
            raise HttpError(f"its answer is over {max_bytes} bytes")
        piece = await (self._connection.take() if self._inflater is None else self._inflated(self._inflater))
        self._n_bytes += len(piece)
        if max_bytes is not None and self._n_bytes > max_bytes:
            self._connection.close()
            # The part below the limit is returned first.
            kept = piece[: max_bytes - self._n_bytes]
            return kept or await self.readany()
        return piece

    async def _inflated(self, inflater: Inflater) -> bytes:
        while piece := inflater.pending_input or await self._connection.take():
            try:
                plain = inflater.inflate(piece)
            except ValueError as error:
                self._connection.close()
                raise HttpError(str(error)) from error
            if plain:
                return plain
            # Compressed data can expand to nothing at any length.
            self._n_idle += len(piece)
            if self._max_bytes is not None and self._n_idle > self._max_bytes:
                self._connection.close()
                raise HttpError(f"its answer is over {self._max_bytes} bytes")
        try:
            inflater.end()
        except ValueError as error:
            raise HttpError(str(error)) from error
        return b""

    def release(self) -> None:
        """Release the connection for reuse if the response was read to its end, else close it."""
        self._connection.release()

    async def __aenter__(self) -> HttpAnswer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _proxy_note(proxy: Proxy | None) -> str:
    return "" if proxy is None else f" (through the proxy {proxy.host}:{proxy.port})"


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error}"
    return error.strerror or str(error) or type(error).__name__
