"""Engines that tell no ids: their streams go on to the agent once a small question has shown that nothing is lost."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anthropic
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from core.gateway.engines.answer import EngineCall
from core.gateway.engines.registry import EngineSet
from core.gateway.engines.stream_trials import TRIALS, TRY_AGAIN_S
from core.gateway.served_dialects import CHAT
from core.ingest.drafts import drafts_of_call
from tests.conftest import eventually
from tests.gateway.upstream import Upstream

HI: Any = [{"role": "user", "content": "hi"}]
WEATHER: Any = [{"role": "user", "content": "weather?"}]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
HEAD = {"id": "chatcmpl-7", "created": 1_700_000_000, "model": "qwen3:0.6b", "system_fingerprint": "fp_ollama"}
USAGE = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}
SAID = {"chat": "Well, hello to you all.", "completions": " there was an engine.", "chat with tools": "Let me see."}


class Ollama(Upstream):
    """Speaks as Ollama does, whole and streamed: log-probs by text, thoughts, a tool call in one piece, no ids.

    Attributes:
        loses: what its stream does wrong, a key of ``LOSSES``.
        pause: seconds before each chunk.
    """

    loses = ""
    pause = 0.0
    tells_ids = False

    async def _answer(self, request: Request) -> Response:
        await super()._answer(request)
        body = self.last.body
        kind = "completions" if self.last.path == "completions" else "chat with tools" if body.get("tools") else "chat"
        calls = [{"id": f"call_{len(self.seen)}", "index": 0, "type": "function"}] if body.get("tools") else []
        for call in calls:
            call["function"] = {"name": "get_weather", "arguments": '{"city":"Paris"}'}
        chunks = self.chunks(kind, calls, bool(body.get("logprobs")))
        if not body.get("stream"):
            return JSONResponse(self.whole(kind, calls, bool(body.get("logprobs"))))
        if self.loses == "stream":
            return JSONResponse({"error": {"message": "no streams here"}}, 400)
        if self.loses == "pieces":
            return JSONResponse(self.whole(kind, calls, bool(body.get("logprobs"))))
        return StreamingResponse(self.events(LOSSES.get(self.loses, lambda them: them)(chunks)), media_type=EVENTS)

    def entry(self, word: str) -> dict[str, Any]:
        entry = {"token": word, "logprob": -0.5, "bytes": list(word.encode()), "top_logprobs": []}
        return {**entry, "id": 7} if self.tells_ids else entry

    def whole(self, kind: str, calls: list[Any], logprobs: bool) -> dict[str, Any]:
        words = re.findall(r"\S+|\s+", SAID[kind])
        choice: dict[str, Any] = {"index": 0, "finish_reason": "tool_calls" if calls else "stop"}
        if kind == "completions":
            choice["text"] = SAID[kind]
        else:
            choice["message"] = {"role": "assistant", "content": SAID[kind], "reasoning": "Hm. So."}
            if calls:
                choice["message"]["tool_calls"] = calls
            if logprobs:
                choice["logprobs"] = {"content": [self.entry(word) for word in words]}
        name = "text_completion" if kind == "completions" else "chat.completion"
        return {**HEAD, "object": name, "choices": [choice], "usage": USAGE}

    def chunks(self, kind: str, calls: list[Any], logprobs: bool) -> list[dict[str, Any]]:
        name = "text_completion" if kind == "completions" else "chat.completion.chunk"
        choices: list[dict[str, Any]] = []
        words = re.findall(r"\S+|\s+", SAID[kind])
        if kind == "completions":
            choices = [{"index": 0, "text": word, "finish_reason": None} for word in words]
            choices[-1]["finish_reason"] = "stop"
        else:
            deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "", "reasoning": "Hm. "}]
            deltas += [{"content": "", "reasoning": "So."}, *({"content": word} for word in words)]
            choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
            if logprobs:
                for choice, word in zip(choices[2:], words, strict=True):
                    choice["logprobs"] = {"content": [self.entry(word)]}
            if calls:
                choices.append({"index": 0, "delta": {"content": "", "tool_calls": calls}, "finish_reason": None})
            choices.append({"index": 0, "delta": {}, "finish_reason": "tool_calls" if calls else "stop"})
        chunks = [{**HEAD, "object": name, "choices": [choice]} for choice in choices]
        return [*chunks, {**HEAD, "object": name, "choices": [], "usage": USAGE}]

    async def events(self, chunks: list[dict[str, Any]]) -> AsyncIterator[bytes]:
        for chunk in chunks:
            await asyncio.sleep(self.pause)
            yield b"data: " + json.dumps(chunk).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"


EVENTS = "text/event-stream"
Chunks = list[dict[str, Any]]


def altered(chunks: Chunks, alter: Callable[[dict[str, Any]], None]) -> Chunks:
    for chunk in chunks:
        for choice in chunk["choices"]:
            alter(choice)
    return chunks


def tool_as_text(choice: dict[str, Any]) -> None:
    if calls := choice["delta"].pop("tool_calls", None):
        choice["delta"]["content"] = f"<tool_call>{json.dumps(calls[0]['function'])}</tool_call>"


def half_of_a_call(choice: dict[str, Any]) -> None:
    for call in choice["delta"].get("tool_calls", ()):
        call["function"]["arguments"] = call["function"]["arguments"][:-3]


LOSSES: dict[str, Callable[[Chunks], Chunks]] = {
    "usage": lambda chunks: chunks[:-1],
    "one word": lambda chunks: [*chunks[:3], *chunks[4:]],
    "thoughts": lambda chunks: altered(chunks, lambda choice: choice["delta"].pop("reasoning", None)),
    "log-probs": lambda chunks: altered(chunks, lambda choice: choice.pop("logprobs", None)),
    "the reason": lambda chunks: altered(
        chunks, lambda choice: choice.update(finish_reason=choice["finish_reason"] and "length")
    ),
    "the end": lambda chunks: altered(chunks, lambda choice: choice.update(finish_reason=None)),
    "the tool call": lambda chunks: altered(chunks, tool_as_text),
    "arguments": lambda chunks: altered(chunks, half_of_a_call),
    "calls' reason": lambda chunks: altered(
        chunks, lambda choice: choice.update(finish_reason=choice["finish_reason"] and "stop")
    ),
    "shape": lambda chunks: [{**chunks[0], "choices": [{"index": 0, "delta": "odd", "finish_reason": "stop"}]}],
}
KIND_OF_LOSS = {"the tool call": "chat with tools", "arguments": "chat with tools", "calls' reason": "chat with tools"}


@pytest.fixture
def ollama(stopping) -> Iterator[Ollama]:
    engine = Ollama(ollama="0.12.11", owner="library", models=["qwen3:0.6b", "other"])
    engine.start()
    yield engine
    stopping(engine.stop)


def streams_now(gateway: Any) -> dict[str, str]:
    return gateway.engines.status()[0]["streaming"]


def ask(gateway: Any, kind: str, **more: Any) -> list[Any]:
    sdk = gateway.sdk()
    if kind == "completions":
        return list(sdk.completions.create(model="qwen3:0.6b", prompt="Once", stream=True, **more))
    tools = {"tools": [TOOL]} if kind == "chat with tools" else {}
    return list(sdk.chat.completions.create(model="qwen3:0.6b", messages=HI, stream=True, **tools, **more))


def tried(gateway: Any, kind: str) -> str:
    """How streams are made once that was tried out."""
    eventually(lambda: "is being tried" not in streams_now(gateway)[kind])
    return streams_now(gateway)[kind]


def step_of(record: dict[str, Any]) -> dict[str, Any]:
    """What a step is made of that does not differ from call to call."""
    (draft,) = drafts_of_call(record, "s", 0)
    message = dict(draft.response_message or {})
    for call in message.get("tool_calls") or ():
        call.pop("id", None)
        call.pop("index", None)
    logprobs = draft.response_logprobs
    return {
        "message": message, "finish": draft.finish_reason, "source": draft.token_source, "ids": draft.response_ids,
        "logprobs": None if logprobs is None else list(logprobs), "mismatch": draft.mismatch,
        "usage": record["response"]["usage"], "text": record["response"]["choices"][0].get("text"),
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["chat", "chat with tools", "completions"])
def test_words_come_at_once_from_the_second_call_on_and_the_step_is_the_same(make_gateway, ollama, kind):
    gateway = make_gateway(ollama)
    ask(gateway, kind)
    assert tried(gateway, kind) == "relay"
    n_seen = len(ollama.seen)
    ask(gateway, kind)
    assert (len(ollama.seen), ollama.last.body["stream"]) == (n_seen + 1, True)
    first, second = gateway.records()
    assert [record["stream_mode"] for record in (first, second)] == ["whole", "relay"]
    assert step_of(first) == step_of(second)
    assert step_of(second)["source"] == ("none" if kind == "completions" else "bytes")
    # What was asked on the way is nobody's call.
    assert gateway.stats.snapshot()["n_calls"] == 2
    assert all("x-trajectory-uid" not in seen.headers for seen in ollama.seen[1:3])


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
def test_every_dialect_sees_the_first_word_before_the_last_is_said(make_gateway, ollama, dialect):
    gateway = make_gateway(ollama)
    ask(gateway, "chat with tools")
    assert tried(gateway, "chat with tools") == "relay"
    ollama.pause = 0.1
    times: list[float] = []
    if dialect == "messages":
        client = anthropic.Anthropic(base_url=gateway.root, api_key="x", max_retries=0)
        tool = {"name": "get_weather", "input_schema": TOOL["function"]["parameters"]}
        with client.messages.stream(model="qwen3:0.6b", max_tokens=99, messages=WEATHER, tools=[tool]) as stream:
            times += [time.monotonic() for _ in stream]
            final = stream.get_final_message()
        text = "".join(block.text for block in final.content if block.type == "text")
        called = [(block.name, block.input) for block in final.content if block.type == "tool_use"]
        assert (final.usage.output_tokens, final.stop_reason) == (5, "tool_use")
    elif dialect == "responses":
        tool = {"type": "function", "strict": False, **TOOL["function"]}
        with gateway.sdk().responses.stream(model="qwen3:0.6b", input="weather?", tools=[tool]) as stream:
            times += [time.monotonic() for _ in stream]
            final = stream.get_final_response()
        text = final.output_text
        called = [(item.name, json.loads(item.arguments)) for item in final.output if item.type == "function_call"]
        assert final.usage.output_tokens == 5
    else:
        with gateway.sdk().chat.completions.stream(
            model="qwen3:0.6b", messages=WEATHER, tools=[TOOL], stream_options={"include_usage": True}
        ) as stream:
            times += [time.monotonic() for _ in stream]
            final = stream.get_final_completion()
        text = final.choices[0].message.content
        functions = [call.function for call in final.choices[0].message.tool_calls]
        called = [(function.name, json.loads(function.arguments)) for function in functions]
        assert final.usage.completion_tokens == 5
    assert (text, called) == (SAID["chat with tools"], [("get_weather", {"city": "Paris"})])
    assert times[-1] - times[0] > 0.3
    assert gateway.records()[-1]["stream_mode"] == "relay"


@pytest.mark.parametrize("loses", ["stream", "pieces", *LOSSES])
def test_a_stream_that_loses_something_is_never_relayed(make_gateway, ollama, loses):
    gateway = make_gateway(ollama)
    kind = KIND_OF_LOSS.get(loses, "chat")
    ollama.loses = loses
    for _ in range(2):
        ask(gateway, kind)
        how = tried(gateway, kind)
        assert how.startswith("whole: "), how
    assert [record["stream_mode"] for record in gateway.records()] == ["whole", "whole"]
    # One trial until it is time for another.
    assert len(ollama.seen) == 4
    assert all(step_of(record)["usage"] == USAGE for record in gateway.records())


def test_trials_are_few(ollama):
    """The clock is the engine's own, so this one is asked without a gateway around it."""
    now = [0.0]
    engines = EngineSet(clock=lambda: now[0])
    engine = engines.add("ollama", ollama.base_url)
    call = EngineCall(CHAT, {"messages": HI}, "qwen3:0.6b")

    async def calls() -> None:
        for _ in range(TRIALS + 2):
            await engine.open_stream(call)
            trials = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.gather(*trials)
            now[0] += TRY_AGAIN_S

    ollama.loses = "usage"
    asyncio.run(calls())
    assert len(ollama.seen) == TRIALS + 2 + 2 * TRIALS


def test_a_stream_that_gets_worse_was_the_last_one(make_gateway, ollama):
    gateway = make_gateway(ollama)
    ask(gateway, "chat")
    assert tried(gateway, "chat") == "relay"
    for loses, why in (("usage", "no usage"), ("log-probs", "no log-probs")):
        gateway.engines.add("engine", ollama.base_url)
        ollama.loses = ""
        ask(gateway, "chat")
        assert tried(gateway, "chat") == "relay"
        ollama.loses = loses
        ask(gateway, "chat")
        assert streams_now(gateway)["chat"] == f"whole: its stream has {why}"
        ask(gateway, "chat")
        assert [record["stream_mode"] for record in gateway.records()][-2:] == ["relay", "whole"]


def test_an_engine_that_tells_ids_by_now_is_asked_for_whole_answers_again(make_gateway, ollama):
    gateway = make_gateway(ollama)
    ask(gateway, "chat")
    assert tried(gateway, "chat") == "relay"
    ollama.tells_ids = True
    for _ in range(2):
        ask(gateway, "chat")
    assert [record["stream_mode"] for record in gateway.records()] == ["whole", "relay", "whole"]
    assert [step_of(record)["source"] for record in gateway.records()] == ["bytes", "logprobs", "logprobs"]


def test_each_model_and_kind_for_itself_and_several_choices_whole(make_gateway, ollama):
    gateway = make_gateway(ollama)
    ask(gateway, "chat")
    assert tried(gateway, "chat") == "relay"
    ask(gateway, "chat with tools")
    gateway.chat(model="other", stream=True)
    ask(gateway, "chat", n=2)
    assert [record["stream_mode"] for record in gateway.records()] == ["whole"] * 4
    assert len(gateway.records()[-1]["response"]["choices"]) == 2


@pytest.mark.parametrize("how", ["whole", "relay"])
def test_who_is_told_how_to_stream_tries_nothing(make_gateway, ollama, how):
    gateway = make_gateway(ollama, streaming=how)
    ask(gateway, "chat")
    gateway.chat()
    assert [record["stream_mode"] for record in gateway.records()] == [how, "none"]
    assert len(ollama.seen) == 2


def test_nothing_is_tried_where_nobody_streams(make_gateway, ollama):
    gateway = make_gateway(ollama)
    gateway.chat()
    gateway.chat(tools=[TOOL])
    assert len(ollama.seen) == 2


def test_a_stop_does_not_wait_for_a_trial(make_gateway, ollama):
    gateway = make_gateway(ollama)
    ollama.pause = 30.0
    ask(gateway, "chat")
    begun = time.monotonic()
    gateway.server.stop(25.0)
    assert time.monotonic() - begun < 20.0
