"""Streams that real servers sent, sent again byte by byte: what agents see and what is recorded."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from core.serving.tokenizer import load_tokenizer
from core.tokens import extract_tokens
from core.types import TokenSource
from tests.gateway.upstream import Upstream

RECORDED = Path(__file__).parent / "recorded"
HI = [{"role": "user", "content": "Say hi"}]
TOOLS: Any = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]


class Replay(Upstream):
    """A server that answers what a real one answered, in pieces of some bytes."""

    def __init__(self, name: str, exchange: str) -> None:
        self.recorded = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
        self.exchange = self.recorded["exchanges"][exchange]
        super().__init__(reply=self.replay, version=self.recorded["version"])

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"data": self.recorded["models"]})

    def replay(self, seen: Any) -> Response:
        raw, rng = self.exchange["stream"].encode(), random.Random(7)

        async def pieces() -> AsyncIterator[bytes]:
            at = 0
            while at < len(raw):
                size = rng.choice([1, 2, 3, 40, 300])
                yield raw[at : at + size]
                at += size

        return StreamingResponse(pieces(), media_type="text/event-stream")


@pytest.fixture
def replay(make_gateway, stopping) -> Callable[..., tuple[Any, Replay]]:
    def start(name: str, exchange: str, **how: Any) -> tuple[Any, Replay]:
        server = Replay(name, exchange)
        server.reply = lambda seen: server.replay(seen)
        server.start()
        gateway = make_gateway()
        gateway.engines.add(name, server.base_url, **how)
        stopping_later.append(server)
        return gateway, server

    stopping_later: list[Replay] = []
    yield start
    for server in stopping_later:
        stopping(server.stop)


def text_of(exchange: dict[str, Any]) -> str:
    """The words in a recorded stream, by a reader of its own."""
    words = ""
    for line in exchange["stream"].split("\n"):
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                words += choice.get("text") or (choice.get("delta") or {}).get("content") or ""
    return words


def check(gateway: Any, dialect: str, n_tokens: int) -> list[int]:
    (record,) = gateway.records()
    assert (record["stream_mode"], record["error"]) == ("relay", None)
    tokens = extract_tokens(record["response"], 0, dialect)
    assert (tokens.token_source, tokens.mismatch) == (TokenSource.ENGINE, None)
    assert len(tokens.response_ids or ()) == len(tokens.response_logprobs or ()) == n_tokens
    return list(tokens.response_ids or ())


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
def test_vllm_in_every_dialect(replay, dialect):
    gateway, server = replay("vllm", "chat_stream")
    words = text_of(server.exchange)
    if dialect == "chat":
        chunks = gateway.sdk().chat.completions.create(model="m", messages=HI, stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    elif dialect == "responses":
        *_, last = gateway.sdk().responses.create(model="m", input="Say hi", stream=True)
        assert last.type == "response.incomplete"
        text = last.response.output_text
    else:
        client = anthropic.Anthropic(base_url=gateway.root, api_key="x", max_retries=0)
        with client.messages.stream(model="m", max_tokens=6, messages=HI) as events:
            answer = events.get_final_message()
        text = answer.content[0].text
        assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.stop_reason) == (12, 6, "max_tokens")
    assert text == words
    assert load_tokenizer().decode(check(gateway, "chat", 6)) == words
    assert gateway.engines.status()[0]["findings"]["flavour"] == "vllm"


def test_vllm_with_tools(replay):
    gateway, _ = replay("vllm", "chat_tools_stream")
    chunks = list(gateway.sdk().chat.completions.create(model="m", messages=HI, tools=TOOLS, stream=True))
    # Tokens that make no words are no news to an agent that did not ask for tokens.
    assert len(chunks) == 2
    assert chunks[-1].choices[0].finish_reason == "length"
    assert load_tokenizer().decode(check(gateway, "chat", 6)) == "<tool_call>"


@pytest.mark.parametrize("name", ["vllm", "sglang", "llamacpp"])
def test_completions(replay, name):
    gateway, server = replay(name, "completions_stream")
    chunks = gateway.sdk().completions.create(model="m", prompt="Once upon", max_tokens=4, stream=True)
    words = "".join(chunk.choices[0].text for chunk in chunks)
    assert words == text_of(server.exchange)
    assert load_tokenizer().decode(check(gateway, "completions", 4)) == words


def test_transformers_serve_tells_words_only_and_says_so(replay):
    gateway, server = replay("transformers", "chat_stream", streaming="relay")
    chunks = gateway.sdk().chat.completions.create(model="m", messages=HI, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text_of(server.exchange)
    (record,) = gateway.records()
    assert record["stream_mode"] == "relay"
    assert extract_tokens(record["response"], 0, "chat").token_source == TokenSource.NONE


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_half_of_a_real_stream_is_no_answer(replay, name):
    gateway, server = replay(name, "completions_stream")
    server.exchange = {"stream": server.exchange["stream"][: len(server.exchange["stream"]) // 2]}
    with pytest.raises(openai.APIError, match="middle of the answer"):
        list(gateway.sdk().completions.create(model="m", prompt="Once upon", max_tokens=4, stream=True))
    (record,) = gateway.records()
    assert record["error"]["type"] == "engine_error"
    assert record["response"]["choices"][0]["finish_reason"] is None
