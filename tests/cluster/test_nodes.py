"""Gateways on other machines, without Ray: agents are processes, each with an address and a disk of its own."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from core.journal import Watermarks
from core.serving.process import EngineProcess
from tests.cluster.machines import (
    BACK_S,
    GAP_S,
    SCRIPT,
    Caller,
    Machine,
    admin,
    check_whole,
    cluster_settings,
    free_port,
    limit_s,
    lost,
    nodes,
    wait_up,
    writers,
)
from tests.conftest import ServeProcess, eventually, scripted_engine

pytestmark = pytest.mark.beyond
ADDRESSES = ("127.0.0.2", "127.0.0.3")
QUESTION = {"model": "scripted-1", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    with scripted_engine(tmp_path_factory.mktemp("engine"), SCRIPT) as running:
        yield running


class Cluster:
    """A studio and two machines."""

    def __init__(self, folder: Path, engine: str, **settings: str) -> None:
        hub_port, node_port = free_port(), free_port()
        env = cluster_settings(hub_port, node_port, **settings)
        self.served = ServeProcess(folder / "data", engine, env=env)
        self.http = admin(self.served.base_url)
        self.machines = [Machine(address, folder, hub_port, node_port) for address in ADDRESSES]
        wait_up(self.http, *(machine.node for machine in self.machines))

    def close(self) -> int:
        for machine in self.machines:
            machine.stop()
        self.http.close()
        return self.served.stop()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, engine: EngineProcess) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"), str(engine.base_url))
    yield made
    assert made.close() == 0


def call(http: httpx.Client, text: str, trajectory: str, history: list[dict[str, Any]]) -> dict[str, Any]:
    messages = [*history, {"role": "user", "content": text}]
    answer = http.post(
        "/v1/chat/completions",
        json={"model": "scripted-1", "messages": messages},
        headers={"X-Trajectory-Uid": trajectory, "X-Prompt-Uid": f"group-{trajectory}"},
    )
    assert answer.status_code == 200, answer.text
    history[:] = [*messages, answer.json()["choices"][0]["message"]]
    return {"uid": answer.headers["x-step-uid"], "text": text}


def test_turns_at_changing_nodes_are_one_trajectory(cluster: Cluster) -> None:
    """Each turn continues an answer that another machine gave: parents and order are those of one machine."""
    places = [cluster.served.base_url, *(machine.base_url for machine in cluster.machines)]
    clients = [admin(place) for place in places]
    turns: dict[str, list[str]] = {}
    for number in range(4):
        history: list[dict[str, Any]] = []
        uid = f"walk-{number}"
        turns[uid] = [call(clients[(turn + number) % 3], f"{uid} {turn}", uid, history)["uid"] for turn in range(5)]
    for uid, steps in turns.items():

        def stored(uid: str = uid, steps: list[str] = steps) -> list[dict[str, Any]] | None:
            answer = cluster.http.get(f"/api/v1/trajectories/{uid}")
            found = answer.json()["steps"] if answer.status_code == 200 else []
            return found if len(found) == len(steps) else None

        found = eventually(stored)
        assert [one["step_uid"] for one in found] == steps
        assert [one["step_index"] for one in found] == list(range(5))
        assert [one["transition"] for one in found[1:]] == ["extends"] * 4, found
        parents = [cluster.http.get(f"/api/v1/steps/{one}").json()["parent_step_uid"] for one in steps]
        assert parents == [None, *steps[:-1]]
    check_whole(cluster.served.ready["data"], cluster.http)


def test_segments_here_are_those_of_the_nodes_byte_for_byte(cluster: Cluster) -> None:
    here = Path(cluster.served.ready["data"]) / "journal"
    for machine in cluster.machines:
        with admin(machine.base_url) as http:
            assert http.post("/v1/chat/completions", json=QUESTION).status_code == 200
        there = {path.name: path.read_bytes() for path in (machine.disk / "journal").glob("*.seg")}
        assert there
        eventually(
            lambda there=there: there == {name: (here / name).read_bytes() for name in there if (here / name).exists()}
        )
    assert {name.rpartition(".")[0] for name in Watermarks(here).read()} == {
        f"node.{machine.node}.g1" for machine in cluster.machines
    }


def test_other_requests_reach_the_studio_through_a_node(cluster: Cluster) -> None:
    with admin(cluster.machines[0].base_url) as http:
        assert {one["node"] for one in http.get("/api/v1/cluster").json()["cluster"]["nodes"]} == {
            machine.node for machine in cluster.machines
        }
        assert http.get("/api/v1/stats", headers={"Authorization": "Bearer wrong"}).status_code == 401


def test_changes_are_in_force_on_all_nodes_when_their_call_returns(cluster: Cluster) -> None:
    made = cluster.http.post("/api/v1/sessions", json={"trajectory_uid": "keyed"}).json()
    session = {"Authorization": f"Bearer {made['api_key']}"}
    for machine in cluster.machines:
        answer = httpx.post(f"{machine.base_url}/v1/chat/completions", json=QUESTION, headers=session, timeout=60)
        assert answer.status_code == 200, answer.text
    reported = cluster.http.post("/api/v1/policy", json={"version": 7, "event": "sync_finished"}).json()
    assert reported["unreachable"] == []
    for machine in cluster.machines:
        with admin(machine.base_url) as http:
            step = http.post("/v1/chat/completions", json=QUESTION).headers["x-step-uid"]
        assert lost(cluster.http, {step: 0.0}) == set()
        stored = cluster.http.get(f"/api/v1/steps/{step}").json()
        assert (stored["policy_version"], stored["policy_version_end"]) == (7, 7)
    revoked = cluster.http.delete(f"/api/v1/sessions/{made['trajectory_uid']}").json()
    assert revoked["unreachable"] == []
    for machine in cluster.machines:
        answer = httpx.post(f"{machine.base_url}/v1/chat/completions", json=QUESTION, headers=session, timeout=60)
        assert answer.status_code == 401


@pytest.mark.parametrize("what", ["the agent", "the machine"])
def test_an_unreachable_node_is_named_and_takes_no_call_before_it_has_the_change(cluster: Cluster, what: str) -> None:
    """With its agent stopped, the gateway runs and hears nothing: that is a network that is cut."""
    cut = cluster.machines[1]
    made = cluster.http.post("/api/v1/sessions", json={"trajectory_uid": f"cut-{what[-5:]}"}).json()
    session = {"Authorization": f"Bearer {made['api_key']}"}
    url = f"{cut.base_url}/v1/chat/completions"
    assert httpx.post(url, json=QUESTION, headers=session, timeout=60).status_code == 200
    stopped = [cut.agent.pid] if what == "the agent" else cut.processes
    cut.signal(signal.SIGSTOP, *stopped)
    try:
        revoked = cluster.http.delete(f"/api/v1/sessions/{made['trajectory_uid']}").json()
        assert revoked["unreachable"] == [cut.node]
        with admin(cluster.machines[0].base_url) as http:
            assert http.post("/v1/chat/completions", json=QUESTION).status_code == 200
        with ThreadPoolExecutor(1) as threads:
            late = threads.submit(httpx.post, url, json=QUESTION, headers=session, timeout=120)
            eventually(lambda: nodes(cluster.http)[cut.node]["state"] == "unreachable")
            cut.signal(signal.SIGCONT, *stopped)
            assert late.result(120).status_code in (401, 503)
    finally:
        cut.signal(signal.SIGCONT, *stopped)
    wait_up(cluster.http, cut.node)
    eventually(lambda: httpx.post(url, json=QUESTION, headers=session, timeout=60).status_code == 401)
    eventually(lambda: cluster.http.get("/api/v1/policy").json()["unreachable"] == [])


def test_a_machine_is_lost_under_load(cluster: Cluster) -> None:
    """Its disk comes back: nothing is lost, nothing is there twice, and the other node goes on."""
    before = {machine.node: writers(cluster.http, machine.node) for machine in cluster.machines}
    callers = [Caller(machine.base_url, f"load-{machine.node}") for machine in cluster.machines]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.more(30)
    victim = cluster.machines[0]
    victim.lose_power()
    callers[1].more(30)
    victim.start()
    back_s = wait_up(cluster.http, victim.node, newer_than=before)
    callers[0].more(10)
    answered = {uid: at for caller in callers for uid, at in caller.stop().items()}
    gap_s = max(callers[1].gaps_s)
    print(json.dumps({"answered": len(answered), "longest gap of the other node": gap_s, "back after": back_s}))
    assert gap_s <= limit_s(GAP_S)
    assert back_s <= limit_s(BACK_S)
    assert lost(cluster.http, answered) == set()
    check_whole(cluster.served.ready["data"], cluster.http)


def test_a_disk_that_is_lost_costs_no_more_than_was_at_risk(cluster: Cluster) -> None:
    """What the node answered after the time up to which the stats say all is here."""
    victim = cluster.machines[1]
    before = {victim.node: writers(cluster.http, victim.node)}
    caller = Caller(victim.base_url, "at-risk")
    caller.start()
    caller.more(30)
    victim.lose_power()
    victim.lose_disk()
    answered = caller.stop()
    since = eventually(lambda: (one := nodes(cluster.http)[victim.node])["state"] != "up" and one)["at_risk_since"]
    missing = lost(cluster.http, {uid: at for uid, at in answered.items() if at < since})
    assert missing == set()
    missing = lost(cluster.http, answered, patience_s=2.0)
    print(json.dumps({"answered": len(answered), "lost": len(missing)}))
    assert all(answered[uid] >= since for uid in missing)
    victim.start()
    wait_up(cluster.http, victim.node, newer_than=before)
    check_whole(cluster.served.ready["data"], cluster.http)


def test_the_studio_is_killed_and_nodes_come_back_by_themselves(cluster: Cluster, engine: EngineProcess) -> None:
    before = {machine.node: writers(cluster.http, machine.node) for machine in cluster.machines}
    callers = [Caller(machine.base_url, f"again-{machine.node}") for machine in cluster.machines]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.more(20)
    served = cluster.served
    environment = {
        name: value
        for entry in Path(f"/proc/{served.process.pid}/environ").read_text().split("\0")
        for name, _, value in [entry.partition("=")]
        if name.startswith("CLAW_STUDIO_")
    }
    served.kill()
    cluster.served = ServeProcess(Path(served.ready["data"]), str(engine.base_url), env=environment)
    cluster.http = admin(cluster.served.base_url)
    wait_up(cluster.http, *before, newer_than=before)
    for caller in callers:
        caller.more(5)
    answered = {uid: at for caller in callers for uid, at in caller.stop().items()}
    assert lost(cluster.http, answered) == set()
    check_whole(cluster.served.ready["data"], cluster.http)


def test_metrics_count_machines_gateways_and_restarts(cluster: Cluster) -> None:
    """As Prometheus' own parser reads them, against processes that were killed and stopped."""

    def metric(name: str, **labels: str) -> float | None:
        families = text_string_to_metric_families(cluster.http.get("/metrics").text)
        samples = [one for family in families for one in family.samples if one.name == name and one.labels == labels]
        return samples[0].value if samples else None

    victim = cluster.machines[0]
    eventually(lambda: metric("claw_gateways", state="up") == 3 and metric("claw_nodes", state="up") == 2)
    assert metric("claw_node_at_risk_bytes", node=victim.node) is not None
    n_before = metric("claw_gateway_restarts_total", node=victim.node)
    assert n_before is not None
    (pid,) = [one["pid"] for one in nodes(cluster.http)[victim.node]["gateways"]]
    victim.signal(signal.SIGKILL, pid)
    eventually(lambda: metric("claw_gateway_restarts_total", node=victim.node) == n_before + 1)
    eventually(lambda: metric("claw_gateways", state="up") == 3)
    victim.signal(signal.SIGSTOP)
    try:
        eventually(lambda: metric("claw_nodes", state="unreachable") == 1 and metric("claw_nodes", state="up") == 1)
        cluster.http.post("/api/v1/policy", json={"version": 9, "event": "sync_finished"})
        assert metric("claw_nodes_without_last_change") == 1
        at_risk_s = eventually(lambda: metric("claw_node_at_risk_seconds", node=victim.node))
        eventually(lambda: metric("claw_node_at_risk_seconds", node=victim.node) > at_risk_s + 1)
    finally:
        victim.signal(signal.SIGCONT)
    wait_up(cluster.http, victim.node)
    eventually(lambda: metric("claw_nodes_without_last_change") == 0)


def test_a_stranger_is_refused(cluster: Cluster) -> None:
    status = cluster.http.get("/api/v1/cluster").json()["cluster"]
    host, _, port = status["address"].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as conn:
        conn.sendall(b'{"hello": "node", "token": "guess", "node": "x"}\n')
        assert "token" in json.loads(conn.makefile("rb").readline())["refused"]
    assert "x" not in nodes(cluster.http)
