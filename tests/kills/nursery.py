"""A process that has imported the service and the engine, and forks one of them each time it is asked.

Imports are most of what a start takes, and no kill falls on them. What runs in the fork is the command itself, with its
own arguments, environment and files; Python's own start and end are left out.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

ROOT = Path(__file__).parents[2]
COMMANDS = {"core.cli": "main", "core.serving.scripted": "main"}
"""Module -> its function that runs the command line."""
MODULES = (*COMMANDS, "core.service", "core.client", "uvicorn.lifespan.on", "uvicorn.loops.auto", "tests.kills.points")
MESSAGE = 1 << 17


class Child:
    """A forked process, with the part of ``subprocess.Popen`` that is used here."""

    def __init__(self, nursery: Nursery, pid: int, stdin: int, stdout: int, stderr: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin: IO[str] = os.fdopen(stdin, "w")
        self.stdout: IO[str] = os.fdopen(stdout, "r", errors="replace")
        self.stderr: IO[str] = os.fdopen(stderr, "r", errors="replace")
        self._nursery = nursery
        self._ends = os.pidfd_open(pid)
        self._reaping = threading.Lock()

    def __del__(self) -> None:
        os.close(self._ends)

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """As ``Popen.wait``."""
        if self.returncode is None and not select.select([self._ends], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("fork", timeout or 0)
        with self._reaping:
            if self.returncode is None:
                self.returncode = self._nursery.reap(self.pid)
        return self.returncode

    def send_signal(self, sign: int) -> None:
        """As ``Popen.send_signal``."""
        if self.poll() is None:
            os.kill(self.pid, sign)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)


class Nursery:
    """The process that forks, from outside."""

    def __init__(self) -> None:
        self._asking = threading.Lock()
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.kills.nursery", str(theirs.fileno())],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        assert self._channel.recv(MESSAGE) == b"ready"

    def start(self, module: str, args: Sequence[str], env: Mapping[str, str]) -> Child:
        """Run a command with these arguments and this whole environment."""
        stdin, stdout, stderr = os.pipe(), os.pipe(), os.pipe()
        given = [stdin[0], stdout[1], stderr[1]]
        order = {"module": module, "args": list(args), "env": dict(env)}
        with self._asking:
            socket.send_fds(self._channel, [json.dumps(order).encode()], given)
            pid = int(self._channel.recv(MESSAGE))
        for handle in given:
            os.close(handle)
        return Child(self, pid, stdin[1], stdout[0], stderr[0])

    def reap(self, pid: int) -> int:
        """The exit code of a child that has ended."""
        with self._asking:
            self._channel.send(json.dumps({"reap": pid}).encode())
            return int(self._channel.recv(MESSAGE))

    def close(self) -> None:
        """End it; its children are ended before."""
        self._channel.close()
        self._process.wait(30)


def _run(order: Mapping[str, Any], handles: Sequence[int]) -> int:
    """In the fork: become the command."""
    for number, handle in enumerate(handles):
        os.dup2(handle, number)
        os.close(handle)
    os.environ.clear()
    os.environ.update(order["env"])
    module = cast(str, order["module"])
    sys.argv = [module, *order["args"]]
    points = importlib.import_module("tests.kills.points")
    points.install("owner" if module == "core.cli" else "engine")
    try:
        code = getattr(importlib.import_module(module), COMMANDS[module])()
    except SystemExit as done:
        code = done.code
    sys.stdout.flush()
    sys.stderr.flush()
    return int(code or 0)


def main() -> None:
    """Fork at each order until the other side is gone."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    for module in MODULES:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    channel.send(b"ready")
    while True:
        message, handles, _, _ = socket.recv_fds(channel, MESSAGE, 3)
        if not message:
            return
        order = json.loads(message)
        if "reap" in order:
            code = os.waitstatus_to_exitcode(os.waitpid(order["reap"], 0)[1])
            channel.send(str(code).encode())
            continue
        pid = os.fork()
        if pid == 0:
            channel.close()
            code = 70
            try:
                code = _run(order, handles)
            finally:
                os._exit(code)
        for handle in handles:
            os.close(handle)
        channel.send(str(pid).encode())


if __name__ == "__main__":
    main()
