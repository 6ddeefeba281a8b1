"""``claw-studio cluster`` on a real Ray cluster of fake nodes: nodes are killed under load and their disks deleted.

``CLAW_NODE_KILLS`` sets how many kills each target gets (1; 10 by hand).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from core.cluster.supervisor import node_name
from core.serving.process import EngineProcess
from tests.cluster.installed import ray_python
from tests.cluster.machines import (
    KEY,
    SCRIPT,
    TOKEN,
    Caller,
    admin,
    check_whole,
    free_port,
    lost,
    nodes,
    wait_up,
    writers,
)
from tests.conftest import eventually, scripted_engine

pytestmark = pytest.mark.beyond
ROOT = Path(__file__).parents[2]
ADDRESSES = ("127.0.0.2", "127.0.0.3")
N_KILLS = int(os.environ.get("CLAW_NODE_KILLS", "1"))


class RayCluster:
    """A head and two nodes."""

    def __init__(self, python: Path) -> None:
        self.python = python
        self._driver = subprocess.Popen(
            [python, "-m", "tests.cluster.driver"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.address = self._answer()["address"]
        for address in ADDRESSES:
            self.order(add=address)

    def order(self, **what: str) -> None:
        """Have the driver do it."""
        assert self._driver.stdin is not None
        print(json.dumps(what), file=self._driver.stdin, flush=True)
        self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._driver.stdout is not None
        line = self._driver.stdout.readline()
        assert line, f"the driver ended with {self._driver.wait(60)}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def command(self, what: str, *args: str, env: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        """``claw-studio cluster WHAT``; its lines of JSON."""
        done = subprocess.run(
            [self.python, "-m", "core.cli", "cluster", what, "--ray", self.address, *args],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def close(self) -> None:
        """End all of it."""
        assert self._driver.stdin is not None
        self._driver.stdin.close()
        self._driver.wait(60)


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[RayCluster]:
    made = RayCluster(ray_python())
    yield made
    made.close()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    with scripted_engine(tmp_path_factory.mktemp("engine"), SCRIPT) as running:
        yield running


class Studio:
    """A studio that ``cluster up`` has started; ``ready`` as of ``ServeProcess``."""

    def __init__(
        self,
        ray: RayCluster,
        folder: Path,
        engine: EngineProcess,
        target: str,
        options: Mapping[str, Any],
        python: Path,
    ) -> None:
        self.ray, self.folder = ray, folder
        self.ready = {"data": str(folder / "data")}
        env = {
            "CLAW_STUDIO_GATEWAYS": "1",
            "CLAW_STUDIO_API_KEY": KEY,
            "CLAW_STUDIO_PORT": "0",
            "CLAW_STUDIO_ENGINE": str(engine.base_url),
            "CLAW_STUDIO_CLUSTER_TOKEN": TOKEN,
            "CLAW_STUDIO_NODE_HOST": "node",
            "CLAW_STUDIO_NODE_PORT": str(free_port()),
            "CLAW_STUDIO_JOURNAL_TARGET": target,
            "CLAW_STUDIO_JOURNAL_TARGET_OPTIONS": json.dumps(options),
        }
        self.port = env["CLAW_STUDIO_NODE_PORT"]
        args = ["--data", self.ready["data"], "--hub-port", str(free_port()), "--no-pages", "--python", str(python)]
        args += ["--node-data", str(folder / "{node}"), "--pool-address", "127.0.0.1"]
        (self.up,) = ray.command("up", *args, env=env)
        self.http = admin(self.up["base_url"])
        wait_up(self.http, *map(node_name, ADDRESSES))

    def caller(self, address: str, name: str) -> Caller:
        """Calls a node under load."""
        caller = Caller(f"http://{address}:{self.port}", name)
        caller.start()
        return caller

    def kill(self, address: str, *, disk: bool) -> None:
        """Every process of the node at once, and its disk."""
        pids = [one["pid"] for one in nodes(self.http)[node_name(address)]["gateways"]]
        for sign in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                os.kill(pid, sign)
        self.ray.order(kill=address)
        if disk:
            shutil.rmtree(self.folder / node_name(address))


def killed(studio: Studio, *, disk: bool) -> dict[str, float]:
    """Kill nodes under load and bring them back; returns all answered calls."""
    answered: dict[str, float] = {}
    gaps_s = []
    for number in range(N_KILLS):
        victim, other = (ADDRESSES, ADDRESSES[::-1])[number % 2]
        before = {node_name(victim): writers(studio.http, node_name(victim))}
        callers = [studio.caller(address, f"{number}-{address}") for address in (victim, other)]
        for caller in callers:
            eventually(lambda caller=caller: len(caller.answered) > 30)
        studio.kill(victim, disk=disk)
        eventually(lambda: nodes(studio.http)[node_name(victim)]["state"] == "gone")
        n = len(callers[1].answered)
        eventually(lambda: len(callers[1].answered) > n + 30)
        studio.ray.order(add=victim)
        wait_up(studio.http, node_name(victim), newer_than=before)
        n = len(callers[0].answered)
        eventually(lambda: len(callers[0].answered) > n + 5)
        for caller in callers:
            answered |= caller.stop()
        gaps_s.append(max(callers[1].gaps_s))
    print(json.dumps({"kills": N_KILLS, "answered": len(answered), "longest gaps of the other node, s": gaps_s}))
    return answered


def test_nodes_are_killed_beside_a_shared_folder(
    ray_cluster: RayCluster, engine: EngineProcess, tmp_path: Path
) -> None:
    """The gateways' interpreter has no Ray, and the nodes' Ray has no studio that it could import."""
    (tmp_path / "shared").mkdir()
    studio = Studio(ray_cluster, tmp_path, engine, str(tmp_path / "shared"), {}, Path(sys.executable))
    answered = killed(studio, disk=True)
    assert lost(studio.http, answered) == set()
    check_whole(studio, studio.http)
    listed = ray_cluster.command("status", "--data", studio.ready["data"], env={"CLAW_STUDIO_API_KEY": KEY})
    assert [one["state"] for one in listed[:-1]] == ["up", "up"]
    assert ray_cluster.command("down") == [{"ended": True}]
    assert not (Path(studio.ready["data"]) / "owner.json").exists()
