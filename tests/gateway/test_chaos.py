"""Many agents, in every dialect, at engines that fail in every way: each gets its own answer or a clear error."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from core.gateway.engines.routing import Retries
from core.gateway.transport.connection_pool import Timeouts
from core.serving.process import EngineProcess
from core.tokens import extract_tokens
from tests.conftest import eventually

FAULTS = ["status:500", "status:503", "status:429", "hang", "disconnect", "disconnect_body", "disconnect_stream:2",
          "garbage", "no_done", "error_in_stream", "wrong_shape", "empty_choices"]  # fmt: skip
SCRIPT = {
    "rules": [
        {"when": {"contains": f"fault {fault}."}, "reply": {"content": "spoilt words of some length"}, "fault": fault}
        for fault in FAULTS
    ],
    "default": {"content": "a good answer with some words"},
}
ENDS = {"chat/completions": "[DONE]", "completions": "[DONE]", "messages": "message_stop",
        "responses": "response.completed"}  # fmt: skip
N_AGENTS, N_CALLS = 8, 12


@pytest.fixture(scope="module")
def processes() -> Iterator[list[EngineProcess]]:
    with EngineProcess.start("scripted") as one, EngineProcess.start("scripted") as other:
        for process in (one, other):
            with httpx.Client(base_url=str(process.base_url).removesuffix("/v1"), timeout=120) as http:
                http.put("/__script", json=SCRIPT).raise_for_status()
        yield [one, other]


def body_of(path: str, text: str, stream: bool) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    request = {"completions": {"prompt": text, "max_tokens": 40}, "responses": {"input": text}}.get(
        path, {"messages": messages}
    )
    return {"model": "m", "stream": stream, "max_tokens": 40, **request}


class Agent(threading.Thread):
    """Calls one after the other; keeps what came of each."""

    def __init__(self, root: str, number: int) -> None:
        super().__init__()
        self.root = root
        self.number = number
        self.outcomes: list[tuple[str, str, bool, bool, httpx.Response]] = []

    def run(self) -> None:
        rng = random.Random(self.number)
        with httpx.Client(base_url=self.root, timeout=30) as http:
            for turn in range(N_CALLS):
                fault = rng.choice(FAULTS) if rng.random() < 0.5 else None
                path, stream = rng.choice(list(ENDS)), rng.random() < 0.6
                text = f"agent {self.number} turn {turn}" + (f" fault {fault}." if fault else "")
                headers = {"X-Trajectory-Uid": f"t{self.number}"}
                answer = http.post(f"/v1/{path}", json=body_of(path, text, stream), headers=headers)
                self.outcomes.append((text, path, stream, fault is None, answer))


def test_each_agent_gets_its_own_answer_or_a_clear_error(make_gateway, processes):
    gateway = make_gateway(
        timeouts=Timeouts(total=1.0), limits={"retries": Retries(backoff_s=0.01), "keepalive_s": 0.2}
    )
    engines = [
        gateway.engines.add("a", processes[0].base_url, concurrency=6),
        gateway.engines.add("b", processes[1].base_url, concurrency=6, replica_of="a"),
    ]
    agents = [Agent(gateway.root, number) for number in range(N_AGENTS)]
    for agent in agents:
        agent.start()
    for agent in agents:
        agent.join(100)
    n_calls = N_AGENTS * N_CALLS
    records = {record["step_uid"]: record for record in gateway.wait_records(n_calls)}
    assert len(records) == n_calls
    logged = [row for process in processes for row in _log(process)]
    for agent in agents:
        assert len(agent.outcomes) == N_CALLS
        for text, path, stream, is_well, answer in agent.outcomes:
            record = records[answer.headers["x-step-uid"]]
            assert text in json.dumps(record["request"])
            assert record["identity"]["trajectory_uid"] == f"t{agent.number}"
            whole = answer.status_code == 200 and (not stream or ENDS[path] in answer.text)
            if is_well:
                assert whole, answer.text
            if not whole:
                assert record["error"]["message"]
                assert "error" in answer.text
                continue
            assert record["error"] is None
            if not stream:
                assert ("good answer" if is_well else "spoilt words") in answer.text
            tokens = extract_tokens(record["response"], 0, record["engine_dialect"])
            assert (tokens.token_source, tokens.mismatch) == ("engine", None)
            ids = [
                row["choices"][0]["response_ids"]
                for row in logged
                if text in json.dumps(row["body"]) and row.get("choices")
            ]
            assert tokens.response_ids in ids
    eventually(lambda: gateway.policy.n_in_flight == 0)
    assert [(engine.concurrency.n_inside, engine.concurrency.n_waiting) for engine in engines] == [(0, 0)] * 2
    eventually(lambda: gateway.stats.snapshot()["n_in_flight"] == 0)


def _log(process: EngineProcess) -> list[dict[str, Any]]:
    return httpx.get(f"{str(process.base_url).removesuffix('/v1')}/__log", timeout=30).json()["requests"]
