"""A machine that sleeps for eight hours, and a clock that is set by a day, in the middle of a service's work.

In a sleep no process runs, the clock of the day and the uptime go on, and ``CLOCK_MONOTONIC`` stands still. The test
stops all processes of the service, moves the two clocks (``clocks/sitecustomize.py``), and lets them go on.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from core.batch.leases import Fetch
from core.errors import Conflict
from core.rebuild import rebuild
from core.records import complete_record
from tests.batch.keeping_all import SFT_ALL
from tests.conftest import ServeProcess, eventually, scripted_engine
from tests.processes import children
from tests.survival.folder import GRPO, Folder

HOUR, DAY = 3600.0, 86400.0
SLOW = {"when": {"contains": "slowly"}, "reply": {"content": "one two three four five six"}, "chunk_delay_s": 0.3}
SCRIPT = {"model": "scripted-1", "rules": [SLOW], "default": {"reply": {"content": "The answer is forty-two."}}}
RECIPE = {**SFT_ALL, "batch_size": 1}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with scripted_engine(tmp_path_factory.mktemp("sleep-engine"), SCRIPT) as running:
        yield str(running.base_url)


class Machine:
    """A service whose clocks are the test's."""

    def __init__(self, serve: Callable[..., ServeProcess], engine: str, folder: Path, gateways: str) -> None:
        self._file = folder / "clocks"
        self._added = [0.0, 0.0]
        self._write()
        site = str(Path(__file__).parent / "clocks")
        env = {
            "PYTHONPATH": os.pathsep.join(filter(None, (site, os.environ.get("PYTHONPATH")))),
            "CLAW_TEST_CLOCKS": str(self._file),
            "CLAW_STUDIO_GATEWAYS": gateways,
        }
        self.service = serve(engine, folder / "data", env=env)
        self.http = self.service.http

    def _write(self) -> None:
        temporary = self._file.with_suffix(".new")
        temporary.write_text(" ".join(map(str, self._added)))
        temporary.replace(self._file)

    def sleep(self, seconds: float) -> None:
        owner = self.service.process.pid
        pids = [owner, *children(owner)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        self._added = [added + seconds for added in self._added]
        self._write()
        time.sleep(1.5)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    def set_clock(self, seconds: float) -> None:
        self._added[0] += seconds
        self._write()

    def call(self, uid: str, key: str | None = None) -> httpx.Response:
        body = {"model": "scripted-1", "messages": [{"role": "user", "content": uid}]}
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        path = "/v1/chat/completions" if key else f"/{uid}/p-{uid}/v1/chat/completions"
        return self.http.post(path, json=body, headers=headers)

    def finished(self, *uids: str) -> None:
        """Trajectories with one step each, ready for a trainer."""
        for uid in uids:
            assert self.call(uid).status_code == 200
            self.http.post(f"/complete_trajectory/{uid}", json={"reward": 1.0}).raise_for_status()
        eventually(lambda: self.http.get("/api/v1/stats").json()["n_steps"] >= len(uids))

    def key(self, uid: str, seconds: float) -> str:
        made = self.http.post("/api/v1/sessions", json={"trajectory_uid": uid, "expires_in_s": seconds})
        return str(made.json()["api_key"])

    def fetch(self, consumer: str, lease_s: float = HOUR) -> dict[str, Any]:
        body = {"consumer": consumer, "recipe": RECIPE, "lease_s": lease_s, "wait_s": 0}
        answer = self.http.post("/api/v1/batches/fetch", json=body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def is_well(self) -> bool:
        stats = self.http.get("/api/v1/stats").json()
        return self.http.get("/healthz").status_code == 200 and stats["ingest_lag_s"] == 0


@pytest.mark.parametrize("gateways", ["0", "2"])
def test_a_machine_that_sleeps(serve: Callable[..., ServeProcess], engine: str, tmp_path: Path, gateways: str) -> None:
    machine = Machine(serve, engine, tmp_path, gateways)
    machine.finished("a", "b")
    short, long = machine.key("short", HOUR), machine.key("long", DAY)
    assert machine.call("x", short).status_code == machine.call("x", long).status_code == 200
    asleep, lasting = machine.fetch("asleep"), machine.fetch("lasting", 2 * DAY)
    machine.http.post("/api/v1/policy", json={"version": 1, "event": "registered"}).raise_for_status()
    body = {"model": "scripted-1", "messages": [{"role": "user", "content": "slowly"}], "stream": True}
    with machine.http.stream("POST", "/s/p/v1/chat/completions", json=body) as stream:
        pieces = stream.iter_text()
        first = next(pieces)
        machine.http.post("/api/v1/policy", json={"version": 2, "event": "sync_started"}).raise_for_status()
        machine.sleep(8 * HOUR)
        assert "[DONE]" in first + "".join(pieces), "the call that was open is answered whole"
    # A sync has its time by the hours in which its trainer could work.
    sync = machine.http.get("/api/v1/policy").json()["sync"]
    assert sync["state"] == "running" and sync["elapsed_s"] < 100
    machine.http.post("/api/v1/policy", json={"version": 2, "event": "sync_finished"}).raise_for_status()
    # A key and a lease have theirs by the hours that have passed.
    assert (machine.call("x", short).status_code, machine.call("x", long).status_code) == (401, 200)
    renewed = machine.http.post(f"/api/v1/batches/{asleep['batch_uid']}/renew", json={"consumer": "asleep"})
    assert renewed.status_code == 409, renewed.text
    assert (
        machine.http.post(f"/api/v1/batches/{lasting['batch_uid']}/ack", json={"consumer": "lasting"}).status_code
        == 200
    )
    # Nobody was handed its groups, so what was trained in the night counts.
    assert (
        machine.http.post(f"/api/v1/batches/{asleep['batch_uid']}/ack", json={"consumer": "asleep"}).status_code == 200
    )
    eventually(machine.is_well)
    assert machine.call("after").status_code == 200
    eventually(lambda: machine.http.get("/api/v1/stats").json()["n_steps"] == 7)
    assert machine.service.stop() == 0


@pytest.mark.parametrize("days", [1.0, -1.0])
def test_a_clock_that_is_set_moves_no_lease_and_no_sync(
    serve: Callable[..., ServeProcess], engine: str, tmp_path: Path, days: float
) -> None:
    machine = Machine(serve, engine, tmp_path, "0")
    machine.finished("a", "b")
    held, short = machine.fetch("held"), machine.fetch("short", 3.0)
    machine.http.post("/api/v1/policy", json={"version": 2, "event": "sync_started"}).raise_for_status()
    machine.set_clock(days * DAY)
    sync = machine.http.get("/api/v1/policy").json()["sync"]
    assert sync["state"] == "running" and 0 <= sync["elapsed_s"] < 100
    machine.http.delete("/api/v1/policy/sync").raise_for_status()
    # No other trainer gets what one works at, and a lease that is over is over.
    again = eventually(lambda: (batch := machine.fetch("other")).get("batch_uid") and batch)
    assert again["plan_hash"] != held["plan_hash"]
    assert machine.fetch("third")["batch_uid"] is None
    for batch, consumer, status in ((held, "held", 200), (short, "short", 409), (again, "other", 200)):
        answer = machine.http.post(f"/api/v1/batches/{batch['batch_uid']}/ack", json={"consumer": consumer})
        assert answer.status_code == status, (consumer, answer.text)
    assert machine.call("after").status_code == 200
    eventually(machine.is_well)
    machine.service.kill()


def test_a_clock_that_is_set_back_keeps_the_order_of_choices(tmp_path: Path) -> None:
    """The later choice counts, whatever times both have; so after the pool is made anew."""
    folder = Folder(tmp_path / "data")
    pool = folder.pool
    pool.recipes.save("r", SFT_ALL)
    pool.recipes.save("r", {"algorithm": "grpo"})
    for name, sources in (("first", ["judge"]), ("second", ["human"])):
        pool.rewards.save(name, {"rule": "precedence", "sources": sources})
    for number, name in ((1, "first"), (2, "second")):
        pool.recipes.activate("train", "r", number)
        pool.rewards.adopt("train", name)
        folder.now -= DAY

    def in_force() -> tuple[Any, Any]:
        active = folder.pool.recipes.active("train")
        adopted = folder.pool.rewards.adopted("train")
        return active and active["version"], adopted and adopted["name"]

    assert in_force() == (2, "second")
    folder.close()
    folder.settings.pool_path.unlink()
    rebuild(folder.settings, clock=lambda: folder.now)
    folder.open()
    assert in_force() == (2, "second")
    folder.close()


def test_a_lease_that_was_handed_out_again_before_the_clock_was_set_back_is_not_acknowledged(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "data")
    for uid in ("a1", "a2"):
        folder.send(uid)
        done = complete_record(at=folder.now, trajectory_uid=uid, reward=1.0, outcome=None)
        folder.journal.append(done).result()
    folder.catch_up()
    late = folder.leases.fetch(Fetch("late", recipe=GRPO, lease_s=60)).batch
    assert late is not None
    folder.now += 61
    folder.pool.batches.expire()
    folder.now -= DAY
    again = folder.leases.fetch(Fetch("other", recipe=GRPO)).batch
    assert again is not None
    with pytest.raises(Conflict, match="handed out again"):
        folder.pool.batches.finish(late["batch_uid"], "acked")
    folder.pool.batches.finish(again["batch_uid"], "acked")
    folder.close()
