"""Hosted providers' own streams: words at once, and the step is the whole answer's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from starlette.responses import JSONResponse

from core.ingest.drafts import drafts_of_call
from tests.conftest import eventually
from tests.gateway.providers.wire_formats import ANTHROPIC, CALLS, provider
from tests.gateway.upstream import chat_answer, completions_answer

KEY = "agents-own-provider-key"
HI: list[Any] = [{"role": "user", "content": "hi"}]
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name, _ in CALLS
]
MODELS = {"openai": "openai/gpt-4o", "anthropic": "anthropic/claude-sonnet-4-5", "gemini": "gemini/gemini-2.5-pro"}
every_wire = pytest.mark.parametrize("wire", MODELS)


@pytest.fixture
def hosted(make_gateway, upstream, monkeypatch) -> Callable[..., Any]:
    """A gateway whose only engine is a provider, its API at the test's server."""
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)

    def make(wire: str = "openai", streaming: str = "relay", **kwargs: Any) -> Any:
        gateway = make_gateway(**{"timeout_s": 60.0, **kwargs})
        gateway.engines.add(
            "hosted",
            MODELS.get(wire, wire),
            kind="litellm",
            api_base=upstream.base_url,
            api_key=KEY,
            streaming=streaming,
        )
        return gateway

    return make


def chat_words(gateway: Any) -> Iterator[str]:
    for chunk in gateway.sdk(KEY).chat.completions.create(model="m", messages=HI, tools=TOOLS, stream=True):
        for choice in chunk.choices:
            if choice.delta.content:
                yield choice.delta.content


def responses_words(gateway: Any) -> Iterator[str]:
    for event in gateway.sdk(KEY).responses.create(model="m", input="hi", stream=True):
        if event.type == "response.output_text.delta":
            yield event.delta
        elif event.type == "response.completed":
            assert event.response.output_text == "Hello"


def messages_words(gateway: Any) -> Iterator[str]:
    claude = anthropic.Anthropic(base_url=gateway.root, api_key=KEY, max_retries=0)
    with claude.messages.stream(model="m", max_tokens=99, messages=HI) as stream:
        yield from stream.text_stream
        assert [block.type for block in stream.get_final_message().content][-2:] == ["tool_use", "tool_use"]


WORDS = {"chat": chat_words, "responses": responses_words, "messages": messages_words}
N_BEFORE = {"openai": 4, "anthropic": 11, "gemini": 3}
"""So many chunks bring the first word."""


@every_wire
@pytest.mark.parametrize("dialect", WORDS)
def test_the_first_word_comes_before_the_last_is_said(hosted, upstream, wire, dialect):
    gateway = hosted(wire)
    gate = threading.Event()
    upstream.reply = provider(wire, gate=gate, n_before=N_BEFORE[wire])
    words = WORDS[dialect](gateway)
    # The provider says no more until the agent has read this.
    assert next(words) == "Hel"
    assert gateway.records() == []
    gate.set()
    assert "".join(words) == "lo"
    (record,) = gateway.records()
    assert (record["stream_mode"], record["http_status"], record["error"]) == ("relay", 200, None)


def comparable(message: Any) -> dict[str, Any]:
    """A message without what says nothing and what LiteLLM makes up: call ids where a provider has none."""
    calls = [
        {"id": call["id"] if call["id"] in ("call_f", "call_g") else None, "function": call["function"]}
        for call in message.get("tool_calls") or ()
    ]
    unsaid = ("provider_specific_fields", "tool_calls", "images", "annotations")
    rest = {name: value for name, value in message.items() if value and name not in unsaid}
    # Unsigned ones only say again what is the reasoning.
    rest["thinking_blocks"] = [block for block in rest.get("thinking_blocks", ()) if set(block) & {"signature", "data"}]
    return {**rest, "tool_calls": calls}


def steps(record: dict[str, Any]) -> list[Any]:
    return [
        (step.status, step.finish_reason, comparable(step.response_message), step.token_source, step.mismatch,
         step.response_logprobs is not None and list(step.response_logprobs), step.messages, step.tools)
        for step in drafts_of_call(record, "s", 0)
    ]  # fmt: skip


def usage_of(record: dict[str, Any]) -> dict[str, Any]:
    usage = record["response"]["usage"]
    counts = {name: usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    return {**counts, "cached": cached, "reasoning": (usage.get("completion_tokens_details") or {})["reasoning_tokens"]}


@every_wire
@pytest.mark.parametrize("n", [1, 2])
def test_the_step_is_the_whole_answers(hosted, upstream, wire, n):
    gateway = hosted(wire)
    upstream.reply = provider(wire)
    request = {"tools": TOOLS, **({"n": n} if n > 1 else {})}
    gateway.chat(**request)
    answer = gateway.chat(**request, stream=True, stream_options={"include_usage": True})
    assert answer.text.endswith("data: [DONE]\n\n")
    whole, streamed = gateway.records()
    assert (whole["stream_mode"], streamed["stream_mode"]) == ("none", "relay")
    assert steps(streamed) == steps(whole)
    assert len(steps(streamed)) == (n if wire == "openai" else 1)
    assert steps(streamed)[0][2]["content"] == "Hello"
    assert steps(streamed)[0][2]["reasoning_content"] == "Hm so"
    assert usage_of(streamed) == usage_of(whole)
    assert streamed["dropped_fields"] == whole["dropped_fields"]
    assert streamed["engine_added"] == whole["engine_added"]
    if wire == "openai":
        assert steps(streamed)[0][5] == [-0.25] * 3


def test_signed_thinking_is_in_one_piece(hosted, upstream):
    gateway = hosted("anthropic")
    upstream.reply = provider("anthropic")
    gateway.chat(tools=TOOLS, stream=True)
    (choice,) = gateway.records()[0]["response"]["choices"]
    assert choice["message"]["thinking_blocks"] == ANTHROPIC["content"][:2]


def test_an_sdk_puts_the_stream_together(hosted, upstream):
    gateway = hosted("openai")
    upstream.reply = provider("openai")
    options: Any = {"include_usage": True}
    chunks = list(gateway.sdk(KEY).chat.completions.create(model="m", messages=HI, stream=True, stream_options=options))
    assert [chunk.usage.completion_tokens for chunk in chunks if chunk.usage] == [13]
    assert {chunk.id for chunk in chunks} == {"chatcmpl-1"}
    # The agent did not ask for log-probs.
    assert not any(choice.logprobs for chunk in chunks for choice in chunk.choices)
    with gateway.sdk(KEY).chat.completions.stream(model="m", messages=HI, tools=TOOLS) as stream:
        final = stream.get_final_completion()
    calls = final.choices[0].message.tool_calls or []
    assert [(call.function.name, call.function.arguments) for call in calls] == [("f", '{"x": 1}'), ("g", "{}")]
    assert final.choices[0].finish_reason == "tool_calls"
    assert all(
        not chunk.usage for chunk in gateway.sdk(KEY).chat.completions.create(model="m", messages=HI, stream=True)
    )


def test_text_completions_are_made_from_the_whole_answer(hosted, upstream):
    gateway = hosted("openai/policy")
    upstream.reply = completions_answer()
    chunks = list(gateway.sdk(KEY).completions.create(model="m", prompt="hi", stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "hello"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert gateway.records()[0]["stream_mode"] == "whole"
    assert gateway.engines.status()[0]["streaming"]["completions"] == "whole"


@pytest.mark.parametrize("n_sent", [6, 9])
def test_an_answer_that_breaks_off_is_no_answer(hosted, upstream, n_sent):
    gateway = hosted("openai")
    upstream.reply = provider("openai", n_sent=n_sent)
    with pytest.raises(openai.APIError, match="in the middle"):
        list(chat_words(gateway))
    (record,) = gateway.records()
    assert record["error"]["type"] == "engine_error"
    assert record["response"]["choices"][0]["message"]["content"].startswith("Hel")
    (status,) = gateway.engines.status()
    assert (status["ok"], status["n_errors"], status["in_flight"]) == (False, 1, 0)


def test_an_error_in_the_stream_is_the_agents(hosted, upstream):
    gateway = hosted("openai")
    upstream.reply = provider(
        "openai", n_sent=6, end='data: {"error": {"message": "provider fell over", "code": 500}}\n\n'
    )
    with pytest.raises(openai.APIError, match="provider fell over"):
        list(chat_words(gateway))
    (record,) = gateway.records()
    assert "provider fell over" in record["error"]["message"]
    assert record["response"]["choices"][0]["message"]["content"] == "Hello"


@pytest.mark.parametrize(("wire", "words"), [("openai", chat_words), ("anthropic", messages_words)])
def test_a_provider_that_goes_silent(hosted, upstream, wire, words):
    gateway = hosted(wire, timeout_s=2.0, limits={"keepalive_s": 0.2})
    gate = threading.Event()
    upstream.reply = provider(wire, gate=gate, n_before=N_BEFORE[wire])
    with pytest.raises((openai.APIError, anthropic.APIStatusError), match="did not end its answer in time"):
        list(words(gateway))
    gate.set()
    (record,) = gateway.records()
    assert record["error"]["type"] == "engine_timeout"
    assert (record["stream_mode"], gateway.engines.status()[0]["in_flight"]) == ("relay", 0)


def test_a_refused_stream_keeps_its_status(hosted, upstream):
    gateway = hosted("openai")
    upstream.reply = JSONResponse({"error": {"message": "slow down", "type": "x"}}, status_code=429)
    with pytest.raises(openai.RateLimitError, match="slow down"):
        list(chat_words(gateway))
    assert len(upstream.seen) == 1


@every_wire
@pytest.mark.parametrize("stream", [False, True])
def test_when_to_come_again_is_told(hosted, upstream, wire, stream):
    gateway = hosted(wire)
    busy = JSONResponse({"error": {"message": "slow down"}}, status_code=429, headers={"Retry-After": "30"})
    upstream.reply = busy
    for path in ("chat/completions", "messages"):
        body = {"model": "m", "messages": HI, "max_tokens": 9, "stream": stream}
        answer = gateway.http.post(f"/v1/{path}", json=body)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "30")
        assert "slow down" in answer.json()["error"]["message"]
    assert len(upstream.seen) == 2
    assert {record["http_status"] for record in gateway.records()} == {429}
    # Who asks for a moment only is asked again.
    n_left = iter([JSONResponse({"error": {"message": "x"}}, 429, headers={"Retry-After": "0"}), provider(wire)])

    def reply(seen: Any) -> Any:
        following = next(n_left)
        return following(seen) if callable(following) and not isinstance(following, JSONResponse) else following

    upstream.reply = reply
    assert gateway.chat(stream=stream).status_code == 200
    assert gateway.records()[-1]["engine_facts"]["attempts"] == 2


def test_an_agent_that_leaves_loses_nothing(hosted, upstream):
    gateway = hosted("openai")
    gate = threading.Event()
    upstream.reply = provider("openai", gate=gate, n_before=4)
    with httpx.Client(base_url=gateway.root, timeout=120) as http:
        body = {"model": "m", "messages": HI, "stream": True}
        with http.stream("POST", "/v1/chat/completions", json=body) as response:
            assert any("Hel" in line for line in response.iter_lines() if line.startswith("data: {"))
    eventually(lambda: gateway.stats.snapshot()["n_in_flight"] == 1)
    gate.set()
    (record,) = gateway.wait_records(1)
    assert record["response"]["choices"][0]["message"]["content"] == "Hello"
    assert record["response"]["usage"]["completion_tokens"] == 13


def test_auto_asks_for_a_stream_where_no_ids_can_be_lost(hosted, make_gateway, upstream, monkeypatch):
    monkeypatch.setenv("OPENAI_API_BASE", upstream.base_url)
    gateway = make_gateway(timeout_s=60.0)
    gateway.engines.add("hosted", "openai/gpt-4o", kind="litellm", api_key=KEY)
    upstream.reply = provider("openai")
    assert "".join(chat_words(gateway)) == "Hello"
    assert gateway.records()[0]["stream_mode"] == "relay"


def test_auto_looks_first_at_an_address_of_ones_own(hosted, upstream):
    gateway = hosted("openai", streaming="auto")
    kinds = gateway.engines.status()[0]["streaming"]
    assert kinds["chat"] == "whole: not asked yet"
    upstream.reply = provider("openai")
    assert ["".join(chat_words(gateway)) for _ in range(2)] == ["Hello", "Hello"]
    assert [record["stream_mode"] for record in gateway.records()] == ["whole", "relay"]
    upstream.reply = chat_answer()
    gateway.chat()
    assert gateway.engines.status()[0]["streaming"]["chat"] == "whole: ids would be lost"
    assert "".join(chat_words(gateway)) == "hello"
    assert gateway.records()[-1]["stream_mode"] == "whole"


def test_whole_is_whole(hosted, upstream):
    for wire, words in (("openai", chat_words), ("anthropic", messages_words)):
        gateway = hosted(wire, streaming="whole")
        upstream.reply = provider(wire)
        assert "".join(words(gateway)) == "Hello"
        assert gateway.records()[0]["stream_mode"] == "whole"
        assert not upstream.last.body.get("stream")
