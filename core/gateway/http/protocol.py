"""HTTP/1.1 for agents: uvicorn's protocol with limits and without ambiguous requests.

The parser is llhttp in strict mode. Also refused are other HTTP versions and methods, transfer codings other than
``chunked``, a target whose host differs from ``Host``, and more framing than content. Trailers are dropped, because
admission has not seen them.

Some clients (Java's, for example) offer HTTP/2 with each first request (``Upgrade: h2c``). The offer is ignored, as RFC
9110, 7.8 allows; the parser alone would take the request's body for the other protocol's first bytes.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from core.errors import HeadersTooLarge, MalformedHttp, Overloaded, RequestTimeout, StudioError, UnsupportedHttp
from core.gateway.http.asgi import TooLarge
from core.gateway.http.error_shapes import refusal
from core.gateway.http.limits import MAX_FRAMING
from core.gateway.http.open_connections import OpenConnections

MIN_BYTES_PER_S: Final = 4096
"""A body that arrives at least this fast does not time out."""
MAX_PIPELINED: Final = 100
SMALL_BODY: Final = 1 << 20
"""Smaller bodies are accepted even when request bodies fill their memory limit."""
LINGER_S: Final = 5.0
"""How long data from a refused client is read and dropped, seconds. Closing with unread data could lose the response.
"""
METHODS: Final = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS", b"TRACE"})

_OFFER = frozenset({b"upgrade", b"http2-settings"})
_IDLE, _HEAD, _BODY = range(3)
"""The part of a request that is being read."""


class _Refused(Exception):
    """Stops the parser's work on a request."""

    def __init__(self, error: StudioError) -> None:
        super().__init__(error.message)
        self.error = error


class HttpProtocol(HttpToolsProtocol):
    """One connection.

    Args:
        connections: all connections of its server.
    """

    def __init__(self, *args: Any, connections: OpenConnections, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._connections = connections
        self._limits = connections.limits
        self._reading = _IDLE
        self._since = 0.0
        self._begun = False
        self._head_bytes = 0
        self._raw_bytes = 0
        self._quiet_bytes = 0
        self._body_bytes = 0
        self._held = 0
        self._n_open = 0
        self._above_limit = False
        self._codings: list[bytes] = []
        self._declared = 0
        self._host_header: bytes | None = None
        self._refusal: StudioError | None = None
        self._closing = False
        self._unsent = 0
        self._unsent_since = 0.0
        self.url = b""
        self.headers = []

    # Called by the transport.

    def connection_made(self, transport: Any) -> None:
        """The connection is open."""
        super().connection_made(transport)
        self._since = self.loop.time()
        if not self._connections.opened(self, self._since):
            self._connections.refused(Overloaded.type)
            self._answer(self._overloaded())
            self.transport.close()
        # A client above the limit gets its error response once its request is known.
        self._above_limit = self._connections.full

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._connections.closed(self)
        self._release()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Received bytes of requests."""
        while data:
            if self._closing or self._refusal is not None:
                return
            data = self._fed(data)

    def _fed(self, data: bytes) -> bytes:
        """Feed the parser; returns the bytes to feed next."""
        self._begun = False
        body_bytes = self._body_bytes
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offered:
            return self._declined(data[offered.args[0] :])
        except httptools.HttpParserError as error:
            cause = error.__context__
            refusal_error = (
                cause.error if isinstance(cause, _Refused) else MalformedHttp(f"this is no HTTP request: {error}")
            )
            self._refuse(refusal_error)
            return b""
        if self._reading == _HEAD and not self._begun:
            # The parser buffers an unfinished line of any length without a callback.
            self._raw_bytes += len(data)
            if max(self._raw_bytes, self._head_bytes) > self._limits.max_header_bytes:
                self._refuse(self._long_head())
        elif self._reading == _BODY and not self._begun:
            self._raw_bytes += len(data)
            self._quiet_bytes = self._quiet_bytes + len(data) if self._body_bytes == body_bytes else 0
            framing = self._raw_bytes - self._body_bytes
            max_header_bytes = self._limits.max_header_bytes
            if self._quiet_bytes > max_header_bytes or framing > MAX_FRAMING * self._body_bytes + max_header_bytes:
                self._refuse(MalformedHttp("the body is mostly chunk sizes, extensions or trailers", field="body"))
        return b""

    # Called by the parser.

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._reading, self._begun = _HEAD, True
        self._since = self.loop.time()
        self._head_bytes = self._raw_bytes = self._body_bytes = self._declared = 0
        self._codings = []
        self._host_header = None
        if not self._n_open:
            self._connections.mark_idle(self, self._since)

    def on_url(self, url: bytes) -> None:
        """A piece of the target."""
        self._head_bytes += len(url)
        self._check_head()
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        if self._reading != _HEAD:
            return
        name = name.lower()
        self._head_bytes += len(name) + len(value) + 4
        self._check_head()
        if name == b"expect":
            self.expect_100_continue = value.lower() == b"100-continue"
        elif name == b"transfer-encoding":
            self._codings.append(value)
        elif name == b"content-length":
            self._declared = int(value)
        elif name == b"host":
            self._host_header = value
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is complete; nothing happens if the request will be parsed again without its upgrade offer."""
        if self._offers():
            return
        self._check_request()
        self._reading, self._since = _BODY, self.loop.time()
        self._raw_bytes = self._quiet_bytes = 0
        self._begun = True
        self._connections.mark_busy(self)
        self._n_open += 1
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._body_bytes += len(body)
        if self._body_bytes > self._limits.max_body_bytes:
            raise _Refused(self._long_body())
        if self._body_bytes > SMALL_BODY and self._connections.memory_full:
            raise _Refused(self._overloaded())
        if not self.cycle.response_complete:
            self._held += len(body)
            self._connections.held_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        if self._offers():
            return
        super().on_message_complete()
        self._reading, self._since = _IDLE, self.loop.time()
        if not self._n_open:
            self._connections.mark_idle(self, self._since)

    # Called by responses.

    def on_response_complete(self) -> None:
        """A response is written."""
        self.server_state.total_requests += 1
        self._n_open -= 1
        if not self._n_open:
            self._release()
        if self.transport.is_closing():
            return
        if self._refusal is not None and not self._n_open:
            self._answer(self._refusal)
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self._reading != _BODY:
            self._since = self.loop.time()
            self._connections.mark_idle(self, self._since)

    # Called by the table of connections.

    def check(self, now: float) -> None:
        """Close the connection if the client is too slow to send a request or to read a response."""
        if self._stalls(now):
            self.transport.abort()
        elif self._closing:
            if now - self._since > LINGER_S:
                self.transport.abort()
        elif self.transport.is_closing() or self._refusal is not None:
            return
        elif self._reading == _BODY:
            if self.flow.read_paused:
                # Reading is paused by this side, so the client is not late.
                self._since = now
            elif now - self._since > self._limits.body_timeout_s + self._body_bytes / MIN_BYTES_PER_S:
                message = f"the body did not come within {self._limits.body_timeout_s:g} s"
                self._refuse(RequestTimeout(message, field="body"))
        elif self._n_open:
            return
        elif self._reading == _HEAD:
            if now - self._since > self._limits.header_timeout_s:
                self._refuse(self._slow_head())
        elif now - self._since > self._limits.idle_timeout_s:
            self.transport.close()

    def excuse(self, seconds: float) -> None:
        """Do not count these seconds against the client: this process did not run."""
        self._since += seconds
        self._unsent_since += seconds

    def make_room(self) -> None:
        """Make room for another connection."""
        if self._reading == _HEAD:
            self._refuse(self._slow_head())
        else:
            self.transport.close()

    def _stalls(self, now: float) -> bool:
        """Whether the client has read nothing of the written response for too long."""
        unsent = self.transport.get_write_buffer_size()
        if not unsent or unsent != self._unsent:
            self._unsent, self._unsent_since = unsent, now
        return bool(unsent) and now - self._unsent_since > self._limits.body_timeout_s

    # Refusals.

    def _check_head(self) -> None:
        if self._head_bytes > self._limits.max_header_bytes:
            raise _Refused(self._long_head())

    def _check_request(self) -> None:
        """Raises _Refused for requests that other servers may read differently, and for requests over a limit."""
        version, method = self.parser.get_http_version(), self.parser.get_method()
        if version not in ("1.1", "1.0"):
            error = UnsupportedHttp(f"HTTP/{version} is not served", hint="HTTP/1.1")
            error.http_status = 505
            raise _Refused(error)
        if method == b"CONNECT":
            raise _Refused(MalformedHttp("CONNECT is not served"))
        if method not in METHODS:
            raise _Refused(UnsupportedHttp(f"the method {method.decode()} is not served"))
        if self._codings and (version == "1.0" or [one.strip().lower() for one in self._codings] != [b"chunked"]):
            codings = b", ".join(self._codings)[:100].decode("latin-1")
            raise _Refused(
                UnsupportedHttp(
                    f"the transfer coding {codings!r} is not served", field="Transfer-Encoding", hint="chunked"
                )
            )
        if not self.url.startswith(b"/") and not self._target_is_host():
            raise _Refused(MalformedHttp("the request's target names another host than its Host header", field="Host"))
        if self._declared > self._limits.max_body_bytes:
            raise _Refused(self._long_body())
        late = self._above_limit and self._connections.full
        if late or self._n_open > MAX_PIPELINED or (self._declared > SMALL_BODY and self._connections.memory_full):
            raise _Refused(self._overloaded())
        self._above_limit = False

    def _target_is_host(self) -> bool:
        if self.url == b"*":
            return True
        named = urlsplit(self.url.decode("latin-1")).netloc
        return self._host_header is not None and named.lower() == self._host_header.decode("latin-1").strip().lower()

    def _refuse(self, error: StudioError) -> None:
        """Send an error after all earlier responses, and serve no more requests on this connection."""
        self._connections.refused(error.type)
        in_body = self._reading == _BODY
        if in_body and self.cycle.response_complete:
            # The request is already answered.
            self._drop_rest()
            return
        if in_body and self.cycle.response_started:
            # A response in progress can't be followed by an error response.
            self.transport.abort()
            return
        if in_body:
            # The application sees a disconnect.
            if self.pipeline and self.pipeline[0][0] is self.cycle:
                self.pipeline.popleft()
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self._n_open -= 1
        self._refusal = error
        if not self._n_open:
            self._answer(error)

    def _answer(self, error: StudioError) -> None:
        """Write an error response; further data is read and dropped for a while."""
        path = self.url.partition(b"?")[0].decode("latin-1")
        body, headers = refusal(path, self.headers, error)
        lines = [STATUS_LINE[error.http_status]]
        length = (b"content-length", str(len(body)).encode())
        for name, value in (length, *headers, (b"connection", b"close")):
            lines.append(b"%s: %s\r\n" % (name, value))
        self._release()
        self.transport.write(b"".join([*lines, b"\r\n", body]))
        self._drop_rest()

    def _drop_rest(self) -> None:
        """Stop writing, and drop further data."""
        self._closing, self._since = True, self.loop.time()
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _release(self) -> None:
        self._connections.held_bytes -= self._held
        self._held = 0

    def _long_head(self) -> StudioError:
        message = f"the request's headers are over {self._limits.max_header_bytes} bytes"
        return HeadersTooLarge(message, field="headers", hint="CLAW_STUDIO_MAX_HEADER_BYTES raises the limit")

    def _slow_head(self) -> StudioError:
        message = f"the request's headers did not come within {self._limits.header_timeout_s:g} s"
        return RequestTimeout(message, field="headers")

    def _long_body(self) -> StudioError:
        message = f"the request is over {self._limits.max_body_bytes} bytes"
        return TooLarge(message, field="body", hint="CLAW_STUDIO_MAX_BODY_BYTES raises the limit")

    def _overloaded(self) -> StudioError:
        return Overloaded("more is asked at a time than can be served", hint="try again")

    # Offers of other protocols.

    def _offers(self) -> bool:
        return bool(self.parser.should_upgrade()) and self.parser.get_method() != b"CONNECT"

    def _declined(self, rest: bytes) -> bytes:
        """The request again, without its upgrade offer.

        Args:
            rest: what followed its head.
        """
        if not self._offers():
            self._refuse(MalformedHttp("CONNECT is not served"))
            return b""
        version = self.parser.get_http_version().encode()
        head = [b"%s %s HTTP/%s\r\n" % (self.parser.get_method(), self.url, version)]
        for name, value in self.headers:
            if name in _OFFER:
                continue
            if name == b"connection":
                kept = [token for token in value.split(b",") if token.strip().lower() not in _OFFER]
                if not kept:
                    continue
                head.append(b"connection: %s\r\n" % b",".join(kept))
            else:
                head.append(b"%s: %s\r\n" % (name, value))
        self.parser = httptools.HttpRequestParser(self)
        return b"".join([*head, b"\r\n", rest])
