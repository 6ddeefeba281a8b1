"""One connection to an engine, with one exchange at a time. Parsed by llhttp (``httptools``)."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import httptools

from core.gateway.http.limits import MAX_FRAMING
from core.gateway.transport.request import Origin

HIGH_WATER: Final = 1 << 20
"""Reading from the socket pauses when this many bytes of a body are unread."""


class HttpError(Exception):
    """The exchange failed; the message says why."""


class ConnectError(HttpError):
    """No connection to the address."""


class Disconnected(HttpError):
    """The connection was closed before any byte of the response."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Most bytes to read from a server; None means no limit.

    Attributes:
        answer: one response body, decompressed. A million tokens with their log-probs are about 100 MB of JSON.
        head: the headers of one response, interim responses included.
        aside: a response body other than a model's answer: model lists, versions, tokens of a prompt.
    """

    answer: int | None = 256 << 20
    head: int | None = 256 << 10
    aside: int | None = 32 << 20


UNBOUND: Final = Bounds(answer=None, head=None, aside=None)
"""For a server of our own."""


class ConnectionOwner(Protocol):
    """The owner of connections, which is notified of their state."""

    bounds: Bounds

    def opened(self, connection: EngineConnection) -> None:
        """The connection is open."""

    def closed(self, connection: EngineConnection) -> None:
        """The connection is closed."""

    def keep(self, connection: EngineConnection) -> None:
        """The exchange is over and the connection can be reused."""

    def stop_reuse(self, origin: Origin) -> None:
        """Unrequested data arrived from this origin."""


class EngineConnection(asyncio.Protocol):
    """One connection: one exchange at a time, and no reuse after a response that was not read to its end."""

    def __init__(self, owner: ConnectionOwner, origin: Origin) -> None:
        self.origin = origin
        self.idle_since = 0.0
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._poll = select.poll()
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
        self._raw_bytes = self._body_bytes = 0
        self._whole = False
        self._keeps = True
        self._error: HttpError | None = None

    @property
    def usable(self) -> bool:
        """Open and without unread data.

        Unread data may be the rest of a longer body than announced, which the next caller would get.
        """
        if self._asking or self._transport is None or self._transport.is_closing():
            return False
        return not self._poll.poll(0)

    async def ask(self, data: bytes, method: str) -> tuple[int, dict[str, str]]:
        """Send a request; returns status and headers of the response. Raises HttpError."""
        self._begin(method)
        # A parser that is reused would carry state over from an odd response.
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(data)
        while not self._head:
            if self._error is not None:
                raise self._error
            await self._wait_for_data()
        return self._status, self._headers

    async def take(self) -> bytes:
        """Received bytes of the body; empty at its end."""
        while not self._pieces:
            if self._whole:
                return b""
            if self._error is not None:
                raise self._error
            await self._wait_for_data()
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
            self._owner.keep(self)
        else:
            self.close()

    def close(self) -> None:
        """Close the connection at once, without waiting for the response."""
        self._asking = True
        if self._error is None:
            self._error = HttpError("the connection was closed")
        if self._transport is not None:
            self._transport.abort()

    async def _wait_for_data(self) -> None:
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
        """The connection is open."""
        self._transport = transport
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self._owner.opened(self)

    def data_received(self, data: bytes) -> None:
        """Received bytes of a response."""
        if self._parser is None:
            # Unrequested data.
            self._owner.stop_reuse(self.origin)
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
            # The parser buffers an unfinished header, and skips bytes between pieces of a body, of any length.
            self._raw_bytes += len(data)
            max_head_bytes = self._owner.bounds.head
            framing = self._raw_bytes - self._body_bytes
            if max_head_bytes is not None and framing > max_head_bytes + MAX_FRAMING * self._body_bytes:
                what = "its answer is mostly chunk sizes, extensions or trailers"
                self._fail(HttpError(what if self._head else f"its headers are over {max_head_bytes} bytes"))
                self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._owner.closed(self)
        self._keeps = False
        if not self._asking or self._whole:
            self._wake()
            return
        headers = self._headers
        if self._head and exc is None and "content-length" not in headers and not _is_chunked(headers):
            # Without a length the end of the connection ends the response.
            self._whole = True
            self._wake()
        elif not self._any:
            self._fail(Disconnected("it closed the connection without an answer"))
        else:
            self._fail(HttpError("it closed the connection in the middle of its answer"))

    # Called by the parser.

    def on_message_begin(self) -> None:
        """A response begins; a second one to the same request is refused."""
        if self._whole:
            self._keeps = False
            self._owner.stop_reuse(self.origin)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header; repeated ones are joined."""
        if self._head:
            # A trailer, or data after the response.
            return
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        self._headers[key] = f"{self._headers[key]}, {text}" if key in self._headers else text

    def on_headers_complete(self) -> None:
        """The head is complete, unless it is an interim response."""
        status = self._parser.get_status_code()
        if self._head:
            return
        if status < 200:
            self._headers = {}
            return
        coding = self._headers.get("transfer-encoding", "chunked")
        if coding.lower() != "chunked":
            # Servers and proxies disagree on where such a response ends.
            self._fail(HttpError(f"the transfer coding {coding[:100]!r} is not known"))
            self._transport.abort()
            return
        self._status = status
        self._head = True
        if self._method == "HEAD":
            # The headers announce a body that must not follow.
            self._whole, self._keeps = True, False

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        if self._whole:
            return
        self._pieces.append(body)
        self._body_bytes += len(body)
        self._n_waiting += len(body)
        if self._n_waiting > HIGH_WATER and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """The response is complete."""
        if self._head and not self._whole:
            self._whole = True
            self._keeps = self._keeps and self._parser.should_keep_alive()


def _is_chunked(headers: Mapping[str, str]) -> bool:
    return "transfer-encoding" in headers
