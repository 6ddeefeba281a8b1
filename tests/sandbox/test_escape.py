"""Every attempt to leave a sandbox, at every level that this machine has.

An attempt that a level does not promise to stop is run as well. If it succeeds, the test is an expected failure whose
reason names the promise.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.sandbox import Limits, Probed, Sandbox, interpreter
from tests.sandbox.attempts import ATTEMPTS, HEAD, Attempt

MIB = 1 << 20
ESCAPED = 42
SLEEPER = "import time; time.sleep(600)  # claw-victim"
PYTHON, PYTHON_FOLDERS = interpreter()


@pytest.fixture(scope="module")
def host() -> Iterator[dict[str, Any]]:
    """Targets on the host, all open to everybody as far as the host's own permissions go."""
    libc = ctypes.CDLL(None, use_errno=True)
    os.environ["CLAW_ESCAPE_SECRET"] = "claw-secret"
    with tempfile.TemporaryDirectory(prefix="claw-targets-") as name:
        folder = Path(name)
        folder.chmod(0o777)
        for one in ("file", "spare", "doomed"):
            (folder / one).write_text("secret")
            (folder / one).chmod(0o666)
        shm = Path("/dev/shm", f"claw-{os.getpid()}")
        shm.write_text("secret")
        processes = [subprocess.Popen([sys.executable, "-I", "-S", "-c", SLEEPER]) for _ in range(2)]
        key = 0x5AFE0000 | os.getpid() & 0xFFFF
        segment = libc.shmget(key, 4096, 0o1666)
        kept = os.open(folder / "file", os.O_RDONLY)
        os.set_inheritable(kept, True)
        abstract = f"\0claw-{os.getpid()}"
        with (
            socket.create_server(("127.0.0.1", 0)) as tcp,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
            socket.socket(socket.AF_UNIX) as hidden,
            socket.socket(socket.AF_UNIX) as visible,
        ):
            udp.bind(("127.0.0.1", 0))
            hidden.bind(abstract)
            visible.bind(str(folder / "socket"))
            (folder / "socket").chmod(0o777)
            hidden.listen()
            visible.listen()
            echo = threading.Thread(target=_echo, args=(udp,), daemon=True)
            echo.start()
            yield {
                "file": str(folder / "file"),
                "spare": str(folder / "spare"),
                "doomed": str(folder / "doomed"),
                "folder": str(folder),
                "shm": str(shm),
                "fd": kept,
                "inode": os.fstat(kept).st_ino,
                "tcp": tcp.getsockname()[1],
                "udp": udp.getsockname()[1],
                "abstract": abstract,
                "unix": str(folder / "socket"),
                "pid": processes[0].pid,
                "victim": processes[1].pid,
                "segment": key,
            }
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
                last.sendto(b"end", udp.getsockname())
            echo.join()
        os.close(kept)
        libc.shmctl(segment, 0, None)
        shm.unlink()
        for process in processes:
            process.kill()
            process.wait()


def _echo(udp: socket.socket) -> None:
    while True:
        data, sender = udp.recvfrom(16)
        if data == b"end":
            return
        udp.sendto(data, sender)


@pytest.fixture(scope="module")
def sandbox(layer: Probed, host: dict[str, Any]) -> Iterator[Sandbox]:
    limits = Limits(time_s=120.0, memory_bytes=512 * MIB, pids=64, file_bytes=8 * MIB)
    with layer.sandbox(limits=limits) as other, layer.sandbox(readable=PYTHON_FOLDERS, limits=limits) as one:
        other.put({"secret": b"of another attempt"})
        host["other"] = str(other.workspace / "secret")
        yield one


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda one: one.name)
def test_attempt(sandbox: Sandbox, host: dict[str, Any], attempt: Attempt) -> None:
    (Path(host["folder"]) / "doomed").touch()
    (Path(host["folder"]) / "new").unlink(missing_ok=True)
    ended = sandbox.run([PYTHON, "-I", "-S", "-c", HEAD + attempt.program, json.dumps(host)])
    # A program that did not run proves nothing: it ends with 0 or with an exception of the attempt itself.
    errors = ended.stderr.decode()
    assert ended.end == "exited" and ended.returncode in (0, 1, ESCAPED), (ended, errors)
    if ended.returncode == 1:
        assert "Error" in errors.splitlines()[-1] and "SyntaxError" not in errors and "NameError" not in errors, errors
    if ended.returncode == ESCAPED:
        promise = attempt.promise
        if not promise(sandbox.isolation):
            pytest.xfail(f"level {sandbox.isolation.level} does not promise: {promise.__doc__}")
        pytest.fail(f"{attempt.name} succeeded at level {sandbox.isolation.level}")


def test_the_attempts_can_succeed(host: dict[str, Any]) -> None:
    """Without a sandbox, a plain process reads, connects and signals: the targets are there."""
    names = {"read a file", "list a folder", "connect to a port", "send by UDP", "abstract socket", "signal a process"}
    for attempt in ATTEMPTS:
        if attempt.name in names:
            run = subprocess.run([PYTHON, "-I", "-S", "-c", HEAD + attempt.program, json.dumps(host)], check=False)
            assert run.returncode == ESCAPED, attempt.name
    assert len(ATTEMPTS) >= 30
