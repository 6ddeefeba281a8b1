"""The hub: the pool node's end of all connections with node agents (``core.cluster.agent``).

An agent connects, sends one line of JSON with the cluster's token, and says what the connection is for:

    node        the agent itself; the hub asks each second, the agent answers with its status
    gateway     the pipe of one gateway process; the fleet serves it like that of a process on this machine
    owner       a tunnel to the owner's server, for requests that a gateway forwards
    supervisor  reports the nodes that Ray sees

Like Ray's own, the connections are not encrypted: they belong in the cluster's network.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import re
import socket
import subprocess
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Final

from core.cluster.agent import splice
from core.cluster.mirror import Mirror
from core.config import Settings
from core.errors import StudioError
from core.journal.layout import make_folder_id, packed_id
from core.workers.fleet import Fleet

HELLO_BYTES: Final = 1 << 20
HELLO_S: Final = 10.0
ASK_EVERY_S: Final = 1.0
SILENT_S: Final = 5.0
"""A node without an answer for this time is unreachable, seconds."""

log = logging.getLogger(__name__)


@dataclass
class Node:
    """One machine with an agent. Times are monotonic seconds, ``connected_at`` is UTC."""

    name: str
    address: str
    connected_at: float
    heard_at: float
    status: Mapping[str, Any]
    connection: socket.socket | None
    n_connections: int = 1
    gateways: set[socket.socket] = field(default_factory=set)


class RemoteProcess:
    """A gateway process on another machine, at the other end of a connection: see ``GatewayProcess``."""

    def __init__(self, conn: socket.socket, pid: int) -> None:
        self.pid = pid
        self.stdin: IO[bytes] | None = conn.makefile("wb")
        self.stdout: IO[bytes] | None = conn.makefile("rb")
        self.ended = threading.Event()
        self._conn = conn

    def kill(self) -> None:
        """Close the connection; the agent then ends the process."""
        with contextlib.suppress(OSError):
            self._conn.shutdown(socket.SHUT_RDWR)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the connection's end; 0. Raises subprocess.TimeoutExpired."""
        if not self.ended.wait(timeout):
            raise subprocess.TimeoutExpired("gateway", timeout or 0.0)
        return 0


class Hub:
    """Listens for agents.

    Args:
        settings: of the studio; ``cluster_listen`` is the address.
        owner_port: loopback port of the owner's server.
        fleet: serves the gateways.
        mirror: copies the nodes' segments.
        clock: UTC seconds.
    """

    def __init__(
        self, settings: Settings, *, owner_port: int, fleet: Fleet, mirror: Mirror, clock: Callable[[], float]
    ) -> None:
        assert settings.cluster_listen is not None and settings.cluster_token is not None
        self._settings = settings
        self._token = settings.cluster_token
        self._owner_port = owner_port
        self._fleet = fleet
        self._mirror = mirror
        self._clock = clock
        self._lock = threading.Lock()
        self._nodes: dict[str, Node] = {}
        self._seen_by_ray: list[dict[str, Any]] = []
        self._seen_at: float | None = None
        self._gone: dict[str, float] = {}
        host, port = settings.cluster_address
        try:
            self._server = socket.create_server((host, port), backlog=256)
        except OSError as error:
            raise StudioError(
                f"can't listen on {settings.cluster_listen}: {error.strerror}",
                field="cluster_listen",
                hint="an address of this machine and a free port, host:port",
            ) from error
        self.port = int(self._server.getsockname()[1])
        self._folder = b64encode(packed_id(make_folder_id(settings.journal_dir))).decode()
        threading.Thread(target=self._accept, name="hub", daemon=True).start()

    def close(self) -> None:
        """Accept no more connections, and close those of the agents. The fleet closes the gateways'."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        with self._lock:
            nodes = list(self._nodes.values())
        for node in nodes:
            _shut(node.connection)

    def status(self) -> dict[str, Any]:
        """The cluster: ``{address, nodes, supervisor_seen_s, at_risk_bytes, unreachable}``.

        A node is ``{node, address, state, gateways, n_restarts, behind_s, at_risk_bytes, at_risk_since, clock_off_s,
        problem, silent_s}``; ``state`` is ``up``, ``starting``, ``unreachable`` or ``gone``. ``at_risk_since``: UTC
        seconds by the node's clock; calls answered since then may be only on its disk. None with a journal target.
        Gateways are as of ``Fleet.workers``; one without a connection has the state ``restarting``, or ``unknown``
        when its node can't be asked.
        """
        now = time.monotonic()
        with self._lock:
            nodes = list(self._nodes.values())
            gone, seen = dict(self._gone), list(self._seen_by_ray)
        local = self._settings.journal_target == "local"
        listed = [self._node_json(node, now, gone, local=local) for node in nodes]
        known = {one["address"] for one in listed}
        listed += [
            {**_unknown(one), "problem": one.get("problem")}
            for one in seen
            if one["alive"] and one["address"] not in known and not one.get("is_pool")
        ]
        return {
            "address": f"{self._settings.cluster_address[0]}:{self.port}",
            "nodes": sorted(listed, key=lambda one: one["node"]),
            "supervisor_seen_s": None if self._seen_at is None else now - self._seen_at,
            "at_risk_bytes": sum(one["at_risk_bytes"] for one in listed) if local else 0,
            "unreachable": self._fleet.unreachable(),
            "journal_target": self._settings.journal_target,
        }

    def _node_json(self, node: Node, now: float, gone: Mapping[str, float], *, local: bool) -> dict[str, Any]:
        mirrored = self._mirror.status(node.name)
        connected = self._fleet.workers(node.name)
        silent_s = now - node.heard_at
        agents = {one["slot"]: one for one in node.status.get("gateways", ())}
        problems = [node.status.get("problem"), *(one["problem"] for one in agents.values()), mirrored["problem"]]
        problems += [one["journal_error"] for one in connected]
        if node.name in gone:
            state = "gone"
        elif silent_s > SILENT_S or node.connection is None:
            state = "unreachable"
        else:
            state = "up" if any(one["ready"] for one in connected) else "starting"
        gateways = list(_gateways(connected, agents, known=state in ("up", "starting")))
        return {
            "node": node.name,
            "address": node.address,
            "state": state,
            "gateways": gateways,
            "n_restarts": sum(max(0, one["n_starts"] - 1) for one in agents.values()),
            "behind_s": mirrored["behind_s"],
            "at_risk_bytes": mirrored["at_risk_bytes"] if local else 0,
            "at_risk_since": mirrored["until"] if local else None,
            "clock_off_s": mirrored["clock_off_s"],
            "problem": next((one for one in problems if one), None),
            "silent_s": silent_s,
        }

    def problems(self) -> Iterator[str]:
        """One line for each node that takes no calls or whose records don't arrive."""
        for node in self.status()["nodes"]:
            if node["state"] == "unreachable":
                yield f"node {node['node']} ({node['address']}) does not answer since {node['silent_s']:.0f} s"
            elif node["problem"]:
                yield f"node {node['node']}: {node['problem']}"

    def forget(self, name: str) -> bool:
        """Drop a node that is gone for good, with what waits for its records; False if there is no such node."""
        with self._lock:
            node = self._nodes.pop(name, None)
            self._gone.pop(name, None)
        self._mirror.forget(name)
        self._fleet.forget(name)
        return node is not None

    def _accept(self) -> None:
        while True:
            try:
                conn, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(conn,), daemon=True).start()

    def _serve(self, conn: socket.socket) -> None:
        with conn:
            try:
                hello = self._hello(conn)
            except (OSError, ValueError) as error:
                log.warning("a connection to the cluster's address was refused: %s", error)
                with contextlib.suppress(OSError):
                    conn.sendall(json.dumps({"refused": str(error)}).encode() + b"\n")
                return
            with contextlib.suppress(OSError, ValueError):
                if hello["hello"] == "node":
                    self._serve_node(conn, hello)
                elif hello["hello"] == "gateway":
                    self._serve_gateway(conn, hello)
                elif hello["hello"] == "owner":
                    splice(conn, socket.create_connection(("127.0.0.1", self._owner_port)))
                elif hello["hello"] == "supervisor":
                    self._serve_supervisor(conn)

    def _hello(self, conn: socket.socket) -> dict[str, Any]:
        conn.settimeout(HELLO_S)
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        data = b""
        while not data.endswith(b"\n"):
            # Byte by byte at the end: what follows the line belongs to the connection's purpose.
            piece = conn.recv(1 << 12, socket.MSG_PEEK)
            if not piece or len(data) > HELLO_BYTES:
                raise ValueError("no greeting")
            end = piece.find(b"\n") + 1
            data += conn.recv(end or len(piece))
        hello = json.loads(data)
        if not isinstance(hello, dict) or not hmac.compare_digest(
            str(hello.get("token")).encode(), self._token.encode()
        ):
            raise ValueError("the token is not the cluster's")
        if not re.fullmatch(r"[A-Za-z0-9_]+", str(hello.get("node"))):
            raise ValueError("a node's name has letters, digits and _")
        conn.settimeout(None)
        return hello

    def _serve_node(self, conn: socket.socket, hello: Mapping[str, Any]) -> None:
        name, status = hello["node"], hello["status"]
        with self._lock:
            before = self._nodes.get(name)
            node = Node(name, status["address"], self._clock(), time.monotonic(), status, conn)
            if before is not None:
                node.n_connections = before.n_connections + 1
            self._nodes[name] = node
            self._gone.pop(name, None)
        if before is not None:
            _shut(before.connection)
        self._mirror.follow(name, status["address"], int(status["journal_port"]))
        settings = self._settings
        order = {
            "folder_id": self._folder,
            "gateways": settings.node_gateways,
            "host": settings.node_host,
            "port": settings.node_port,
            "environment": settings.engine_keys(),
        }
        conn.settimeout(SILENT_S * 2)
        lines = conn.makefile("rb")
        try:
            conn.sendall(json.dumps(order).encode() + b"\n")
            while line := lines.readline():
                node.status = json.loads(line)["status"]
                node.heard_at = time.monotonic()
                time.sleep(ASK_EVERY_S)
                conn.sendall(b'{"ask": "status"}\n')
        finally:
            node.connection = None

    def _serve_gateway(self, conn: socket.socket, hello: Mapping[str, Any]) -> None:
        process = RemoteProcess(conn, int(hello["pid"]))
        name = hello["node"]
        with self._lock:
            node = self._nodes.get(name)
        if node is None:
            return
        node.gateways.add(conn)
        began: list[str] = []

        def begin(writer: str) -> None:
            began.append(writer)
            self._mirror.expect(name, writer)

        try:
            self._fleet.serve_remote(
                name,
                hello["slot"],
                process,
                owner=f"http://127.0.0.1:{int(hello['tunnel'])}",
                settings=hello["settings"],
                on_begin=begin,
            )
        finally:
            for writer in began:
                self._mirror.closed(name, writer)
            node.gateways.discard(conn)
            process.ended.set()
            _shut(conn)

    def _serve_supervisor(self, conn: socket.socket) -> None:
        conn.settimeout(SILENT_S * 4)
        for line in conn.makefile("rb"):
            seen = json.loads(line)["nodes"]
            with self._lock:
                self._seen_by_ray, self._seen_at = seen, time.monotonic()
                dead = [one["node"] for one in seen if not one["alive"] and one["node"] in self._nodes]
                alive = {one["node"] for one in seen if one["alive"]}
                gone = [self._nodes[name] for name in dead if name not in alive and name not in self._gone]
                self._gone.update({node.name: time.monotonic() for node in gone})
            for node in gone:
                log.warning("node %s (%s) is gone", node.name, node.address)
                # A machine that lost its power closes no connection.
                for one in (node.connection, *list(node.gateways)):
                    _shut(one)
                self._fleet.forget(node.name)
                self._mirror.node_gone(node.name)


def _gateways(
    connected: list[dict[str, Any]], agents: Mapping[str, Mapping[str, Any]], *, known: bool
) -> Iterator[dict[str, Any]]:
    """The gateways of a node: those with a connection, and those of which only its agent knows.

    Args:
        connected: as of ``Fleet.workers``.
        agents: slot -> what the agent says of it.
        known: whether the agent answers.
    """
    for one in connected:
        slot = agents.get(one["gateway"], {})
        yield {**one, "n_restarts": max(0, slot.get("n_starts", 1) - 1)}
    for name in agents.keys() - {one["gateway"] for one in connected}:
        slot = agents[name]
        state = "unknown" if not known else "starting" if slot["n_starts"] == 0 else "restarting"
        yield {
            "gateway": name,
            "writer": None,
            "pid": slot["pid"],
            "port": None,
            "state": state,
            "ready": False,
            "silent": False,
            "n_restarts": max(0, slot["n_starts"] - 1),
            "problem": slot["problem"],
            "journal_error": None,
            "unshipped_bytes": None,
            "unshipped_s": None,
        }


def _unknown(one: Mapping[str, Any]) -> dict[str, Any]:
    """A node that Ray sees and from which no agent has come."""
    return {
        "node": one["node"],
        "address": one["address"],
        "state": "starting",
        "gateways": [],
        "n_restarts": 0,
        "behind_s": None,
        "at_risk_bytes": 0,
        "at_risk_since": None,
        "clock_off_s": None,
        "silent_s": None,
    }


def _shut(conn: socket.socket | None) -> None:
    if conn is not None:
        with contextlib.suppress(OSError):
            conn.shutdown(socket.SHUT_RDWR)
