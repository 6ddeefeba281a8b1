"""Passes connections on from a local port inside a sandbox to the Unix socket of ``core.sandbox.relay``.

It is a program, run without the environment's packages: ``forward.py PORT SOCKET COMMAND...`` listens on 127.0.0.1 and
becomes the command. Every attempt starts it, so it imports only modules that are part of the interpreter: importing
``socket``, ``threading`` and ``contextlib`` takes longer than starting Python.
"""

from __future__ import annotations

import _socket
import _thread
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

CHUNK = 1 << 16
BACKLOG = 128


def serve(listener: _socket.socket, connect: Callable[[], _socket.socket]) -> None:
    """Accept connections until the listener is shut down; each gets a connection of ``connect`` and two threads."""
    while True:
        try:
            fd, _ = listener._accept()  # type: ignore[attr-defined]
        except OSError:
            return
        _thread.start_new_thread(_join, (_socket.socket(fileno=fd), connect))


def _join(near: _socket.socket, connect: Callable[[], _socket.socket]) -> None:
    try:
        far = connect()
    except OSError:
        near.close()
        return
    copied = _thread.allocate_lock()
    copied.acquire()

    def back() -> None:
        try:
            _copy(far, near)
        finally:
            copied.release()

    _thread.start_new_thread(back, ())
    _copy(near, far)
    copied.acquire()
    near.close()
    far.close()


def _copy(source: _socket.socket, target: _socket.socket) -> None:
    """Copy until the source ends; then end the target's other half, as the source did."""
    try:
        while data := source.recv(CHUNK):
            target.sendall(data)
    except OSError:
        _shut(source, _socket.SHUT_RDWR)
    _shut(target, _socket.SHUT_WR)


def _shut(one: _socket.socket, how: int) -> None:
    try:
        one.shutdown(how)
    except OSError:
        return  # it has ended already


def main(port: int, path: str, command: list[str]) -> None:
    """Listen on 127.0.0.1, serve in a process that is nobody's child, and become ``command``."""
    listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(BACKLOG)
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

    def connect() -> _socket.socket:
        made = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        made.connect(path)
        return made

    serve(listener, connect)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
