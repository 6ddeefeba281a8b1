"""The node agent: starts and watches the gateways of one machine, relays their pipes to the hub, serves their segments.

It runs in the cluster's own Python, whose versions are not ours, so this file uses the standard library only. A Ray
actor or a program (``python agent.py OPTIONS``) holds it. The gateways run in an interpreter that has the studio. The
agent does not look into their messages (``core.workers.pipe``): it copies bytes between their pipes and a connection to
the hub (``core.cluster.hub``).
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hmac
import http.server
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from pathlib import Path
from typing import Any, ClassVar

PATIENCE_S = 10.0
"""A connection to the hub without a message for this time is closed, seconds."""
STOP_S = 25.0
"""A gateway whose owner is gone ends its calls in flight within this time, seconds; then it is killed."""
BACKOFF_S = (0.2, 0.5, 1.0, 2.0)
STEADY_S = 30.0
"""A gateway that ran longer than this is restarted at once, seconds."""
SEGMENT = re.compile(r"[A-Za-z0-9_.]+-\d{8,}\.seg")
COPY_BYTES = 1 << 16


class NodeAgent:
    """The gateways of one machine. It works until ``stop``; connections that are lost are made again.

    Args:
        hub: ``host:port`` of the hub.
        token: the cluster's token.
        node: name of the machine for this agent: letters, digits and ``_``.
        address: the machine's address, on which the other machines reach it.
        data_dir: folder of the gateways' journals on this machine.
        python: interpreter that has the studio.
        environment: variables of the gateways' environment.
    """

    def __init__(
        self,
        hub: str,
        token: str,
        node: str,
        address: str,
        data_dir: str,
        python: str,
        environment: dict[str, str] | None = None,
    ) -> None:
        host, _, port = hub.rpartition(":")
        self._hub = (host, int(port))
        self._token = token
        self._node = node
        self._address = address
        self._data_dir = Path(data_dir)
        self._python = python
        self._environment = environment or {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._problem: str | None = None
        self._order: dict[str, Any] = {}
        self._slots: dict[str, _Slot] = {}
        self._journal = _JournalServer(address, self._data_dir / "journal", token)
        self._tunnel = socket.create_server(("127.0.0.1", 0))
        for name, target in (("hub", self._keep_connected), ("tunnel", self._serve_tunnel)):
            threading.Thread(target=target, name=name, daemon=True).start()

    def status(self) -> dict[str, Any]:
        """``{node, address, journal_port, problem, gateways}``; each gateway ``{slot, pid, n_starts, problem}``."""
        with self._lock:
            slots = list(self._slots.values())
        return {
            "node": self._node,
            "address": self._address,
            "journal_port": self._journal.port,
            "problem": self._problem,
            "gateways": [slot.status() for slot in slots],
        }

    def stop(self) -> None:
        """End the gateways after their calls in flight."""
        self._stopping.set()
        with self._lock:
            slots = list(self._slots.values())
        for slot in slots:
            slot.stop()
        for slot in slots:
            slot.thread.join(STOP_S + 5.0)
        self._tunnel.close()
        self._journal.close()

    def connect(self, hello: dict[str, Any]) -> socket.socket:
        """A connection to the hub, which has the first message. Raises OSError."""
        conn = socket.create_connection(self._hub, timeout=PATIENCE_S)
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        conn.sendall(json.dumps({**hello, "token": self._token, "node": self._node}).encode() + b"\n")
        return conn

    @property
    def tunnel_port(self) -> int:
        """Port on this machine's loopback that leads to the owner's server."""
        return int(self._tunnel.getsockname()[1])

    def _keep_connected(self) -> None:
        while not self._stopping.is_set():
            try:
                with self.connect({"hello": "node", "status": self.status()}) as conn:
                    self._follow(conn)
                self._problem = f"the hub at {self._hub[0]}:{self._hub[1]} has closed the connection"
            except (OSError, ValueError) as error:
                self._problem = f"the hub at {self._hub[0]}:{self._hub[1]}: {error}"
            self._stopping.wait(BACKOFF_S[1])

    def _follow(self, conn: socket.socket) -> None:
        """Answer the hub's questions, one each second, with the status."""
        for line in conn.makefile("rb"):
            order = json.loads(line)
            if "refused" in order:
                raise ValueError(order["refused"])
            if "folder_id" in order:
                self._problem = self._take(order)
            conn.sendall(json.dumps({"status": self.status()}).encode() + b"\n")
            if self._stopping.is_set():
                return

    def _take(self, order: dict[str, Any]) -> str | None:
        """Start the gateways that the hub asks for; returns why they can't be, or None."""
        folder = self._data_dir / "journal"
        content = base64.b64decode(order["folder_id"])
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / "folder.id"
            if not path.exists():
                temporary = folder / f".folder.id.{os.getpid()}.{threading.get_ident()}"
                temporary.write_bytes(content)
                temporary.replace(path)
            if path.read_bytes() != content:
                return f"{folder} has the journal of another studio: set another node_data, or remove the folder"
        except OSError as error:
            return f"{folder} can't be used: {error.strerror}"
        self._order = order
        with self._lock:
            for number in range(1, int(order["gateways"]) + 1):
                if (name := f"g{number}") not in self._slots:
                    self._slots[name] = _Slot(self, name)
        return None

    def hello(self, slot: str) -> dict[str, Any]:
        """The first message of a gateway's connection."""
        host = self._address if self._order.get("host") == "node" else "127.0.0.1"
        settings = {"data_dir": str(self._data_dir), "host": host, "port": self._order["port"]}
        return {"hello": "gateway", "slot": slot, "tunnel": self.tunnel_port, "settings": settings}

    def spawn(self) -> subprocess.Popen[bytes]:
        """A gateway's process, which waits for its first message. Raises OSError."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        return subprocess.Popen(
            [self._python, "-m", "core.workers.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**inherited, **self._environment, **self._order.get("environment", {})},
            start_new_session=True,
        )

    @property
    def stopping(self) -> threading.Event:
        """Set when the agent ends."""
        return self._stopping

    def _serve_tunnel(self) -> None:
        """Connect each local connection with the owner's server."""
        while True:
            try:
                local, _ = self._tunnel.accept()
            except OSError:
                return
            threading.Thread(target=self._through, args=(local,), daemon=True).start()

    def _through(self, local: socket.socket) -> None:
        try:
            conn = self.connect({"hello": "owner"})
        except OSError:
            local.close()
            return
        splice(local, conn)


class _Slot:
    """One gateway of the machine: its process, which is started again when it has ended."""

    def __init__(self, agent: NodeAgent, name: str) -> None:
        self._agent = agent
        self._name = name
        self._process: subprocess.Popen[bytes] | None = None
        self._conn: socket.socket | None = None
        self._n_starts = 0
        self._problem: str | None = None
        self.thread = threading.Thread(target=self._keep, name=f"gateway-{name}", daemon=True)
        self.thread.start()

    def status(self) -> dict[str, Any]:
        """``{slot, pid, n_starts, problem}``."""
        process = self._process
        pid = process.pid if process is not None and process.poll() is None else None
        return {"slot": self._name, "pid": pid, "n_starts": self._n_starts, "problem": self._problem}

    def stop(self) -> None:
        """End the gateway after its calls in flight."""
        conn = self._conn
        if conn is not None:
            with contextlib.suppress(OSError):
                conn.shutdown(socket.SHUT_RD)

    def _keep(self) -> None:
        failures = 0
        while not self._agent.stopping.is_set():
            began = time.monotonic()
            try:
                self._run()
            except OSError as error:
                self._problem = str(error)
            failures = 0 if time.monotonic() - began > STEADY_S else min(failures + 1, len(BACKOFF_S))
            self._agent.stopping.wait(BACKOFF_S[failures - 1] if failures else 0.0)

    def _run(self) -> None:
        """One process, from its start to its end."""
        # It imports what it needs while the connection is made.
        process = self._process = self._agent.spawn()
        try:
            # A hub that is away for a while costs no new process each time.
            while True:
                try:
                    conn = self._agent.connect({**self._agent.hello(self._name), "pid": process.pid})
                    first = conn.recv(COPY_BYTES)
                    if first:
                        break
                    conn.close()
                    self._problem = "the hub has closed the connection"
                except OSError as error:
                    self._problem = f"the hub can't be reached: {error}"
                if self._agent.stopping.wait(BACKOFF_S[1]) or process.poll() is not None:
                    return
            self._n_starts += 1
            self._problem = None
            with conn:
                conn.settimeout(None)
                self._conn = conn
                self._relay(process, conn, first)
        finally:
            self._conn = None
            _end(process)

    def _relay(self, process: subprocess.Popen[bytes], conn: socket.socket, first: bytes) -> None:
        assert process.stdin is not None and process.stdout is not None
        up = threading.Thread(target=self._up, args=(process, conn), daemon=True)
        up.start()
        # Its end tells the gateway that the owner is gone.
        with contextlib.suppress(OSError), process.stdin as pipe:
            data = first
            while data:
                pipe.write(data)
                pipe.flush()
                data = conn.recv(COPY_BYTES)
        up.join(STOP_S)
        _end(process)
        up.join()

    def _up(self, process: subprocess.Popen[bytes], conn: socket.socket) -> None:
        assert process.stdout is not None
        fd = process.stdout.fileno()
        with contextlib.suppress(OSError):
            while data := os.read(fd, COPY_BYTES):
                conn.sendall(data)
        code = process.wait()
        self._problem = None if code == 0 else f"the gateway has ended with code {code}"
        with contextlib.suppress(OSError):
            conn.sendall(json.dumps({"ended": code}).encode() + b"\n")
        with contextlib.suppress(OSError):
            conn.shutdown(socket.SHUT_RDWR)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    if process.poll() is None:
        process.kill()
    process.wait()


def splice(one: socket.socket, other: socket.socket) -> None:
    """Copy bytes in both directions until both sides have ended; closes both."""

    def copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(COPY_BYTES):
                target.sendall(data)
        for end, how in ((target, socket.SHUT_WR), (source, socket.SHUT_RD)):
            with contextlib.suppress(OSError):
                end.shutdown(how)

    one.settimeout(None)
    other.settimeout(None)
    back = threading.Thread(target=copy, args=(other, one), daemon=True)
    back.start()
    copy(one, other)
    back.join()
    one.close()
    other.close()


class _JournalServer:
    """Serves the segments of a folder: ``GET /segments`` lists them, ``GET /segments/NAME?begin=&end=`` has bytes."""

    def __init__(self, address: str, folder: Path, token: str) -> None:
        class Handler(_Segments):
            directory = folder
            secret = token

        self._server = http.server.ThreadingHTTPServer((address, 0), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, name="segments", daemon=True).start()

    def close(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()


class _Segments(http.server.BaseHTTPRequestHandler):
    """One connection of a mirror."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    directory: ClassVar[Path]
    secret: ClassVar[str]

    def do_GET(self) -> None:
        """Answer a request."""
        url = urllib.parse.urlsplit(self.path)
        if not hmac.compare_digest(self.headers.get("X-Claw-Token", "").encode(), self.secret.encode()):
            self._answer(401, {"error": "the token is wrong"})
        elif url.path == "/segments":
            self._answer(200, listing(self.directory))
        elif (name := url.path.removeprefix("/segments/")) and SEGMENT.fullmatch(name):
            query = urllib.parse.parse_qs(url.query)
            self._send_bytes(name, int(query["begin"][0]), int(query["end"][0]))
        else:
            self._answer(404, {"error": "no such path"})

    def _send_bytes(self, name: str, begin: int, end: int) -> None:
        try:
            file = (self.directory / name).open("rb")
        except FileNotFoundError:
            self._answer(404, {"error": f"no segment {name}"})
            return
        with file:
            n = max(0, min(end, os.fstat(file.fileno()).st_size) - begin)
            self.send_response(200)
            self.send_header("Content-Length", str(n))
            self.end_headers()
            self.wfile.flush()
            if n:
                # What is cut off meanwhile ends the connection, so the mirror notices that bytes are missing.
                sent = self.connection.sendfile(file, begin, n)
                self.close_connection = sent < n

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Write no log lines."""


def listing(directory: Path) -> dict[str, Any]:
    """``{at, segments, ended}``: UTC seconds before the listing, segments with their bytes, writers that have ended.

    Writers are looked at first, then names, then sizes: of a writer that has ended all is listed, and of a writer's
    segments all but the newest are finished.
    """
    at = time.time()
    ended = sorted(path.stem for path in directory.glob("*.lock") if not _is_held(path))
    names = sorted(path.name for path in directory.glob("*.seg") if SEGMENT.fullmatch(path.name))
    segments = {}
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            segments[name] = (directory / name).stat().st_size
    return {"at": at, "segments": segments, "ended": ended}


def _is_held(lock: Path) -> bool:
    fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def main() -> None:
    """Run an agent without Ray: options as JSON in the first argument, see ``NodeAgent``. Ends with stdin."""
    agent = NodeAgent(**json.loads(sys.argv[1]))
    print(json.dumps(agent.status()), flush=True)
    sys.stdin.read()
    agent.stop()


if __name__ == "__main__":
    main()
