"""What is read of an engine is bounded by settings: the references are its own count and the kernel's of memory.

An engine here is a plain socket that sends without end whatever it is asked for.
"""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import socketserver
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import StreamingResponse

from core.gateway.transport.connection import Bounds
from core.ingest.drafts import drafts_of_call
from core.serving.process import EngineProcess
from core.serving.protocol import MAX_ANSWERS
from tests.conftest import ServeProcess

MIB = 1 << 20
HI = [{"role": "user", "content": "hi"}]


def chunk(number: int, **more: Any) -> dict[str, Any]:
    entry = {"token": f"t{number}", "logprob": -0.5, "bytes": None, "top_logprobs": []}
    delta = {"role": "assistant", "content": f"{number} "}
    choice = {"index": 0, "delta": delta, "logprobs": {"content": [entry]}, "token_ids": [5], "finish_reason": None}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "policy", "choices": [choice], **more}


def test_a_stream_that_is_too_long_is_kept_as_far_as_it_came_and_marked(make_gateway, upstream) -> None:
    n_sent = 0

    async def events() -> AsyncIterator[bytes]:
        nonlocal n_sent
        for number in itertools.count():
            more = {"prompt_token_ids": [1, 2]} if number == 0 else {}
            yield b"data: " + json.dumps(chunk(number, **more)).encode() + b"\n\n"
            n_sent += 1
            await asyncio.sleep(0)

    gateway = make_gateway(upstream, streaming="relay", bounds=Bounds(answer=100_000))
    upstream.reply = lambda seen: StreamingResponse(events(), media_type="text/event-stream")
    with gateway.http.stream(
        "POST", "/v1/chat/completions", json={"model": "m", "stream": True, "messages": HI}
    ) as got:
        lines = [line for line in got.iter_lines() if line.startswith("data: ")]
    assert "over 100000 bytes" in lines[-1]
    (record,) = gateway.wait_records(1)
    assert record["http_status"] == 502
    assert "its answer is over 100000 bytes" in record["error"]["message"]
    (choice,) = record["response"]["choices"]
    words = choice["message"]["content"].split()
    assert words == [str(number) for number in range(len(words))]
    assert 50 < len(words) <= n_sent and choice["finish_reason"] is None
    (step,) = drafts_of_call(record, "s", 0)
    assert (step.status, step.response_ids) == ("error", None)
    upstream.reset()
    assert gateway.chat().status_code == 200


def test_a_whole_answer_that_is_too_long_is_a_typed_error(make_gateway, upstream) -> None:
    gateway = make_gateway(upstream, bounds=Bounds(answer=1 << 20))
    upstream.reply = {"choices": [{"message": {"content": "x" * (2 << 20)}}]}
    got = gateway.chat()
    assert got.status_code == 502 and "over 1048576 bytes" in got.json()["error"]["message"]
    upstream.reset()
    assert gateway.chat().status_code == 200


CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
BOMB = gzip.compress(b"[" * (64 * MIB))


class Endless(socketserver.ThreadingTCPServer):
    """Answers with a body, headers or compressed bytes without end; counts the most of one that it got rid of."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, kind: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.kind = kind
        self.sent: dict[str, int] = {}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        server: Any = self.server
        path = self.rfile.readline().split()[1].decode()
        begin, piece = {
            "body": (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n[", b"[" * 65_536),
            "head": (b"HTTP/1.1 200 OK\r\n", b"X-One-More: of very many\r\n" * 2000),
            "trailer": (CHUNKED + b"2\r\n{}\r\n0\r\nX-A: ", b"a" * 65_536),
            "extension": (CHUNKED + b"2;a=", b"a" * 65_536),
            "bomb": (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n", BOMB),
        }[server.kind]
        sent = 0
        try:
            self.wfile.write(begin)
            for _ in range(200_000_000 // len(piece) if server.kind != "bomb" else 4):
                self.wfile.write(piece)
                sent += len(piece)
        except OSError:
            pass
        finally:
            server.sent[path] = max(sent, server.sent.get(path, 0))


@pytest.fixture(params=["body", "head", "trailer", "extension", "bomb"])
def endless(request: pytest.FixtureRequest) -> Iterator[Endless]:
    server = Endless(request.param)
    yield server
    server.shutdown()
    server.server_close()


def most_memory(pid: int) -> int:
    """The most memory that a process ever had resident, bytes, as the kernel counts it."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def test_an_engine_without_end_costs_bounded_memory_wherever_it_is_asked(
    serve: Callable[..., ServeProcess], endless: Endless
) -> None:
    env = {"CLAW_STUDIO_MAX_ANSWER_BYTES": str(MIB), "CLAW_STUDIO_MAX_ASIDE_BYTES": str(MIB)}
    studio = serve(endless.base_url, env=env)
    studio.http.get("/v1/models")
    before = most_memory(studio.process.pid)
    text = {"model": "m", "input": "x", "prompt": "x", "messages": HI, "tokens": [1], "max_tokens": 4}
    answers = {
        path: studio.http.post(path, json=text)
        for path in (
            "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize", "/detokenize",
            "/v1/messages/count_tokens",
        )
    }  # fmt: skip
    assert studio.http.get("/v1/models").status_code in (200, 502)
    assert all(got.status_code < 500 or got.status_code == 502 for got in answers.values()), answers
    assert answers["/v1/chat/completions"].status_code == answers["/v1/embeddings"].status_code == 502
    assert "/v1/models" in endless.sent and "/v1/embeddings" in endless.sent
    assert most_memory(studio.process.pid) - before < 60 * MIB
    if endless.kind != "bomb":
        # Beside what was read, both ends of a connection hold some.
        assert max(endless.sent.values()) < 16 * MIB
    assert studio.http.get("/healthz").status_code == 200


@pytest.mark.parametrize("kind", ["scripted", "local"])
def test_shipped_engines_refuse_answers_without_number(kind: str, tmp_path: Path) -> None:
    with (
        EngineProcess.start(kind, args=["--model-dir", tmp_path] if kind == "local" else []) as engine,
        httpx.Client(base_url=str(engine.base_url), timeout=120) as http,
    ):
        chat = {"model": "m", "messages": HI, "max_tokens": 1}
        many = {"model": "m", "prompt": [[1]] * (MAX_ANSWERS + 1), "max_tokens": 1}
        assert http.post("chat/completions", json=chat).status_code == 200
        before = most_memory(engine.pid)
        for n in (2**31, 2**63, 10**30, 129, 0, -1, 1.5, "2", True):
            for path, body in (("chat/completions", {**chat, "n": n}), ("completions", {"prompt": "a", "n": n})):
                got = http.post(path, json=body)
                assert (got.status_code, got.json()["error"]["param"]) == (400, "n"), (path, n, got.text)
        for body in (many, {"model": "m", "prompt": [[1]] * 1000, "n": 128}):
            got = http.post("completions", json=body)
            assert (got.status_code, got.json()["error"]["param"]) == (400, "prompt"), got.text
        assert most_memory(engine.pid) - before < 80 * MIB
        assert http.post("chat/completions", json=chat).status_code == 200
