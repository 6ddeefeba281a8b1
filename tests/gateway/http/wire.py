"""A server that remembers what it was asked, and clients that send exactly these bytes."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h11

from core.gateway.http.asgi import ClientDisconnected, Receive, Scope, Send, read_body, send_whole
from core.gateway.http.limits import ServerLimits
from core.gateway.http.server import GatewayServer
from core.gateway.served_dialects import BadRequest

Request = tuple[str, str, bytes]
"""Method, path and query, body."""
Answer = tuple[int, dict[str, str], bytes]
"""Status, headers, body; ``(closed)`` among the headers where the server closed the connection behind it."""


@dataclass
class Asked:
    """An ASGI application: answers each request with its own path, and keeps it."""

    requests: list[Request] = field(default_factory=list)
    headers: list[list[tuple[bytes, bytes]]] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)
    n_gone: int = 0
    max_bytes: int = 256 << 20

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            # uvicorn's lifespan: nothing to do.
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        try:
            body = await read_body(receive, self.max_bytes)
        except ClientDisconnected:
            self.n_gone += 1
            return
        except BadRequest as error:
            await send_whole(send, error.http_status, error.message.encode(), [])
            return
        query = scope["query_string"].decode("latin-1")
        path = scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
        self.requests.append((scope["method"], path, body))
        self.headers.append(list(scope["headers"]))
        self.ports.append(scope["client"][1])
        await send_whole(send, 200, path.encode(), [(b"content-type", b"text/plain")])


class Served:
    """A server on a free port, and what it refused."""

    def __init__(self, app: Any = None, **limits: Any) -> None:
        self.asked = app or Asked()
        self.refused: list[str] = []
        self.server = GatewayServer(self.asked, limits=ServerLimits(**limits), refused=self.refused.append)
        self.port = self.server.start()

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop(1.0)

    def asked_by(self, port: int) -> list[Request]:
        """The requests of the connection from a port."""
        recorder = self.asked
        return [one for one, whose in zip(recorder.requests, recorder.ports, strict=False) if whose == port]

    def connect(self, timeout_s: float = 20.0) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s)

    def send(self, *pieces: bytes) -> list[Answer]:
        """Send bytes, and nothing more; all answers until the server closes or is silent."""
        with self.connect() as sock:
            return exchange(sock, *pieces)


def exchange(
    sock: socket.socket, *pieces: bytes, quiet_s: float = 0.4, n: int = 1, patience_s: float = 20.0
) -> list[Answer]:
    """All answers until the server closes the connection, or says nothing for ``quiet_s`` after the first ``n``."""
    try:
        for piece in pieces:
            sock.sendall(piece)
    except ConnectionError:
        pass
    received = b""
    sock.settimeout(patience_s if n else quiet_s)
    try:
        while piece := sock.recv(1 << 16):
            received += piece
            if n and len(answers(received)) >= n:
                sock.settimeout(quiet_s)
                n = 0
        closed = True
    except TimeoutError:
        closed = False
    except ConnectionError:
        closed = True
    responses = answers(received)
    if closed and responses:
        responses[-1][1]["(closed)"] = "yes"
    return responses


def answers(received: bytes) -> list[Answer]:
    """Whole answers, read by h11."""
    responses = []
    while received.startswith(b"HTTP/"):
        reader = h11.Connection(h11.CLIENT)
        reader.send(h11.Request(method="POST", target="/", headers=[("Host", "a"), ("Content-Length", "0")]))
        reader.send(h11.EndOfMessage())
        reader.receive_data(received)
        status, headers, body = 0, {}, b""
        while True:
            event = reader.next_event()
            if isinstance(event, h11.Response):
                status = event.status_code
                headers = {name.decode(): value.decode("latin-1") for name, value in event.headers}
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                break
            elif event in (h11.NEED_DATA, h11.PAUSED):
                return responses
        responses.append((status, headers, body))
        received = reader.trailing_data[0]
    return responses


def by_h11(sent: bytes) -> tuple[list[Request], str]:
    """The requests that h11 reads out of these bytes, and why it refuses what comes then, if it does.

    Empty lines before a request are passed over, as RFC 9112 (2.2) has it.
    """
    requests: list[Request] = []
    rest = sent.lstrip(b"\r\n")
    while rest:
        reader = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
        reader.receive_data(rest)
        body = b""
        try:
            while not isinstance(event := reader.next_event(), h11.EndOfMessage):
                if isinstance(event, h11.Request):
                    request = event
                elif isinstance(event, h11.Data):
                    body += event.data
                else:
                    return requests, ""
        except h11.RemoteProtocolError as error:
            return requests, str(error)
        requests.append((request.method.decode("latin-1"), request.target.decode("latin-1"), body))
        reader.send(h11.Response(status_code=200, headers=[("Content-Length", "0")]))
        reader.send(h11.EndOfMessage())
        if reader.our_state is not h11.DONE:
            break
        rest = reader.trailing_data[0].lstrip(b"\r\n")
    return requests, ""


def wait_until(true: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def rss_mb(pid: int) -> float:
    """Resident memory of a process, MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024
