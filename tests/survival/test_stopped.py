"""Processes that are stopped with SIGSTOP and go on later: each caller gets its answer or a typed error.

The reference is what each client was answered: every answered call is in the pool once, and so is every label. A
stopped process keeps its sockets open, so callers can't see that it is stopped.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from core.config import Settings
from core.service import Service
from core.serving.process import EngineProcess
from core.workers import fleet as fleet_module
from core.workers import process as process_module
from tests.conftest import ServeProcess, eventually, scripted_engine
from tests.left_out import only_in_ci
from tests.processes import children, gateway_workers, query_processes

SCRIPT = {"model": "scripted-1", "default": {"reply": {"content": "The answer is forty-two."}, "delay_s": 0.1}}
LONG = only_in_ci("stops processes for half a minute")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    with scripted_engine(tmp_path_factory.mktemp("stopped-engine"), SCRIPT) as running:
        yield running


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


class Callers:
    """Agents and a labeller, each with connections that it keeps and new ones; what each of them was answered."""

    def __init__(self, base_url: str, engine: EngineProcess, n: int = 6) -> None:
        self.base_url = base_url
        self.answered: dict[str, str] = {}
        self.labels: list[str] = []
        self.failures: list[str] = []
        self.broken: list[str] = []
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._calls, args=(number,)) for number in range(n)]
        self._threads.append(threading.Thread(target=self._labels))
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join(180)
            assert not thread.is_alive(), "a caller still waits"

    def _calls(self, number: int) -> None:
        turn = 0
        with httpx.Client(base_url=self.base_url, timeout=120) as kept:
            while not self._ending.is_set():
                turn += 1
                text = f"agent {number} turn {turn}"
                body = {"model": "scripted-1", "messages": [{"role": "user", "content": text}], "stream": turn % 2 == 0}
                path = f"/agent-{number}-{turn}/p/v1/chat/completions"
                answer = self._ask(lambda: kept if number % 2 else httpx, path, body)
                if answer is not None and answer.status_code == 200:
                    if ("[DONE]" if body["stream"] else "forty-two") not in answer.text:
                        self.broken.append(f"{path}: {answer.text[-200:]}")
                    self.answered[text] = answer.headers["x-step-uid"]

    def _labels(self) -> None:
        turn = 0
        while not self._ending.is_set():
            turn += 1
            label = {"kind": "tag", "value": f"tag{turn}", "target": {"trajectory_uid": "labelled"}, "author": "ann"}
            answer = self._ask(lambda: httpx, "/api/v1/annotations", {"annotations": [label]})
            if answer is not None and answer.status_code == 200:
                self.labels.append(f"tag{turn}")
            self._ending.wait(0.1)

    def _ask(self, client: Callable[[], Any], path: str, body: Any) -> httpx.Response | None:
        url = path if client() is not httpx else self.base_url + path
        try:
            answer: httpx.Response = client().post(url, json=body, timeout=120)
        except httpx.HTTPError as error:
            self.broken.append(f"{path}: {error!r}")
            return None
        if answer.status_code != 200:
            # An error of ours has its message in every dialect.
            assert "message" in answer.text, answer.text
            self.failures.append(f"{answer.status_code} {answer.text[:200]}")
        return answer


@pytest.mark.parametrize(
    ("gateways", "who", "stopped_s"),
    [
        *(("2", who, 2) for who in ("worker", "all")),
        *(pytest.param("0", who, 30, marks=LONG) for who in ("owner", "engine", "all")),
        *(pytest.param("2", who, 30, marks=LONG) for who in ("worker", "owner", "all")),
    ],
)
def test_a_stop_loses_and_doubles_nothing(
    serve: Callable[..., ServeProcess], engine: EngineProcess, gateways: str, who: str, stopped_s: float
) -> None:
    service = serve(str(engine.base_url), env={"CLAW_STUDIO_GATEWAYS": gateways})
    step = {"step_uid": "l", "step_index": 0, "trajectory_uid": "labelled", "prompt_ids": [1], "response_ids": [2]}
    service.http.post("/api/v1/steps", json={"steps": [step]}).raise_for_status()
    owner = service.process.pid
    pids = {"owner": [owner], "engine": [engine.pid], "worker": gateway_workers(owner)[:1]}.get(who)
    callers = Callers(service.base_url, engine)
    try:
        eventually(lambda: len(callers.answered) > 12 and callers.labels)
        with stopped(*(pids or [owner, *children(owner), engine.pid])):
            time.sleep(stopped_s)
        before = len(callers.answered)
        eventually(lambda: len(callers.answered) > before + 12)
    finally:
        callers.end()
    assert callers.broken == []
    assert callers.failures == []

    def steps() -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        cursor = None
        while True:
            query = {"limit": 500, **({"cursor": cursor} if cursor else {})}
            page = service.http.get("/api/v1/steps", params=query).json()
            rows += page["steps"]
            cursor = page["next_cursor"]
            if not cursor:
                return [row for row in rows if row["trajectory_uid"].startswith("agent-")]

    eventually(lambda: set(callers.answered.values()) <= {row["step_uid"] for row in steps()})
    stored = Counter(row["trajectory_uid"] for row in steps())
    # Each call has a trajectory of its own: one that was recorded twice is two steps of it.
    assert set(stored.values()) == {1}
    assert len(stored) == len(callers.answered)
    assert sorted(service.http.get("/api/v1/trajectories/labelled").json()["tags"]) == sorted(callers.labels)
    counted = service.http.post("/api/v1/sql", json={"sql": "SELECT count(*) FROM annotations"}).json()
    assert counted["rows"] == [[len(callers.labels)]]
    assert service.http.get("/healthz").status_code == 200
    assert service.stop() == 0


@LONG
def test_a_worker_that_was_stopped_serves_nothing_by_what_it_knew_before(
    serve: Callable[..., ServeProcess], engine: EngineProcess
) -> None:
    """Calls that wait at a stopped worker come after what was answered meanwhile: a revoked key, new weights."""
    service = serve(str(engine.base_url), env={"CLAW_STUDIO_GATEWAYS": "2"})
    body = {"model": "scripted-1", "messages": [{"role": "user", "content": "hi"}]}

    def admin(method: str, path: str, **fields: Any) -> None:
        """Over connections that the other worker gets."""
        while True:
            try:
                httpx.request(method, service.base_url + path, timeout=10, **fields).raise_for_status()
            except httpx.TimeoutException:
                continue
            return

    for version in (1, 2):
        keys = [
            service.http.post("/api/v1/sessions", json={"trajectory_uid": f"{name}-{version}"}).json()["api_key"]
            for name in ("revoked", "kept")
        ]
        outcomes: list[tuple[int, int]] = []

        def call(which: int, keys: list[str] = keys, outcomes: list[tuple[int, int]] = outcomes) -> None:
            headers = {"Authorization": f"Bearer {keys[which]}"}
            url = f"{service.base_url}/v1/chat/completions"
            outcomes.append((which, httpx.post(url, json=body, headers=headers, timeout=120).status_code))

        threads = [threading.Thread(target=call, args=(number % 2,)) for number in range(40)]
        with stopped(gateway_workers(service.process.pid)[0]):
            admin("DELETE", f"/api/v1/sessions/revoked-{version}")
            admin("POST", "/api/v1/policy", json={"version": version, "event": "registered"})
            for thread in threads:
                thread.start()
            # Those of the other worker are answered; the others wait at the stopped one.
            eventually(lambda done=outcomes: len(done) >= 4)
            time.sleep(0.5)
            assert len(outcomes) < 40
        for thread in threads:
            thread.join(120)
        assert Counter(outcomes) == {(0, 401): 20, (1, 200): 20}
        url = f"/api/v1/trajectories/kept-{version}"
        eventually(lambda url=url: len(service.http.get(url).json().get("steps", ())) == 20)
        assert {step["policy_version"] for step in service.http.get(url).json()["steps"]} == {version}
    assert service.stop() == 0


def test_a_worker_that_hangs_is_told_and_replaced(
    tmp_path: Path, engine: EngineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "SILENT_LOOKS", 6)
    monkeypatch.setattr(fleet_module, "HUNG_LOOKS", 14)
    service = Service.open(Settings(data_dir=tmp_path, port=0, gateways=2, engine=str(engine.base_url)))
    try:
        assert service.problems() == []
        assert service.fleet is not None
        pid = service.fleet.pids()["g1"]
        os.kill(pid, signal.SIGSTOP)
        (problem,) = eventually(lambda: [one for one in service.problems() if one["part"] == "gateway"])
        assert str(pid) in problem["message"] and problem["stops"]
        eventually(lambda: service.fleet.pids().get("g1", pid) != pid)
        eventually(lambda: not [one for one in service.problems() if one["stops"]])
        assert service.fleet.restarts.total() == 1
    finally:
        service.close()


@LONG
def test_an_owner_that_was_stopped_blames_no_worker(serve: Callable[..., ServeProcess], engine: EngineProcess) -> None:
    """It could not hear them: their signs of life are counted by its own looks, not by the clock."""
    service = serve(str(engine.base_url), env={"CLAW_STUDIO_GATEWAYS": "2"})
    before = gateway_workers(service.process.pid)
    with stopped(service.process.pid):
        time.sleep(process_module.SILENT_LOOKS * 0.5 + 3)
    assert service.http.get("/healthz").status_code == 200
    assert gateway_workers(service.process.pid) == before
    assert service.stop() == 0


def test_time_in_which_a_server_was_stopped_is_not_its_clients(
    serve: Callable[..., ServeProcess], engine: EngineProcess
) -> None:
    """Half a head, half a body and an idle connection, each continued while the server is stopped for longer than
    it would wait for them."""
    limits = {"HEADER": "2", "BODY": "2", "IDLE": "2"}
    env = {f"CLAW_STUDIO_{name}_TIMEOUT_S": seconds for name, seconds in limits.items()}
    service = serve(str(engine.base_url), env=env)
    parts = urlsplit(service.base_url)
    assert parts.port is not None
    body = json.dumps({"model": "scripted-1", "messages": [{"role": "user", "content": "hi"}]}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    whole = head + body
    socks = [socket.create_connection(("127.0.0.1", parts.port), timeout=60) for _ in range(3)]
    cuts = (20, len(head) + 10, 0)
    for sock, cut in zip(socks, cuts, strict=True):
        sock.sendall(whole[:cut])
    time.sleep(0.3)
    with stopped(service.process.pid, *children(service.process.pid)):
        for sock, cut in zip(socks, cuts, strict=True):
            sock.sendall(whole[cut:-1])
        time.sleep(4)
    # Nor is it when the last byte comes a moment after.
    time.sleep(0.2)
    for sock in socks:
        sock.sendall(whole[-1:])
        assert sock.recv(1 << 16).startswith(b"HTTP/1.1 200 "), "the client was on time"
        sock.close()
    assert service.stop() == 0


def test_a_query_process_that_is_stopped_is_replaced(serve: Callable[..., ServeProcess], engine: EngineProcess) -> None:
    service = serve(str(engine.base_url))

    def ask() -> httpx.Response:
        return service.http.post("/api/v1/sql", json={"sql": "SELECT 41 + 1", "timeout_s": 2})

    assert ask().status_code == 200
    before = set(query_processes(service.process.pid))
    assert before
    for pid in before:
        os.kill(pid, signal.SIGSTOP)
    refused = ask()
    assert refused.status_code == 422 and "2 seconds" in refused.json()["message"], refused.text
    assert ask().status_code == 200
    assert not before & set(query_processes(service.process.pid))
    assert service.stop() == 0


@only_in_ci("waits for processes that do not end")
def test_a_stop_ends_what_is_stopped(serve: Callable[..., ServeProcess], engine: EngineProcess) -> None:
    service = serve(str(engine.base_url), env={"CLAW_STUDIO_GATEWAYS": "2"})
    pids = gateway_workers(service.process.pid)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    service.process.terminate()
    try:
        service.process.wait(100)
    except subprocess.TimeoutExpired:
        raise AssertionError("it waits for a process that is stopped") from None
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
