"""Several gateway processes are one gateway: to agents, to trainers, to whoever kills one of them."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from core.journal import read_records
from core.records import parse
from core.serving.process import EngineProcess
from core.tasks.demo import demo_script_path
from tests.conftest import ServeProcess, eventually
from tests.processes import gateway_workers

TWO = {"CLAW_STUDIO_GATEWAYS": "2"}


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    process = EngineProcess.start("scripted", args=["--script", str(demo_script_path())]).wait_ready()
    assert process.base_url is not None
    yield process.base_url
    process.stop()


def call(service: ServeProcess, text: str = "hi", **headers: str) -> httpx.Response:
    """A model call over a connection of its own, so that either worker may get it."""
    body = {"model": "demo", "messages": [{"role": "user", "content": text}]}
    return httpx.post(f"{service.base_url}/v1/chat/completions", json=body, headers=headers, timeout=30)


def call_both(service: ServeProcess, **headers: str) -> list[httpx.Response]:
    """Enough calls that neither worker can have been left out."""
    return [call(service, f"call {number}", **headers) for number in range(16)]


def writers(data: Path) -> set[str]:
    return {record.segment.split("-")[0] for record in read_records(data / "journal", {})}


def stats(service: ServeProcess) -> dict[str, Any]:
    return service.http.get("/api/v1/stats").json()


def samples(service: ServeProcess) -> list[Any]:
    families = text_string_to_metric_families(service.http.get("/metrics").text)
    return [sample for family in families for sample in family.samples]


def test_all_that_one_process_does_several_do(serve: Callable[..., ServeProcess], engine: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    service = serve(engine, data, env=TWO)
    assert {answer.status_code for answer in call_both(service)} == {200}
    eventually(lambda: stats(service)["n_steps"] == 16)
    assert writers(data) == {"g1", "g2"}
    assert eventually(lambda: (counts := stats(service))["n_calls"] == 16 and counts["engines"][0]["n_calls"] == 16)
    assert stats(service)["journal_bytes"] == sum(path.stat().st_size for path in (data / "journal").glob("*.seg"))

    values = {sample.name: sample.value for sample in samples(service) if not sample.labels}
    assert values["claw_calls_total"] == values["claw_steps"] == values["claw_call_seconds_count"] == 16
    assert values["claw_dropped_total"] == 0
    by_engine = [sample for sample in samples(service) if sample.name == "claw_engine_calls_total"]
    assert [(sample.labels, sample.value) for sample in by_engine] == [({"engine": "engine"}, 16)]

    # A key holds everywhere once it is given out, and nowhere once it is taken back.
    session = service.http.post("/api/v1/sessions", json={"trajectory_uid": "t-key"}).json()
    assert session["base_url"].startswith(service.base_url)
    bearer = {"Authorization": f"Bearer {session['api_key']}"}
    assert {answer.headers["x-trajectory-uid"] for answer in call_both(service, **bearer)} == {"t-key"}
    assert service.http.delete("/api/v1/sessions/t-key").status_code == 200
    assert {answer.status_code for answer in call_both(service, **bearer)} == {401}

    # A weight sync holds calls at every worker, and every worker stamps the new version.
    service.http.post("/api/v1/policy", json={"version": 4, "event": "sync_started"})
    assert service.http.get("/readyz").status_code == 503
    answers: list[httpx.Response] = []
    threads = [threading.Thread(target=lambda: answers.append(call(service, **{"X-Agent": "held"}))) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert not answers
    service.http.post("/api/v1/policy", json={"version": 4, "event": "sync_finished"})
    for thread in threads:
        thread.join()
    assert {answer.status_code for answer in answers} == {200}
    held = eventually(lambda: len(rows := steps(service, "agent = 'held'")) == 8 and rows)
    assert {step["policy_version"] for step in held} == {4}

    # What workers pass on: unknown calls, wrong methods, long bodies.
    assert service.http.get("/nothing").json()["type"] == "not_found"
    assert service.http.delete("/v1/messages").status_code == 405
    submitted = [{"trajectory_uid": "long", "step_index": n, "response_ids": [1] * 100_000} for n in range(8)]
    assert service.http.post("/api/v1/steps", json={"steps": submitted}).status_code == 200
    assert len(service.http.get("/api/v1/trajectories/long").json()["steps"]) == 8
    assert service.stop() == 0


def steps(service: ServeProcess, where: str) -> list[dict[str, Any]]:
    return service.http.get("/api/v1/steps", params={"where": where, "limit": 1000}).json()["steps"]


def test_a_worker_that_is_killed_takes_no_answered_call_with_it(
    serve: Callable[..., ServeProcess], engine: str, tmp_path: Path
) -> None:
    service = serve(engine, env=TWO)
    answered: list[str] = []
    stopping = threading.Event()

    def agent(number: int) -> None:
        while not stopping.is_set():
            try:
                answer = call(service, f"agent {number}")
            except httpx.HTTPError:
                continue
            if answer.status_code == 200:
                answered.append(answer.headers["x-step-uid"])

    agents = [threading.Thread(target=agent, args=(number,)) for number in range(4)]
    for thread in agents:
        thread.start()
    for _ in range(2):
        n_before = len(answered)
        eventually(lambda n=n_before: len(answered) > n + 20)
        before = gateway_workers(service.process.pid)
        assert len(before) == 2
        os.kill(before[0], signal.SIGKILL)
        eventually(lambda old=before: len(now := gateway_workers(service.process.pid)) == 2 and old[0] not in now)
    n_before = len(answered)
    eventually(lambda: len(answered) > n_before + 20)
    stopping.set()
    for thread in agents:
        thread.join()

    def stored() -> set[str]:
        return {step["step_uid"] for step in steps(service, "")}

    eventually(lambda: set(answered) <= stored(), timeout_s=30)
    # Both take calls again.
    eventually(lambda: {answer.status_code for answer in call_both(service)} == {200})
    assert stats(service)["n_dropped"] == 0
    assert service.stop() == 0


def test_workers_do_not_outlive_their_owner(serve: Callable[..., ServeProcess], engine: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    service = serve(engine, data, env=TWO)
    answered = {answer.headers["x-step-uid"] for answer in call_both(service)}
    workers = gateway_workers(service.process.pid)
    service.kill()
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), timeout_s=30)
    again = serve(engine, data)
    eventually(lambda: answered <= {step["step_uid"] for step in steps(again, "")})
    stored = {parse(record.payload).get("step_uid") for record in read_records(data / "journal", {})}
    assert answered <= stored


def test_a_port_that_is_taken_is_named(engine: str, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(AssertionError, match="ended with 2"):
            ServeProcess(tmp_path / "data", engine, env=TWO, port=taken.getsockname()[1])
