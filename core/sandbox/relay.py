"""Passes connections on from a Unix socket of a sandbox to the gateway on the host."""

from __future__ import annotations

import contextlib
import socket
import threading

from core.sandbox.forward import BACKLOG, serve


class Relay:
    """A Unix socket at ``path`` behind which ``gateway`` is reached; lives in a thread until ``close``."""

    def __init__(self, path: str, gateway: tuple[str, int]) -> None:
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._gateway = gateway
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(BACKLOG)
        self._thread = threading.Thread(target=serve, args=(self._listener, self._connect), daemon=True)
        self._thread.start()

    def _connect(self) -> socket.socket:
        made = socket.create_connection(self._gateway)
        with self._lock:
            self._open = [one for one in self._open if one.fileno() >= 0]
            self._open.append(made)
        return made

    def close(self) -> None:
        """End the thread and all connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        with self._lock:
            for one in self._open:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
