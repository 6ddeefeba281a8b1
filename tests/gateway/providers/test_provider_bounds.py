"""What is read of hosted providers through LiteLLM is bounded: the references are a server's count and the kernel's.

The server is a raw socket that answers without end, by the wire format of each kind of provider that LiteLLM reads by
code of its own.
"""

from __future__ import annotations

import gzip
import json
import os
import socketserver
import threading
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.responses import Response

from core.gateway.providers.litellm_import import load_litellm
from core.gateway.transport.connection import Bounds
from core.gateway.transport.connection_pool import Timeouts
from tests.gateway.engines.test_answer_bounds import most_memory
from tests.gateway.upstream import chat_answer

MIB = 1 << 20
MODELS = ("openai/gpt-4o", "gemini/gemini-2.5-pro", "anthropic/claude-sonnet-4-5", "mistral/mistral-large-latest",
          "deepseek/deepseek-chat", "ollama_chat/llama3")  # fmt: skip
JSON, SSE = b"Content-Type: application/json\r\n", b"Content-Type: text/event-stream\r\n"
OK = b"HTTP/1.1 200 OK\r\n"
BOMB = gzip.compress(b"[" * (64 * MIB))
ENDLESS = {
    "a body": (OK + JSON + b"\r\n[", b"[" * 65_536),
    "a bomb": (OK + JSON + b"Content-Encoding: gzip\r\n\r\n" + BOMB, b""),
    "a bomb in a stream": (OK + SSE + b"Content-Encoding: gzip\r\n\r\n" + BOMB, b""),
    "empty compressed blocks": (OK + JSON + b"Content-Encoding: deflate\r\n\r\n\x78\x9c", b"\0\0\0\xff\xff" * 9000),
    "an encoding that was not asked for": (OK + JSON + b"Content-Encoding: br\r\n\r\n", b"\x21" * 65_536),
    "headers": (OK, b"X-One-More: of very many\r\n" * 2000),
    "an event": (OK + SSE + b"\r\ndata: ", b"a" * 65_536),
    "comments": (OK + SSE + b"\r\n", b": keep-alive\n\n" * 5000),
}
MAX_SENT = 200 * MIB


class Endless(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.kind = ""
        self.sent = 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_: Any) -> None:
        """Whoever has enough hangs up."""


class Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        server: Any = self.server
        self.rfile.readline()
        begin, piece = ENDLESS[server.kind]
        sent = 0
        try:
            self.wfile.write(begin)
            while piece and sent < MAX_SENT:
                self.wfile.write(piece)
                sent += len(piece)
        finally:
            server.sent = max(server.sent, sent)


@pytest.fixture(scope="module")
def endless() -> Iterator[Endless]:
    server = Endless()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    load_litellm()


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_provider_without_end_costs_bounded_memory(make_gateway: Any, endless: Endless, kind: str) -> None:
    gateway = make_gateway(
        timeouts=Timeouts(total=20.0), bounds=Bounds(answer=MIB, head=MIB, aside=MIB), streaming="relay"
    )
    endless.kind, endless.sent = kind, 0
    root = f"http://127.0.0.1:{endless.server_address[1]}"
    for model in MODELS:
        gateway.engines.add(model, model, kind="litellm", models=[model], api_base=root, api_key="k", streaming="relay")
    before = most_memory(os.getpid())
    for model in MODELS:
        for stream in (False, True):
            body = {"model": model, "stream": stream, "messages": [{"role": "user", "content": "hi"}]}
            got = gateway.http.post("/v1/chat/completions", json=body, timeout=60)
            if got.status_code == 200 and not stream:
                raise AssertionError(f"{model}: {got.text[:300]}")
            error = json.loads(got.text.strip().splitlines()[-1].removeprefix("data: "))
            assert error["error"]["message"] and error["error"]["type"], got.text[:300]
    # The first call of a provider loads its code.
    assert most_memory(os.getpid()) - before < 150 * MIB
    assert endless.sent < 16 * MIB


def test_compressed_answers_are_read(make_gateway: Any, upstream: Any) -> None:
    """As some providers send them, asked for or not."""
    gateway = make_gateway(timeouts=Timeouts(total=20.0))
    gateway.engines.add("hosted", "openai/gpt-4o", kind="litellm", api_base=upstream.base_url, api_key="k")
    for encoding, pack in (("gzip", gzip.compress), ("deflate", zlib.compress)):
        text = json.dumps(chat_answer("é" * 3_000_000)).encode()
        upstream.reply = lambda seen, text=text, pack=pack, encoding=encoding: Response(
            pack(text), media_type="application/json", headers={"Content-Encoding": encoding}
        )
        got = gateway.chat()
        assert got.status_code == 200, got.text[:300]
        assert got.json()["choices"][0]["message"]["content"] == "é" * 3_000_000


def test_loading_litellm_again_counts_no_byte_twice(make_gateway: Any, upstream: Any) -> None:
    load_litellm()
    gateway = make_gateway(timeouts=Timeouts(total=20.0), bounds=Bounds(answer=3 * MIB // 2))
    gateway.engines.add("hosted", "openai/gpt-4o", kind="litellm", api_base=upstream.base_url, api_key="k")
    upstream.reply = lambda seen: chat_answer("x" * MIB)
    got = gateway.chat()
    assert got.status_code == 200, got.text[:300]
