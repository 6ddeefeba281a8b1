"""A small HTTP/1.1 client for engines: kept connections, a body of known length out, an answer whole or in pieces.

A general client costs several times what the rest of a call does. Parsing is llhttp's (``httptools``).
"""

from __future__ import annotations

import asyncio
import base64
import ssl
import zlib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

import httptools

HIGH_WATER: Final = 1 << 20
"""An answer that nobody reads stops being received at so many bytes."""
MAX_BODY_BYTES: Final = 1 << 30
_MAX_ORIGINS: Final = 1024
_ENCODINGS: Final = {"gzip": 31, "x-gzip": 31, "deflate": 47}
"""``Content-Encoding`` -> zlib's window bits; nothing of it is asked for, and some proxies do it all the same."""

Origin = tuple[str, int, bool]
"""Host, port, whether it speaks TLS."""


class HttpError(Exception):
    """The exchange failed; the message says how."""


class ConnectError(HttpError):
    """Nobody answered at the address."""


class Disconnected(HttpError):
    """The connection was closed before any of the answer came."""


@dataclass(frozen=True, slots=True)
class _Target:
    origin: Origin
    line: str
    own: Mapping[str, str]


class HttpClient:
    """Connections of one event loop, each used again once its answer was read to the end.

    Args:
        connect_timeout_s: longest wait for a connection.
        keepalive_s: an idle connection is closed after so long.
    """

    def __init__(self, *, connect_timeout_s: float = 10.0, keepalive_s: float = 60.0) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._keepalive_s = keepalive_s
        self._idle: dict[Origin, deque[_Connection]] = {}
        self._open: set[_Connection] = set()
        self._targets: dict[tuple[str, str], _Target] = {}
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
        """Send a request and wait for the head of its answer. Cancelling closes the connection.

        Headers win over the client's own (``Host``, ``User-Agent``, ``Accept``, ``Accept-Encoding``).

        Raises:
            ConnectError: no connection. Disconnected: closed without an answer; on a kept connection this says
                nothing about the server. HttpError: something that is no answer. ValueError: a header that is none.
        """
        target = self._target(method, url)
        data = _request(target, headers, body, method)
        timeout_s = self._connect_timeout_s if connect_timeout_s is None else connect_timeout_s
        connection = self._kept(target.origin) or await self._connect(target.origin, timeout_s)
        return await connection.ask(data, method)

    def close(self) -> None:
        """Close all connections; answers that are being read break off."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in list(self._open):
            connection.close()

    def _kept(self, origin: Origin) -> _Connection | None:
        idle = self._idle.get(origin)
        while idle:
            # The one that was used last is the likeliest to be open still.
            connection = idle.pop()
            if connection.usable:
                return connection
        return None

    async def _connect(self, origin: Origin, timeout_s: float) -> _Connection:
        host, port, tls = origin
        if tls and self._tls is None:
            self._tls = ssl.create_default_context()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self, origin), host, port, ssl=self._tls if tls else None
                )
        except TimeoutError as error:
            raise ConnectError(f"no connection within {timeout_s:g} s") from error
        except OSError as error:
            raise ConnectError(_reason(error)) from error
        return connection

    def _target(self, method: str, url: str) -> _Target:
        """Where a URL leads, and the request's first lines."""
        target = self._targets.get((method, url))
        if target is None:
            if len(self._targets) >= _MAX_ORIGINS:
                self._targets.clear()
            target = self._targets[method, url] = _read_url(method, url)
        return target

    def _opened(self, connection: _Connection) -> None:
        self._open.add(connection)

    def _closed(self, connection: _Connection) -> None:
        self._open.discard(connection)

    def _keep(self, connection: _Connection) -> None:
        self._idle.setdefault(connection.origin, deque()).append(connection)
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(self._keepalive_s, self._sweep)

    def _sweep(self) -> None:
        """Close what was idle for too long."""
        self._sweeping = None
        loop = asyncio.get_running_loop()
        before = loop.time() - self._keepalive_s
        for origin, idle in list(self._idle.items()):
            while idle and (idle[0].idle_since <= before or not idle[0].usable):
                idle.popleft().close()
            if not idle:
                del self._idle[origin]
        if self._idle:
            self._sweeping = loop.call_later(self._keepalive_s / 2, self._sweep)


class HttpAnswer:
    """The head of an answer, and its body as it comes. Leaving the block releases it.

    Attributes:
        status: HTTP status.
        headers: by their names in lower case; of one that came twice, both joined by a comma.
    """

    __slots__ = ("_connection", "_decoded", "_decoder", "headers", "status")

    def __init__(self, status: int, headers: Mapping[str, str], connection: _Connection) -> None:
        self.status = status
        self.headers = headers
        self._connection = connection
        self._decoded = False
        bits = _ENCODINGS.get(headers.get("content-encoding", "").strip().lower())
        self._decoder = zlib.decompressobj(bits) if bits is not None else None

    @property
    def content_type(self) -> str:
        """Without its parameters, in lower case; empty when there is none."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def read(self) -> bytes:
        """The whole body. Raises HttpError when it broke off or has no end."""
        pieces = []
        n_bytes = 0
        while piece := await self.readany():
            pieces.append(piece)
            n_bytes += len(piece)
            if n_bytes > MAX_BODY_BYTES:
                raise HttpError(f"its answer is over {MAX_BODY_BYTES} bytes")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def readany(self) -> bytes:
        """What has come since the last read, at least one byte; empty at the end. Raises HttpError."""
        while piece := await self._connection.take():
            if self._decoder is None:
                return piece
            self._decoded = True
            try:
                plain = self._decoder.decompress(piece)
            except zlib.error as error:
                self._connection.close()
                raise HttpError(f"the body is not {self.headers['content-encoding']}: {error}") from error
            if plain:
                return plain
        if self._decoder is not None and not self._decoder.eof and self._decoded:
            raise HttpError("the compressed body ends in the middle")
        return b""

    def release(self) -> None:
        """Give the connection back where all of the answer has come, and close it elsewhere."""
        self._connection.release()

    async def __aenter__(self) -> HttpAnswer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class _Connection(asyncio.Protocol):
    """One connection: at most one exchange at a time, and none after an answer that was not read to its end."""

    def __init__(self, client: HttpClient, origin: Origin) -> None:
        self.origin = origin
        self.idle_since = 0.0
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._parser: Any = None
        self._waiter: asyncio.Future[None] | None = None
        self._begin("")

    def _begin(self, method: str) -> None:
        self._method = method
        self._asking = bool(method)
        self._status = 0
        self._headers: dict[str, str] = {}
        self._pieces: list[bytes] = []
        self._n_waiting = 0
        self._paused = False
        self._any = False
        self._head = False
        self._whole = False
        self._keeps = True
        self._error: HttpError | None = None

    @property
    def usable(self) -> bool:
        """Open, and nothing that nobody asked for has come."""
        return not self._asking and self._transport is not None and not self._transport.is_closing()

    async def ask(self, data: bytes, method: str) -> HttpAnswer:
        """Send a request; the head of its answer."""
        self._begin(method)
        # A parser that has seen one answer would go on in the middle of things where the last one was odd.
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(data)
        while not self._head:
            if self._error is not None:
                raise self._error
            await self._news()
        return HttpAnswer(self._status, self._headers, self)

    async def take(self) -> bytes:
        """What has come of the body; empty at its end."""
        while not self._pieces:
            if self._whole:
                return b""
            if self._error is not None:
                raise self._error
            await self._news()
        pieces, self._pieces, self._n_waiting = self._pieces, [], 0
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def release(self) -> None:
        """The exchange is over."""
        if not self._asking:
            return
        if self._whole and self._keeps and not self._transport.is_closing():
            self._asking = False
            self._parser = None
            self._pieces = []
            self.idle_since = self._loop.time()
            self._client._keep(self)
        else:
            self.close()

    def close(self) -> None:
        """Close it at once: an answer that nobody wants is not waited for."""
        self._asking = True
        if self._error is None:
            self._error = HttpError("the connection was closed")
        if self._transport is not None:
            self._transport.abort()

    async def _news(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: HttpError) -> None:
        if self._error is None:
            self._error = error
        self._wake()

    def connection_made(self, transport: Any) -> None:
        """Open."""
        self._transport = transport
        self._client._opened(self)

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer."""
        if self._parser is None:
            # Whatever it is, nobody asked.
            self.close()
            return
        self._any = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(HttpError("it wants to speak another protocol"))
            self._transport.abort()
        except httptools.HttpParserError as error:
            self._keeps = False
            if not self._whole:
                self._fail(HttpError(f"what came is not HTTP: {error}"))
                self._transport.abort()
        else:
            if self._head:
                self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Closed, by whomever."""
        self._client._closed(self)
        self._keeps = False
        if not self._asking or self._whole:
            self._wake()
            return
        headers = self._headers
        if self._head and exc is None and "content-length" not in headers and not _is_chunked(headers):
            # Such an answer ends where its connection does.
            self._whole = True
            self._wake()
        elif not self._any:
            self._fail(Disconnected("it closed the connection without an answer"))
        else:
            self._fail(HttpError("it closed the connection in the middle of its answer"))

    # What the parser calls.

    def on_message_begin(self) -> None:
        """An answer begins; a second one to the same request is nobody's."""
        self._keeps = self._keeps and not self._whole

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header; of one that repeats both are kept."""
        if self._head:
            # A trailer, or somebody else's.
            return
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        self._headers[key] = f"{self._headers[key]}, {text}" if key in self._headers else text

    def on_headers_complete(self) -> None:
        """The head is there, unless it was an interim one."""
        status = self._parser.get_status_code()
        if self._head:
            return
        if status < 200:
            self._headers = {}
            return
        self._status = status
        self._head = True
        if self._method == "HEAD":
            # Its headers tell of a body that does not come.
            self._whole, self._keeps = True, False

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        if self._whole:
            return
        self._pieces.append(body)
        self._n_waiting += len(body)
        if self._n_waiting > HIGH_WATER and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """The answer is whole."""
        if self._head and not self._whole:
            self._whole = True
            self._keeps = self._keeps and self._parser.should_keep_alive()


def _is_chunked(headers: Mapping[str, str]) -> bool:
    return "chunked" in headers.get("transfer-encoding", "").lower()


def _read_url(method: str, url: str) -> _Target:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is no http address")
    tls = parts.scheme == "https"
    port = parts.port or (443 if tls else 80)
    host = parts.hostname if parts.hostname.isascii() else parts.hostname.encode("idna").decode()
    named = f"[{host}]" if ":" in host else host
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if " " in path or " " in host:
        raise ValueError(f"{url!r} is no http address")
    own = {
        "host": f"Host: {named}" + (f":{parts.port}" if parts.port else "") + "\r\n",
        "accept": "Accept: */*\r\n",
        # Bodies are kept as they are, so they had better not be compressed.
        "accept-encoding": "Accept-Encoding: identity\r\n",
        "user-agent": "User-Agent: claw-studio\r\n",
        **_login(parts),
    }
    return _Target((host, port, tls), f"{method} {path} HTTP/1.1\r\n", own)


def _login(parts: SplitResult) -> dict[str, str]:
    if parts.username is None:
        return {}
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    return {"authorization": f"Authorization: Basic {base64.b64encode(login).decode()}\r\n"}


def _request(
    target: _Target, headers: Mapping[str, str] | Iterable[tuple[str, str]], body: bytes, method: str
) -> bytes:
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
    given = {name.lower() for name, _ in pairs}
    own = [line for name, line in target.own.items() if name not in given]
    lines = [f"{name}: {value}\r\n" for name, value in pairs]
    text = "".join([target.line, *own, *lines])
    n_lines = 1 + len(own) + len(lines)
    if text.count("\n") != n_lines or text.count("\r") != n_lines or "\0" in text:
        raise ValueError("a header holds a line break")
    if body or method not in ("GET", "HEAD"):
        text += f"Content-Length: {len(body)}\r\n"
    try:
        head = text.encode("latin-1")
    except UnicodeEncodeError:
        head = text.encode("utf-8", "surrogateescape")
    return b"".join((head, b"\r\n", body))


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error}"
    return error.strerror or str(error) or type(error).__name__
