"""A machine is frozen under load, its successor takes its place, it thaws, and its disk is lost: nothing else is."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.serving.process import EngineProcess
from tests.cluster.installed import ray_python
from tests.cluster.machines import SCRIPT, Caller, Machine, check_whole, lost, wait_up, writers
from tests.cluster.test_nodes import Cluster
from tests.conftest import eventually, scripted_engine
from tests.journal.test_target import s3

__all__ = ["s3"]

pytestmark = [pytest.mark.beyond, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    with scripted_engine(tmp_path_factory.mktemp("engine"), SCRIPT) as running:
        yield running


class Successor(Machine):
    """A machine of the same name with another address and disk."""

    def __init__(self, before: Machine, address: str, folder: Path) -> None:
        hub_port = int(before._options["hub"].rpartition(":")[2])
        node_port = int(before.base_url.rpartition(":")[2])
        self.name = before.node
        super().__init__(address, folder, hub_port, node_port)

    def start(self) -> None:
        self.node = self._options["node"] = self.name
        super().start()


@pytest.mark.parametrize("target", ["shared", "store"])
def test_a_frozen_machine_and_its_successor(
    target: str,
    engine: EngineProcess,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if target == "shared":
        (tmp_path / "shared").mkdir()
        settings = {"CLAW_STUDIO_JOURNAL_TARGET": str(tmp_path / "shared")}
    else:
        # The interpreter that has the client of S3 runs studio and gateways.
        monkeypatch.setattr(sys, "executable", str(ray_python()))
        address, options = request.getfixturevalue("s3")
        settings = {
            "CLAW_STUDIO_JOURNAL_TARGET": address,
            "CLAW_STUDIO_JOURNAL_TARGET_OPTIONS": json.dumps(options),
        }
    cluster = Cluster(tmp_path, str(engine.base_url), **settings)
    frozen, other = cluster.machines
    before = {frozen.node: writers(cluster.http, frozen.node)}
    successor: Any = None
    try:
        callers = [Caller(machine.base_url, f"frozen-{machine.node}") for machine in cluster.machines]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.more(30)
        frozen.signal(signal.SIGSTOP)
        callers[1].more(30)
        successor = Successor(frozen, "127.0.0.4", tmp_path / "successor")
        wait_up(cluster.http, frozen.node, newer_than=before)
        callers.append(Caller(successor.base_url, "successor"))
        callers[-1].start()
        callers[-1].more(30)
        n_frozen = len(callers[0].answered)
        frozen.signal(signal.SIGCONT)
        # What it had in hand may still be answered; then it writes under another name or holds its calls.
        callers[1].more(30)
        frozen.lose_power()
        frozen.lose_disk()
        callers[-1].more(30)
        answered = {uid: at for caller in callers for uid, at in caller.stop().items()}
        print(json.dumps({"answered": len(answered), "by the thawed one": len(callers[0].answered) - n_frozen}))
        assert lost(cluster.http, answered) == set()
        check_whole(cluster.served.ready["data"], cluster.http)
        eventually(lambda: cluster.http.get("/api/v1/policy").json()["unreachable"] == [])
    finally:
        frozen.signal(signal.SIGCONT)
        frozen.stop()
        if successor is not None:
            successor.stop()
        other.stop()
        cluster.http.close()
        cluster.served.stop()
