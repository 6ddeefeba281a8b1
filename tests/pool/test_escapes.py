"""Ways out of the SQL console and the WHERE box, tried on a running service; the operating system says what came of it.

Planted files and variables must not come back, no file may appear, the memory of the service and of what it started
stays bounded, each answer comes in time, and other callers are answered meanwhile.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from core.serving.process import EngineProcess
from tests.conftest import ServeProcess, eventually
from tests.effort import sampled
from tests.processes import children, query_processes

from .escapes import BOMBS, OUTSIDE, WHERE

CANARY = "canary-7f3a9c"
MAX_GROWTH = 700 << 20
"""Of the service's own process."""
MAX_OTHER_MEMORY = 5 << 30
"""Of the processes for queries together, files they have mapped included."""
N_LONG = 10_000
"""Steps whose condition runs when the service is told to end."""
MAX_S = 45.0
"""A generous time for an answer to a query that may take one second, on a machine that is busy."""


class Watch(threading.Thread):
    """Looks at the service from outside: memory, and whether another caller is answered."""

    def __init__(self, process: psutil.Process, base_url: str) -> None:
        super().__init__(daemon=True)
        self.process, self.base_url = process, base_url
        self.done = threading.Event()
        self.own = self.beside = self.n_calls = 0
        self.slowest_s = 0.0
        self.wrong: list[str] = []

    def run(self) -> None:
        """Until ``done``."""
        with httpx.Client(base_url=self.base_url, timeout=MAX_S) as http:
            while not self.done.wait(0.1):
                self.own = max(self.own, self.process.memory_info().rss)
                self.beside = max(self.beside, sum(map(resident, self.process.children(recursive=True))))
                began = time.monotonic()
                try:
                    status = http.get("/api/v1/steps?limit=1").status_code
                except httpx.HTTPError as error:
                    self.wrong.append(repr(error))
                    continue
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)
                self.n_calls += 1
                if status != 200:
                    self.wrong.append(f"status {status}")


def resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("escapes")
    planted = folder / "planted"
    planted.mkdir()
    (planted / "canary.csv").write_text(f"canary\n{CANARY}\n")
    return folder


@pytest.fixture(scope="module")
def studio(folder: Path) -> Iterator[ServeProcess]:
    script = folder / "script.json"
    script.write_text('{"rules": [{"reply": {"content": "well"}}]}')
    with EngineProcess.start("scripted", args=["--script", script]) as engine:
        assert engine.base_url
        process = ServeProcess(folder / "data", engine.base_url, env={"CANARY": CANARY})
        steps = [
            {"trajectory_uid": f"t{i // 10}", "step_index": i % 10, "prompt_ids": [1], "response_ids": [2],
             "messages": [{"role": "user", "content": "go"}], "agent": "a" * 60,
             "response_message": {"role": "assistant", "content": "a" * 500}}
            for i in range(500)
        ]  # fmt: skip
        assert process.http.post("/api/v1/steps", json={"steps": steps}).status_code == 200
        # Texts as long as somebody likes: what a condition makes of each is made of thousands of them at a time.
        long = {"error": "x" * 20_000, "model": "m" * 20_000, "status": "error"}
        steps = [{**step, **long, "trajectory_uid": f"long{i}"} for i, step in enumerate(steps)]
        assert process.http.post("/api/v1/steps", json={"steps": steps}).status_code == 200
        yield process
        assert process.stop() == 0


@pytest.fixture(scope="module", autouse=True)
def watch(studio: ServeProcess) -> Iterator[Watch]:
    assert studio.http.post("/api/v1/sql", json={"sql": "SELECT count(*) FROM step_state"}).status_code == 200
    process = psutil.Process(studio.process.pid)
    before = process.memory_info().rss
    watch = Watch(process, studio.base_url)
    watch.start()
    yield watch
    watch.done.set()
    watch.join()
    assert watch.own - before < MAX_GROWTH
    assert watch.beside < MAX_OTHER_MEMORY
    assert watch.wrong == []
    assert watch.n_calls > 20
    assert watch.slowest_s < MAX_S


def filled(text: str, folder: Path) -> str:
    planted = folder / "planted"
    names = {"file": planted / "canary.csv", "out": planted / "out", "folder": planted}
    for name, path in {**names, "pool": folder / "data" / "pool.duckdb"}.items():
        text = text.replace("{" + name + "}", str(path))
    return text


def listed(folder: Path) -> set[str]:
    """Files in reach; the service's own, which it writes on its own account, by their folder only."""
    own = folder / "data"
    return {str(path) for path in [*folder.rglob("*"), *Path.cwd().glob("*"), *Path("/").glob("*")]
            if own not in path.parents}  # fmt: skip


def held(answer: httpx.Response, began: float) -> None:
    assert time.monotonic() - began < MAX_S
    assert answer.status_code in (200, 422), answer.text[:300]
    assert CANARY not in answer.text
    if answer.status_code == 422:
        error = answer.json().get("error", answer.json())
        assert error["type"] == "invalid_input"
        assert "Traceback" not in answer.text
    else:
        assert len(answer.content) < 200 << 20


def post_sql(studio: ServeProcess, text: str) -> httpx.Response:
    return studio.http.post("/api/v1/sql", json={"sql": text, "timeout_s": 1.0, "limit": 1000}, timeout=120)


def test_there_are_two_hundred() -> None:
    assert len({*OUTSIDE, *BOMBS, *WHERE}) >= 200


def test_no_way_out(studio: ServeProcess, folder: Path) -> None:
    before, answered = listed(folder), []
    for text in OUTSIDE:
        began = time.monotonic()
        answer = post_sql(studio, filled(text, folder))
        held(answer, began)
        if answer.status_code != 422:
            answered.append(text[:100])
    assert answered == []
    assert listed(folder) == before


@pytest.mark.parametrize("text", sampled(BOMBS, 5, "a second of all cores each"), ids=lambda text: text[:60])
def test_no_query_takes_more_than_its_share(studio: ServeProcess, folder: Path, text: str) -> None:
    before = listed(folder)
    began = time.monotonic()
    answer = post_sql(studio, text)
    held(answer, began)
    if answer.status_code == 200:
        assert len(answer.json()["rows"]) <= 1000
    assert listed(folder) == before


def test_no_condition_takes_more_than_its_share(studio: ServeProcess, folder: Path) -> None:
    before = listed(folder)
    for text in WHERE:
        began = time.monotonic()
        body = {"filters": {}, "where": filled(text, folder)}
        held(studio.http.put("/api/v1/views/mine", json=body, timeout=120), began)
        if len(text) < 5000:
            held(studio.http.get("/api/v1/steps", params={"where": filled(text, folder)}, timeout=120), began)
    assert listed(folder) == before


def test_a_stop_does_not_wait_for_queries(folder: Path) -> None:
    """Two queries and conditions run when the service is told to end."""
    process = ServeProcess(folder / "other", "http://127.0.0.1:9/v1")
    # A pattern that has to be followed from every place of every text: about a millisecond each.
    dice = random.Random(1)
    for start in range(0, N_LONG, 2000):
        steps = [{"trajectory_uid": f"t{start}", "step_index": i, "prompt_ids": [1], "response_ids": [2],
                  "error": "".join(dice.choices("ab", k=1000)), "status": "error"} for i in range(2000)]  # fmt: skip
        assert process.http.post("/api/v1/steps", json={"steps": steps}, timeout=120).status_code == 200
    slow = "regexp_matches(error, 'a[ab]{20}z')"
    endless = "SELECT count(*) FROM range(1000000) a, range(1000000) b, range(1000000) c"
    answers: list[int | str] = []

    def ask(method: str, path: str, **given: Any) -> None:
        try:
            with httpx.Client(base_url=process.base_url, timeout=120) as http:
                answers.append(http.request(method, path, **given).status_code)
        except httpx.HTTPError as error:
            answers.append(repr(error))

    queries: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", "/api/v1/sql", {"json": {"sql": endless, "timeout_s": 100}}),
        ("POST", "/api/v1/sql", {"json": {"sql": endless, "timeout_s": 100}}),
        ("GET", "/api/v1/steps", {"params": {"where": slow}}),
        ("GET", "/api/v1/steps", {"params": {"where": f"NOT ({slow})", "order": "latency_s"}}),
    ]
    threads = [threading.Thread(target=ask, args=each[:2], kwargs=each[2]) for each in queries]
    for thread in threads:
        thread.start()
    pid = process.process.pid
    # Both queries have their process, and all of them compute.
    eventually(lambda: len(query_processes(pid)) >= 2, timeout_s=200)
    for running in map(psutil.Process, (pid, *query_processes(pid))):
        used = running.cpu_times().user
        eventually(lambda running=running, used=used: running.cpu_times().user > used + 0.3, timeout_s=200)
    assert answers == []
    pids = children(pid)
    os.kill(pid, signal.SIGTERM)
    # Seconds on a quiet machine; the queries were given a hundred.
    process.process.wait(60)
    for thread in threads:
        thread.join(30)
    assert len(answers) == 4 and answers.count(200) == 0
    assert not any(psutil.pid_exists(pid) for pid in pids)
