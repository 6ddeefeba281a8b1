"""One trajectory of 2,000 turns, and one of two million tokens: captured, ingested, shown and exported, id by id.

The reference is the engine of this test, which says what ids it told.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

from tests.batch.keeping_all import SFT_ALL
from tests.conftest import ServeProcess, eventually
from tests.left_out import only_in_ci

TURNS = 2_000
LONG = 2_000_000
ANSWER_IDS = [5, 6, 7]


def ids_of(messages: list[dict[str, Any]]) -> list[int]:
    """Three ids a message, by its place and what it says; the last message may say how many there are instead."""
    ids: list[int] = []
    for place, message in enumerate(messages):
        if message["role"] == "assistant":
            ids += ANSWER_IDS
        elif message["content"].startswith("long "):
            ids += [1000 + n % 50_000 for n in range(int(message["content"].split()[1]))]
        else:
            ids += [10, 11 + place, 12]
    return ids


class Upstream(BaseHTTPRequestHandler):
    """An engine that tells ids and log-probs at once."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._say({"object": "list", "data": [{"id": "m", "object": "model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        logprobs = {"content": [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []} for _ in ANSWER_IDS]}
        choice = {"index": 0, "message": {"role": "assistant", "content": "aaa"}, "finish_reason": "stop"}
        ids = ids_of(body["messages"])
        common = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "prompt_token_ids": ids}
        self._say({**common, "choices": [{**choice, "token_ids": ANSWER_IDS, "logprobs": logprobs}]})

    def _say(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Nobody reads it."""


@pytest.fixture
def engine() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def ask(http: httpx.Client, uid: str, messages: list[dict[str, Any]]) -> None:
    headers = {"X-Trajectory-Uid": uid, "X-Prompt-Uid": uid}
    answer = http.post("/v1/chat/completions", json={"model": "m", "messages": messages}, headers=headers, timeout=300)
    assert answer.status_code == 200, answer.text[:500]


def check_all_steps(studio: ServeProcess, uid: str, requests: list[list[dict[str, Any]]]) -> None:
    """Every step is there, in order, with the ids that the engine told, over HTTP and in an export."""
    http = studio.http
    http.timeout = httpx.Timeout(300)
    eventually(lambda: http.get("/api/v1/stats").json()["n_steps"] >= len(requests), timeout_s=300)
    assert http.post(f"/api/v1/trajectories/{uid}/complete", json={"reward": 1.0}).status_code == 200
    wanted = [ids_of(messages) for messages in requests]
    steps = http.get(f"/api/v1/trajectories/{uid}").json()["steps"]
    assert [step["step_index"] for step in steps] == list(range(len(requests)))
    assert all(step["prompt_ids"] == ids for step, ids in zip(steps, wanted, strict=True))
    assert all(step["messages"] == messages for step, messages in zip(steps, requests, strict=True))
    assert [step["transition"] for step in steps[1:]] == ["extends"] * (len(requests) - 1)
    recipe = {**SFT_ALL, "token_budget": 2 * LONG}
    body = {"view": {"where": f"prompt_uid = '{uid}'"}, "recipe": recipe, "format": "steps_parquet"}
    done = http.post("/api/v1/exports", json=body)
    assert done.status_code == 200, done.text[:500]
    rows = pq.read_table(done.json()["path"], columns=["step_index", "prompt_ids", "response_ids"])
    rows = rows.sort_by("step_index").to_pylist()
    assert [row["prompt_ids"] for row in rows] == wanted
    assert all(row["response_ids"] == ANSWER_IDS for row in rows)


def conversation(n_turns: int, first: str = "begin") -> Iterator[list[dict[str, Any]]]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": first}]
    for turn in range(n_turns):
        yield list(messages)
        messages += [{"role": "assistant", "content": "aaa"}, {"role": "user", "content": f"turn {turn}"}]


def test_a_hundred_turns_come_back_id_by_id(engine: str, serve: Callable[..., ServeProcess]) -> None:
    walk(serve(engine), "some-turns", list(conversation(100)))


@only_in_ci("2,000 turns, half a minute")
def test_two_thousand_turns_come_back_id_by_id(engine: str, serve: Callable[..., ServeProcess]) -> None:
    walk(serve(engine), "many-turns", list(conversation(TURNS)))


@only_in_ci("two million tokens, half a minute")
def test_two_million_tokens_come_back_id_by_id(engine: str, serve: Callable[..., ServeProcess]) -> None:
    walk(serve(engine), "long", list(conversation(2, f"long {LONG}")))


def walk(studio: ServeProcess, uid: str, requests: list[list[dict[str, Any]]]) -> None:
    for messages in requests:
        ask(studio.http, uid, messages)
    check_all_steps(studio, uid, requests)
    assert studio.stop() == 0
