"""SIGKILL in the middle of traffic, five times, and twenty in CI: every answered call is in the pool afterwards, once.

A call counts as answered when its client has read a whole answer, whole by the answer's own marks: the declared
length, or the last event of a stream.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from core.serving.process import EngineProcess
from tests.conftest import ServeProcess, eventually, scripted_engine
from tests.left_out import only_in_ci

N_CLIENTS = 6
SCRIPT = {
    "model": "scripted-1",
    "rules": [],
    "default": {"reply": {"content": "An answer of a few tokens."}, "delay_s": 0.004},
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    with scripted_engine(tmp_path_factory.mktemp("engine"), SCRIPT) as running:
        yield running


class Client(threading.Thread):
    """Calls without pause until the service is gone; keeps ``(step_uid, question)`` of what was answered."""

    def __init__(self, base_url: str, name: str, answered: list[tuple[str, str]]) -> None:
        super().__init__(name=name)
        self.base_url = base_url
        self.answered = answered
        self.n_refused = 0

    def run(self) -> None:
        with httpx.Client(base_url=self.base_url, timeout=30) as http:
            for number in range(100_000):
                question = f"{self.name} asks {number}"
                try:
                    answer, whole = self._call(http, question, number)
                except httpx.TransportError:
                    return
                if not whole or answer.status_code != 200:
                    self.n_refused += 1
                    continue
                self.answered.append((answer.headers["x-step-uid"], question))

    def _call(self, http: httpx.Client, question: str, number: int) -> tuple[httpx.Response, bool]:
        stream = number % 3 == 2
        body = {"model": "scripted-1", "messages": [{"role": "user", "content": question}], "stream": stream}
        headers = {"X-Trajectory-Uid": f"{self.name}-{number // 4}", "X-Prompt-Uid": "kill"}
        answer = http.post("/v1/chat/completions", json=body, headers=headers)
        text = answer.text.strip()
        return answer, text.endswith("data: [DONE]") if stream else text.endswith("}")


def all_steps(studio: ServeProcess) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        query = {"limit": "500", **({"cursor": cursor} if cursor else {})}
        page = studio.http.get("/api/v1/steps", params=query).json()
        steps += page["steps"]
        cursor = page["next_cursor"]
        if cursor is None:
            return steps


@pytest.mark.parametrize("n_kills", [5, pytest.param(20, marks=only_in_ci("twenty kills"))])
def test_every_answered_call_is_there_once(
    engine: EngineProcess, serve: Callable[..., ServeProcess], tmp_path: Path, n_kills: int
) -> None:
    assert engine.base_url
    draw = random.Random(9)
    answered_steps: list[tuple[str, str]] = []
    n_refused = 0
    for kill in range(n_kills):
        studio = serve(engine.base_url, tmp_path / "data")
        clients = [Client(studio.base_url, f"k{kill}c{number}", answered_steps) for number in range(N_CLIENTS)]
        for client in clients:
            client.start()
        # After a number of answers and not a time, so that a busy machine proves as much as an idle one.
        target = len(answered_steps) + draw.randint(0, 50)
        eventually(lambda target=target: len(answered_steps) >= target, timeout_s=60, every_s=0.001)
        time.sleep(draw.uniform(0, 0.02))
        studio.kill()
        for client in clients:
            client.join(30)
            assert not client.is_alive()
            n_refused += client.n_refused
    assert n_refused == 0, "a call was refused by a service that lived"
    answered = dict(answered_steps)
    assert len(answered) == len(answered_steps), "two calls were answered under one uid"
    assert len(answered) > 10 * n_kills, "hardly any traffic: the kills proved nothing"

    studio = serve(engine.base_url, tmp_path / "data")
    eventually(lambda: set(answered) <= {step["step_uid"] for step in all_steps(studio)})
    uids = [step["step_uid"] for step in all_steps(studio)]
    assert len(uids) == len(set(uids))
    stats = studio.http.get("/api/v1/stats").json()
    assert stats["n_steps"] == len(uids)
    assert stats["n_dropped"] == 0
    # Calls whose answer was lost with the service may be there as well; at most one per client and kill.
    assert len(uids) <= len(answered) + n_kills * N_CLIENTS
    for uid in draw.sample(sorted(answered), min(40, len(answered))):
        step = studio.http.get(f"/api/v1/steps/{uid}").json()
        assert step["messages"][-1]["content"] == answered[uid]
        assert step["response_message"]["content"] == SCRIPT["default"]["reply"]["content"]
        assert step["token_source"] == "engine"
    assert studio.stop() == 0
