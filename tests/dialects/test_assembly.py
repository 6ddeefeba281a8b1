"""Streams put together again are the whole answers that they were made of, however they were cut."""

from __future__ import annotations

import copy
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.lib.streaming.chat._completions import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from core.dialects import CHAT, COMPLETIONS, ResponseIds
from core.dialects.assembly import Assembly
from core.gateway.transport.sse import EventReader
from core.serving.tokenizer import load_tokenizer
from core.tokens import extract_tokens
from core.types import TokenSource

from .strategies import answers, pieces, streamed, texts

RECORDED = Path(__file__).parent.parent / "gateway" / "engines" / "recorded"


def chunks_of(stream: bytes, cuts: list[int]) -> list[dict[str, Any]]:
    reader, events = EventReader(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        events += reader.feed(stream[start:end])
    return [json.loads(data) for data in events if data != b"[DONE]"]


def assembled(chunks: list[dict[str, Any]]) -> Assembly:
    assembly = Assembly()
    for chunk in chunks:
        assembly.feed(chunk)
    return assembly


def normal(answer: dict[str, Any]) -> dict[str, Any]:
    """Without what says nothing, and no words as one spelling of it."""
    answer = {name: value for name, value in answer.items() if value is not None and name not in ("object", "created")}
    answer["choices"] = [
        {name: value for name, value in choice.items() if value is not None} for choice in answer["choices"]
    ]
    for choice in answer["choices"]:
        if "message" in choice:
            fields = {name: value for name, value in choice["message"].items() if value not in (None, "")}
            fields["tool_calls"] = fields.get("tool_calls") or []
            choice["message"] = fields
    return answer


@st.composite
def exact_answers(draw: st.DrawFn) -> dict[str, Any]:
    """A whole answer of several choices with ids and log-probs."""
    answer = draw(answers())
    answer["prompt_token_ids"] = draw(st.lists(st.integers(0, 9), max_size=4))
    choices = [answer["choices"][0], *(draw(answers())["choices"][0] for _ in range(draw(st.integers(0, 2))))]
    for index, choice in enumerate(choices):
        ids = draw(st.lists(st.integers(0, 99999), max_size=5))
        choice["index"] = index
        choice["token_ids"] = ids
        choice["logprobs"] = {"content": [{"token": str(one), "logprob": -0.25 * (one % 7)} for one in ids]}
    return {**answer, "choices": choices}


@given(exact_answers(), st.data())
def test_a_stream_made_from_an_answer_is_that_answer(answer: dict[str, Any], data: st.DataObject) -> None:
    request = {"stream_options": {"include_usage": True}}
    stream = CHAT.open({"messages": [], **request}, ResponseIds("s"), ()).stream(copy.deepcopy(answer))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=6)))
    assembly = assembled(chunks_of(stream, cuts))
    assert assembly.ended
    assert normal(assembly.full_answer()) == normal(answer)


@given(streamed(), st.data())
def test_an_engines_chunks_are_the_answer_and_so_are_groups_of_them(case: Any, data: st.DataObject) -> None:
    answer, chunks = case
    before = copy.deepcopy(chunks)
    assert normal(assembled(chunks).full_answer()) == normal(answer)
    assert chunks == before
    cuts = sorted(data.draw(st.sets(st.integers(0, len(chunks)), max_size=4)) | {0, len(chunks)})
    groups = [assembled(chunks[start:end]).chunk() for start, end in pairwise(cuts)]
    assert normal(assembled(groups).full_answer()) == normal(answer)
    assert chunks == before


@given(streamed())
def test_the_official_client_reads_merged_chunks_alike(case: Any) -> None:
    answer, chunks = case
    head = {"id": "c", "created": 1, "model": "m", "object": "chat.completion.chunk"}
    half = len(chunks) // 2
    groups = [
        assembled([{**head, **chunk} for chunk in part]).chunk() for part in (chunks[:half], chunks[half:]) if part
    ]
    states = []
    for form in (chunks, groups):
        state: Any = ChatCompletionStreamState()
        for chunk in form:
            state.handle_chunk(ChatCompletionChunk.model_validate({**head, **chunk}))
        states.append(state.current_completion_snapshot.choices[0].message)
    one, other = states
    assert one.role == other.role == "assistant"
    assert (one.content or "") == (other.content or "")
    assert [call.function for call in one.tool_calls or ()] == [call.function for call in other.tool_calls or ()]
    assert len(answer["choices"]) == 1


@given(st.lists(st.tuples(texts, st.lists(st.integers(0, 99), max_size=4)), min_size=1, max_size=3), st.data())
def test_completions(told: list[tuple[str, list[int]]], data: st.DataObject) -> None:
    choices = [
        {
            "index": index,
            "text": text,
            "token_ids": ids,
            "prompt_token_ids": [index, 1],
            "logprobs": {
                "tokens": [str(one) for one in ids],
                "token_logprobs": [-0.5] * len(ids),
                "text_offset": list(range(len(ids))),
                "top_logprobs": [{str(one): -0.5} for one in ids],
            },
            "finish_reason": "stop",
        }
        for index, (text, ids) in enumerate(told)
    ]
    answer = {"id": "cmpl-1", "created": 1, "model": "m", "choices": choices, "usage": {"completion_tokens": 3}}
    request = {"prompt": "x", "stream_options": {"include_usage": True}}
    stream = COMPLETIONS.open(request, ResponseIds("s"), ()).stream(copy.deepcopy(answer))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=6)))
    assert normal(assembled(chunks_of(stream, cuts)).full_answer()) == normal(answer)


@given(texts.filter(bool), st.data())
def test_a_legacy_call_and_a_call_that_repeats_its_name(arguments: str, data: st.DataObject) -> None:
    parts = data.draw(pieces(arguments))
    legacy = [
        {"choices": [{"index": 0, "delta": {"function_call": {"name": "f", "arguments": part}}}]} for part in parts
    ]
    assert assembled(legacy).full_answer()["choices"][0]["message"]["function_call"] == {
        "name": "f",
        "arguments": arguments,
    }
    call = {"index": 0, "id": "c", "type": "function"}
    calls = [
        {"choices": [{"delta": {"tool_calls": [{**call, "function": {"name": "f", "arguments": part}}]}}]}
        for part in parts
    ]
    assert assembled(calls).full_answer()["choices"][0]["message"]["tool_calls"] == [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    ]


def test_what_is_no_chunk_is_no_choice() -> None:
    assembly = assembled([{}, {"choices": None}, {"choices": [3]}, {"unexpected": True}])
    assert not assembly.begun
    assert not assembly.ended
    assembly.feed({"choices": [{"delta": None}]})
    assert assembly.begun
    assert not assembly.ended


@pytest.mark.parametrize(
    ("engine", "exchange", "source"),
    [
        ("vllm", "chat_stream", TokenSource.ENGINE),
        ("vllm", "chat_tools_stream", TokenSource.ENGINE),
        ("vllm", "completions_stream", TokenSource.ENGINE),
        ("sglang", "completions_stream", TokenSource.ENGINE),
        ("llamacpp", "completions_stream", TokenSource.ENGINE),
    ],
)
def test_real_streams_tell_what_real_whole_answers_tell(engine: str, exchange: str, source: str) -> None:
    recorded = json.loads((RECORDED / f"{engine}.json").read_text(encoding="utf-8"))["exchanges"]
    stream, whole = recorded[exchange], recorded[exchange.removesuffix("_stream")]["response"]
    assembly = assembled(chunks_of(stream["stream"].encode(), []))
    assert assembly.ended
    answer = assembly.full_answer()
    assert answer["object"] == whole["object"]
    assert set(answer["choices"][0]) <= {*whole["choices"][0], "matched_stop"}
    tokens = extract_tokens(answer, 0, stream["dialect"])
    assert (tokens.token_source, tokens.mismatch) == (source, None)
    assert tokens.response_ids is not None
    assert tokens.response_logprobs is not None
    n_tokens = stream["request"]["max_tokens"]
    assert len(tokens.response_ids) == len(tokens.response_logprobs) == n_tokens
    text = load_tokenizer().decode(tokens.response_ids)
    choice = answer["choices"][0]
    if exchange == "chat_tools_stream":
        assert text.startswith("<tool_call>"[:n_tokens])
    else:
        assert text == (choice["text"] if "text" in choice else choice["message"]["content"])
    if engine != "llamacpp" and exchange != "chat_tools_stream":
        assert tokens.prompt_ids == extract_tokens(whole, 0, stream["dialect"]).prompt_ids
