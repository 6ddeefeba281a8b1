"""The supervisor: keeps the studio running on the pool node, and one node agent on each other node of the cluster.

A detached Ray actor holds it. Like the agent (``core.cluster.agent``) it runs in the cluster's own Python, so it uses
the standard library and Ray only. It starts the studio as a process in the interpreter that has it. Ray carries control
alone: a call's bytes never pass through it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAME = "claw_supervisor"
NAMESPACE = "claw_studio"
LOOK_S = 1.0
START_S = 120.0
STOP_S = 60.0
BACKOFF_S = (0.5, 2.0, 10.0)
STEADY_S = 30.0


def node_name(address: str) -> str:
    """The name of the machine with an address: letters, digits and ``_``."""
    return re.sub(r"[^A-Za-z0-9]", "_", address)


class Supervisor:
    """Keeps studio and agents.

    Args:
        options: ``{command, environment, data_dir, hub, token, node_data, python, node_environment}``. ``command``
            starts the studio with its settings in ``environment``; ``node_data`` is the agents' folder, in which
            ``{node}`` stands for the node's name.
        agent_class: ``core.cluster.agent.NodeAgent``, which the nodes need not be able to import.
    """

    def __init__(self, options: dict[str, Any], agent_class: type[Any]) -> None:
        self._options = options
        self._agent_class = agent_class
        self._agents: dict[str, Any] = {}
        self._nodes: list[dict[str, Any]] = []
        self._service: _Service | None = _Service(options)
        self._problem: str | None = None
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=target, name=target.__name__, daemon=True)
            for target in (self._service.keep, self._keep_agents, self._report)
        ]
        for thread in self._threads:
            thread.start()

    def ready(self, timeout_s: float = START_S) -> dict[str, Any]:
        """Wait until the studio takes calls; ``{pid, base_url}`` of it, or ``{problem}``."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self._service is not None:
            if (note := self._service.note()) is not None:
                return note
            if self._service.problem is not None:
                break
            time.sleep(0.1)
        return {"problem": (self._service and self._service.problem) or "the studio did not start in time"}

    def status(self) -> dict[str, Any]:
        """``{studio, nodes, n_restarts, problem}``: the studio's address, the nodes as Ray sees them."""
        service = self._service
        return {
            "studio": None if service is None else service.note(),
            "n_restarts": 0 if service is None else service.n_restarts,
            "nodes": self._nodes,
            "hub": self._options["hub"],
            "problem": self._problem or (service and service.problem),
        }

    def stop(self) -> None:
        """End the agents after their calls in flight, then the studio."""
        import ray

        self._stopping.set()
        for thread in self._threads[1:]:
            thread.join(STOP_S)
        # The studio takes in what the nodes still have before it ends, so their agents end after it.
        if self._service is not None:
            self._service.stop()
        stops = [agent.stop.remote() for agent in self._agents.values()]
        ray.wait(stops, num_returns=len(stops), timeout=STOP_S)
        for agent in self._agents.values():
            with contextlib.suppress(Exception):
                ray.kill(agent)

    def _keep_agents(self) -> None:
        while not self._stopping.is_set():
            try:
                self._look()
                self._problem = None
            except Exception as error:
                # What Ray raises while a node ends is of many kinds; the next look tries again.
                self._problem = f"the nodes can't be looked at: {error}"
            self._stopping.wait(LOOK_S)

    def _look(self) -> None:
        import ray

        here = ray.get_runtime_context().get_node_id()
        nodes = []
        for one in ray.nodes():
            address = one["NodeManagerAddress"]
            seen = {"node": node_name(address), "address": address, "alive": one["Alive"], "problem": None}
            seen["is_pool"] = one["NodeID"] == here
            nodes.append(seen)
            if not one["Alive"]:
                self._agents.pop(one["NodeID"], None)
            elif not seen["is_pool"]:
                seen["problem"] = self._tend(one["NodeID"], address)
        self._nodes = nodes

    def _tend(self, node_id: str, address: str) -> str | None:
        """An agent on this node; returns why there is none, or None."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        agent = self._agents.get(node_id)
        if agent is None:
            name = node_name(address)
            actor = ray.remote(num_cpus=0, max_restarts=0, max_concurrency=4)(self._agent_class)
            agent = self._agents[node_id] = actor.options(
                name=f"claw_agent_{node_id}",
                namespace=NAMESPACE,
                get_if_exists=True,
                lifetime="detached",
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
            ).remote(
                self._options["hub"],
                self._options["token"],
                name,
                address,
                self._options["node_data"].replace("{node}", name),
                self._options["python"],
                self._options["node_environment"],
            )
        try:
            status = ray.get(agent.status.remote(), timeout=5.0)
        except ray.exceptions.GetTimeoutError:
            return "its agent does not answer Ray"
        except ray.exceptions.RayError as error:
            # It has ended: the next look starts another.
            del self._agents[node_id]
            return f"its agent has ended: {str(error).strip().splitlines()[-1]}"
        problem: str | None = status["problem"]
        return problem

    def _report(self) -> None:
        """Tell the hub which nodes Ray sees, so that a node that is gone is not waited for."""
        host, _, port = self._options["hub"].rpartition(":")
        hello = {"hello": "supervisor", "token": self._options["token"], "node": "supervisor"}
        while not self._stopping.is_set():
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=5.0) as conn:
                conn.sendall(json.dumps(hello).encode() + b"\n")
                while not self._stopping.is_set():
                    if self._nodes:
                        conn.sendall(json.dumps({"nodes": self._nodes}).encode() + b"\n")
                    self._stopping.wait(LOOK_S)
            self._stopping.wait(LOOK_S)


class _Service:
    """The studio's process, which is started again when it has ended."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._data_dir = Path(options["data_dir"])
        self._stopping = threading.Event()
        self._pid: int | None = None
        self.n_restarts = 0
        self.problem: str | None = None

    def note(self) -> dict[str, Any] | None:
        """``{pid, base_url}`` of the running studio; None while there is none."""
        try:
            note = json.loads((self._data_dir / "owner.json").read_text())
        except (OSError, ValueError):
            return None
        return note if isinstance(note, dict) and note.get("pid") == self._pid and _runs(note["pid"]) else None

    def keep(self) -> None:
        """Start the studio, and start it again when it has ended."""
        # A supervisor that was started again finds the studio of the one before.
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            pid = int(json.loads((self._data_dir / "owner.json").read_text())["pid"])
            if _is_studio(pid):
                self._pid = pid
                self._wait(lambda: not _runs(pid))
                self.n_restarts += 1
        failures = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            self._run()
            if self._stopping.is_set():
                return
            failures = 0 if time.monotonic() - began > STEADY_S else min(failures + 1, len(BACKOFF_S))
            self._stopping.wait(BACKOFF_S[failures - 1] if failures else 0.0)
            self.n_restarts += 1

    def stop(self) -> None:
        """End the studio in order."""
        self._stopping.set()
        deadline = time.monotonic() + STOP_S
        if (pid := self._pid) is not None and _runs(pid):
            os.kill(pid, signal.SIGTERM)
            while _runs(pid) and time.monotonic() < deadline:
                time.sleep(0.1)

    def _run(self) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self._data_dir.mkdir(parents=True, exist_ok=True)
        log = self._data_dir / "cluster.log"
        with log.open("ab") as out:
            try:
                process = subprocess.Popen(
                    self._options["command"],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    env={**inherited, **self._options["environment"]},
                    start_new_session=True,
                )
            except OSError as error:
                self.problem = f"{self._options['command'][0]} can't be run on the pool node: {error.strerror}"
                return
        self._pid = process.pid
        self.problem = None
        self._wait(lambda: process.poll() is not None)
        if process.poll() is not None and not self._stopping.is_set():
            self.problem = f"the studio has ended with code {process.poll()}; {log} says why"

    def _wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self._stopping.wait(0.2):
                return


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        # A process that has ended and was not waited for is still listed.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except OSError:
        return True


def _is_studio(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"core.cli" in command or b"streamlit" in command
