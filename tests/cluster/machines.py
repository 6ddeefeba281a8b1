"""Machines of a cluster on one: each has an address of its own on the loopback network, an agent and a disk."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from core.cluster import agent as agent_module
from core.cluster.supervisor import node_name
from core.journal import Damage, read_all
from tests.conftest import eventually
from tests.processes import children

ROOT = Path(__file__).parents[2]
TOKEN = "a-token-for-tests-0123456789"
KEY = "an-admin-key-for-tests"
SCRIPT = {"model": "scripted-1", "rules": [], "default": {"reply": {"content": "An answer."}, "delay_s": 0.004}}


GAP_S, BACK_S = 2.0, 15.0
"""Longest time without an answer elsewhere when a node ends, and from a node's join to its gateway, seconds."""


def limit_s(seconds: float) -> float:
    """A limit that holds while there is a processor for each running process; longer by as much as there is not."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def free_port() -> int:
    """A port that no one listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def cluster_settings(hub_port: int, node_port: int, **settings: str) -> dict[str, str]:
    """The environment of a studio whose nodes listen on their own addresses."""
    return {
        "CLAW_STUDIO_GATEWAYS": "1",
        "CLAW_STUDIO_CLUSTER_LISTEN": f"127.0.0.1:{hub_port}",
        "CLAW_STUDIO_CLUSTER_TOKEN": TOKEN,
        "CLAW_STUDIO_NODE_HOST": "node",
        "CLAW_STUDIO_NODE_PORT": str(node_port),
        "CLAW_STUDIO_API_KEY": KEY,
        **settings,
    }


class Machine:
    """A node whose agent is a process without Ray and without the project's packages."""

    def __init__(self, address: str, folder: Path, hub_port: int, node_port: int) -> None:
        self.address, self.node, self.disk = address, node_name(address), folder / node_name(address)
        self.base_url = f"http://{address}:{node_port}"
        self._options = {
            "hub": f"127.0.0.1:{hub_port}",
            "token": TOKEN,
            "node": self.node,
            "address": address,
            "data_dir": str(self.disk),
            "python": sys.executable,
            "environment": {"PYTHONPATH": str(ROOT)},
        }
        self.start()

    def start(self) -> None:
        """Start the agent."""
        # Isolated and without site-packages: the standard library is all that it has.
        self.agent = subprocess.Popen(
            [sys.executable, "-I", "-S", agent_module.__file__, json.dumps(self._options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )

    @property
    def processes(self) -> list[int]:
        """Agent and gateways."""
        return [self.agent.pid, *children(self.agent.pid)]

    def signal(self, sign: int, *pids: int) -> None:
        """Send a signal to these processes, or to all of the machine."""
        for pid in pids or self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sign)

    def lose_power(self) -> None:
        """Nothing on the machine gets a chance to finish."""
        self.signal(signal.SIGSTOP)
        self.signal(signal.SIGKILL)
        self.agent.wait(30)
        assert self.agent.stdin is not None
        self.agent.stdin.close()

    def lose_disk(self) -> None:
        """What was on its disk is gone."""
        shutil.rmtree(self.disk)

    def stop(self) -> None:
        """End the agent in order."""
        if self.agent.poll() is None:
            assert self.agent.stdin is not None
            self.agent.stdin.close()
            self.agent.wait(60)


def admin(base_url: str, timeout_s: float = 60.0) -> httpx.Client:
    """A client with the admin key."""
    return httpx.Client(base_url=base_url, timeout=timeout_s, headers={"Authorization": f"Bearer {KEY}"})


def nodes(http: httpx.Client) -> dict[str, dict[str, Any]]:
    """The cluster's nodes by name."""
    return {one["node"]: one for one in http.get("/api/v1/cluster").json()["cluster"]["nodes"]}


def wait_up(http: httpx.Client, *names: str, newer_than: Mapping[str, set[str]] | None = None) -> float:
    """Wait until these nodes take calls, by writers that were not there before; returns for how long, seconds."""
    began = time.monotonic()

    def up() -> bool:
        states = nodes(http)
        return all(
            name in states
            and states[name]["state"] == "up"
            and any(
                one["ready"] and one["writer"] not in (newer_than or {}).get(name, set())
                for one in states[name]["gateways"]
            )
            for name in names
        )

    eventually(up)
    return time.monotonic() - began


def writers(http: httpx.Client, name: str) -> set[str]:
    """The writers of a node's gateways."""
    return {one["writer"] for one in nodes(http)[name]["gateways"]}


class Caller(threading.Thread):
    """Calls one node until it is stopped; notes which calls were answered, and when (UTC and monotonic seconds)."""

    def __init__(self, base_url: str, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.base_url = base_url
        self.answered: dict[str, float] = {}
        self.gaps_s = [0.0]
        self.stopping = threading.Event()

    def run(self) -> None:
        """Call again and again."""
        last = time.monotonic()
        with admin(self.base_url, 10.0) as http:
            for n in range(1_000_000):
                if self.stopping.is_set():
                    return
                body = {"model": "scripted-1", "messages": [{"role": "user", "content": f"{self.name} asks {n}"}]}
                headers = {"X-Trajectory-Uid": f"{self.name}-{n // 3}", "X-Prompt-Uid": self.name}
                with contextlib.suppress(httpx.TransportError):
                    answer = http.post("/v1/chat/completions", json=body, headers=headers)
                    if answer.status_code == 200:
                        now = time.monotonic()
                        self.gaps_s.append(now - last)
                        last = now
                        self.answered[answer.headers["x-step-uid"]] = time.time()
                self.stopping.wait(0.01)

    def more(self, n: int) -> None:
        """Wait until so many more calls were answered."""
        wanted = len(self.answered) + n
        eventually(lambda: len(self.answered) >= wanted)

    def stop(self) -> dict[str, float]:
        """The calls that were answered: step uid -> UTC seconds."""
        self.stopping.set()
        self.join(60)
        return self.answered


def lost(http: httpx.Client, answered: Mapping[str, float], *, patience_s: float = 90.0) -> set[str]:
    """The answered calls that the pool does not have, after it had time for all of them."""
    missing = set(answered)

    def all_there() -> bool:
        known = http.post("/api/v1/steps/known", json={"step_uids": sorted(missing)}).json()["known"]
        missing.difference_update(known)
        return not missing

    with contextlib.suppress(AssertionError):
        eventually(all_there, timeout_s=patience_s, every_s=0.25)
    return missing


def check_whole(data: str, http: httpx.Client) -> None:
    """Nothing is stored twice, refused or damaged: each record of the journal's folder is one step."""
    stats = http.get("/api/v1/stats").json()
    assert (stats["n_conflicts"], stats["n_ingest_errors"]) == (0, 0)
    folder = Path(data) / "journal"
    items = [item for path in sorted(folder.glob("*.seg")) for item in read_all(path, 0, sealed=False)]
    assert not [item for item in items if isinstance(item, Damage)]
    steps = [item for item in items if b'"kind":"call"' in getattr(item, "payload", b"")[:40]]
    assert stats["n_steps"] == len(steps)
