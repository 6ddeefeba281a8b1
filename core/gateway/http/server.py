"""The server's thread: uvicorn on its own event loop, started and stopped from outside."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from core.errors import StudioError
from core.gateway.http.limits import ServerLimits
from core.gateway.http.open_connections import OpenConnections
from core.gateway.http.protocol import HttpProtocol

log = logging.getLogger(__name__)

BACKLOG = 4096
START_TIMEOUT_S = 30.0


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A bound socket that does not listen yet. StudioError: the address is in use or not local."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise StudioError(
            f"can't listen on {host}:{port}: {error.strerror}",
            field="port",
            hint="set CLAW_STUDIO_PORT to a free port, or 0 to have one picked",
        ) from error
    return sock


def check_tls(tls: tuple[Path, Path] | None) -> None:
    """Load a certificate chain and its key. StudioError: they can't be read, or don't match."""
    if tls is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*tls)
    except (OSError, ssl.SSLError) as error:
        raise StudioError(
            f"{tls[0]} and {tls[1]} can't be used: {error.strerror or error}",
            field="tls_cert",
            hint="tls_cert is a certificate chain in PEM, tls_key its private key without a passphrase",
        ) from error


class _Server(uvicorn.Server):
    """Signals the starting thread when connections are accepted."""

    def __init__(self, config: uvicorn.Config, accepting: threading.Event) -> None:
        super().__init__(config)
        self._accepting = accepting

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._accepting.set()


class GatewayServer:
    """Runs one ASGI app in a thread of its own.

    Args:
        app: the ASGI application.
        host: address to listen on.
        port: port; 0 takes a free one, which ``start`` returns.
        tls: certificate chain and private key, PEM files; None serves plain HTTP.
        shared: whether other processes listen on the port as well; the kernel distributes connections among them.
        limits: limits of clients.
        refused: called with the reason of each refusal.
    """

    def __init__(
        self,
        app: Any,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        shared: bool = False,
        tls: tuple[Path, Path] | None = None,
        limits: ServerLimits | None = None,
        refused: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._limits = limits or ServerLimits()
        self._refused = refused
        self._app = app
        self._tls = tls
        self._shared = shared
        self._host = host
        self._wanted = port
        self.port = 0
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def running(self) -> bool:
        """Whether the thread serves."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> int:
        """Bind and serve.

        Returns:
            The port; connections are accepted when this returns.

        Raises:
            StudioError: the address is in use or not local, or the certificate can't be used.
        """
        check_tls(self._tls)
        sock = bind(self._host, self._wanted, shared=self._shared)
        self.port = int(sock.getsockname()[1])
        config = uvicorn.Config(
            self._app,
            loop="uvloop",
            # uvicorn calls it once per connection.
            http=partial(HttpProtocol, connections=OpenConnections(self._limits, self._refused)),  # type: ignore[arg-type]
            ws="none",
            lifespan="auto",
            access_log=False,
            log_config=None,
            server_header=False,
            date_header=False,
            backlog=BACKLOG,
            ssl_certfile=None if self._tls is None else self._tls[0],
            ssl_keyfile=None if self._tls is None else self._tls[1],
        )
        started = threading.Event()
        self._server = _Server(config, started)
        self._thread = threading.Thread(
            target=self._run, args=(self._server, sock, started), name="gateway", daemon=True
        )
        self._thread.start()
        if not started.wait(START_TIMEOUT_S) or not self._server.started:
            self.stop(1.0)
            raise StudioError(f"the gateway did not start: {self._failure or 'see its log'}", field="port")
        return self.port

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call it on the server's event loop; nothing happens if the loop has ended."""
        loop = self._loop
        if loop is not None:
            # The loop may close meanwhile.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(callback)

    def revive(self) -> None:
        """Serve again on the same port if the thread has ended unexpectedly. Raises StudioError."""
        if not self.running:
            self._wanted = self.port
            self.start()

    def stop(self, timeout_s: float = 20.0) -> None:
        """Accept no more calls, let calls in flight finish for up to ``timeout_s`` seconds, end the thread."""
        if self._server is None or self._thread is None:
            return
        # uvicorn reads this at shutdown; it is typed as int and used as float.
        self._server.config.timeout_graceful_shutdown = timeout_s  # type: ignore[assignment]
        self._server.should_exit = True
        self._thread.join(timeout_s + 10.0)
        if self._thread.is_alive():
            log.error("the gateway thread did not end within %.0f s", timeout_s + 10.0)
        self._server = None

    def _run(self, server: uvicorn.Server, sock: socket.socket, started: threading.Event) -> None:
        import uvloop

        try:
            # The runner closes the loop's async generators, and with them the engines' connections.
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                self._loop = runner.get_loop()
                runner.run(server.serve(sockets=[sock]))
        except BaseException as error:
            self._failure = error
            log.exception("the gateway's event loop failed")
        finally:
            self._loop = None
            started.set()
            sock.close()
