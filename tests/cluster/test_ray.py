"""``claw-studio cluster`` on a real Ray cluster of fake nodes: a node is killed under load and its disk deleted.

``CLAW_NODE_KILLS`` sets how many kills each target gets (5 in CI, else 1).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.serving.process import EngineProcess
from tests.cluster.installed import ray_python
from tests.cluster.machines import (
    BACK_S,
    GAP_S,
    KEY,
    SCRIPT,
    TOKEN,
    Caller,
    admin,
    check_whole,
    free_port,
    limit_s,
    lost,
    nodes,
    wait_up,
    writers,
)
from tests.cluster.ray_cluster import ADDRESS, NODE, RayCluster
from tests.conftest import eventually, scripted_engine
from tests.journal.test_target import s3
from tests.left_out import IN_CI

__all__ = ["s3"]

pytestmark = [pytest.mark.beyond, pytest.mark.timeout(1200)]
N_KILLS = int(os.environ.get("CLAW_NODE_KILLS", "5" if IN_CI else "1"))


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

    def __init__(self, ray: RayCluster, folder: Path, engine: EngineProcess, python: Path, **settings: str) -> None:
        self.ray, self.folder = ray, folder
        self.ready = {"data": str(folder / "data")}
        self.node_port = free_port()
        env = {
            "CLAW_STUDIO_GATEWAYS": "1",
            "CLAW_STUDIO_API_KEY": KEY,
            "CLAW_STUDIO_PORT": "0",
            "CLAW_STUDIO_ENGINE": str(engine.base_url),
            "CLAW_STUDIO_CLUSTER_TOKEN": TOKEN,
            "CLAW_STUDIO_NODE_HOST": "node",
            "CLAW_STUDIO_NODE_PORT": str(self.node_port),
            **settings,
        }
        args = ["--data", self.ready["data"], "--hub-port", str(free_port()), "--no-pages", "--python", str(python)]
        args += ["--node-data", str(folder / "{node}"), "--pool-address", ray.address.rpartition(":")[0]]
        (self.up,) = ray.command("up", *args, env=env)
        self.http = admin(self.up["base_url"])
        wait_up(self.http, NODE)

    def kill_node(self, *, disk: bool) -> None:
        """Every process of the node at once, and its disk."""
        pids = [one["pid"] for one in nodes(self.http)[NODE]["gateways"]]
        for sign in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                os.kill(pid, sign)
        self.ray.order(kill=ADDRESS)
        if disk:
            shutil.rmtree(self.folder / NODE)

    def killed(self, *, disk: bool) -> dict[str, float]:
        """Kill the node under load and bring it back; returns all answered calls."""
        answered: dict[str, float] = {}
        places = {"node": f"http://{ADDRESS}:{self.node_port}", "pool": str(self.up["base_url"])}
        for number in range(N_KILLS):
            before = {NODE: writers(self.http, NODE)}
            callers = {place: Caller(url, f"{place}-{number}") for place, url in places.items()}
            for caller in callers.values():
                caller.start()
            for caller in callers.values():
                caller.more(30)
            self.kill_node(disk=disk)
            eventually(lambda: nodes(self.http)[NODE]["state"] == "gone")
            callers["pool"].more(30)
            self.ray.order(add=ADDRESS)
            back_s = wait_up(self.http, NODE, newer_than=before)
            callers["node"].more(5)
            for caller in callers.values():
                answered |= caller.stop()
            gap_s = max(callers["pool"].gaps_s)
            times = {"longest gap elsewhere, s": gap_s, "back after, s": back_s, "load": os.getloadavg()[0]}
            print(json.dumps({"kill": number, "answered": len(answered), **times}))
            assert gap_s <= limit_s(GAP_S)
            assert back_s <= limit_s(BACK_S)
        return answered

    def __enter__(self) -> Studio:
        return self

    def __exit__(self, *failure: object) -> None:
        # After `down` it has ended; a test that failed before leaves it.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.up["pid"], signal.SIGKILL)
        self.http.close()

    def down(self) -> None:
        """``cluster down``."""
        assert self.ray.command("down") == [{"ended": True}]
        assert not (Path(self.ready["data"]) / "owner.json").exists()


def test_nodes_are_killed_beside_a_shared_folder(
    ray_cluster: RayCluster, engine: EngineProcess, tmp_path: Path
) -> None:
    """The gateways' interpreter has no Ray, and the nodes' Ray has no studio that it could import."""
    (tmp_path / "shared").mkdir()
    target = str(tmp_path / "shared")
    with Studio(ray_cluster, tmp_path, engine, Path(sys.executable), CLAW_STUDIO_JOURNAL_TARGET=target) as studio:
        answered = studio.killed(disk=True)
        assert lost(studio.http, answered) == set()
        check_whole(studio.ready["data"], studio.http)
        listed = ray_cluster.command("status", "--data", studio.ready["data"], env={"CLAW_STUDIO_API_KEY": KEY})
        assert [one["state"] for one in listed[:-1]] == ["up"]
        studio.down()


def test_nodes_are_killed_beside_s3(
    ray_cluster: RayCluster, engine: EngineProcess, tmp_path: Path, s3: tuple[str, dict[str, Any]]
) -> None:
    """One object for each group commit; the interpreter with Ray has the client of S3 as well."""
    address, options = s3
    settings = {
        "CLAW_STUDIO_JOURNAL_TARGET": address,
        "CLAW_STUDIO_JOURNAL_TARGET_OPTIONS": json.dumps(options),
    }
    with Studio(ray_cluster, tmp_path, engine, ray_cluster.python, **settings) as studio:
        answered = studio.killed(disk=True)
        assert lost(studio.http, answered) == set()
        check_whole(studio.ready["data"], studio.http)
        studio.down()
