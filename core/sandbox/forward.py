"""Passes connections on: from a Unix socket to the gateway on the host, from a local port to that socket inside.

Inside a sandbox it is a program, run without the environment's packages: ``forward.py PORT SOCKET COMMAND...`` listens
on 127.0.0.1 and becomes the command. It imports nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable

CHUNK = 1 << 16
BACKLOG = 128


def serve(listener: socket.socket, connect: Callable[[], socket.socket]) -> None:
    """Accept connections until the listener is shut down; each gets a connection of ``connect`` and two threads."""
    while True:
        try:
            near, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_join, args=(near, connect), daemon=True).start()


def _join(near: socket.socket, connect: Callable[[], socket.socket]) -> None:
    try:
        far = connect()
    except OSError:
        near.close()
        return
    back = threading.Thread(target=_copy, args=(far, near), daemon=True)
    back.start()
    _copy(near, far)
    back.join()
    near.close()
    far.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy until the source ends; then end the target's other half, as the source did."""
    try:
        while data := source.recv(CHUNK):
            target.sendall(data)
    except OSError:
        with contextlib.suppress(OSError):
            source.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


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


def main(port: int, path: str, command: list[str]) -> None:
    """Listen on 127.0.0.1, serve in a process that is nobody's child, and become ``command``."""
    listener = socket.create_server(("127.0.0.1", port), backlog=BACKLOG)
    first = os.fork()
    if first:
        os.waitpid(first, 0)
        listener.close()
        os.execvp(command[0], command)
    if os.fork():
        os._exit(0)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)

    def connect() -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.connect(path)
        return made

    serve(listener, connect)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
