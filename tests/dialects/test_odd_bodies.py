"""Bodies that agents send, one place of each holding something of another kind: translated, or refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import orjson
import pytest

from core.dialects import DIALECTS, BadRequest, ResponseIds
from core.dialects.assembly import Assembly

ODD: tuple[Any, ...] = (
    None, 7, -0.5, True, "x", "", "{", [], {}, [None], ["x"], [{}], {"x": None}, [[1]], 10**19, {"type": ["x"]},
)  # fmt: skip
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
PNG = "data:image/png;base64,aGk="
SOURCE = {"type": "base64", "media_type": "image/png", "data": "aGk="}
RESPONSES: dict[str, Any] = {
    "model": "m", "instructions": "Be brief.", "max_output_tokens": 9,
    "reasoning": {"effort": "low", "summary": "auto"},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}, "verbosity": "low"},
    "include": ["reasoning.encrypted_content"], "parallel_tool_calls": True, "store": False, "stream": False,
    "tool_choice": {"type": "function", "name": "f"}, "top_logprobs": 2, "metadata": {"a": "b"}, "truncation": "auto",
    "tools": [
        {"type": "function", "name": "f", "description": "d", "parameters": SCHEMA, "strict": False},
        {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"}},
        {"type": "namespace", "name": "ns", "tools": [{"type": "function", "name": "g", "parameters": SCHEMA}]},
        {"type": "local_shell"}, {"type": "web_search"},
    ],
    "input": [
        {"type": "message", "role": "developer", "content": "x"},
        {"role": "user", "content": [{"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": PNG},
                                     {"type": "input_file", "filename": "f", "file_data": PNG}]},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "s"}],
         "content": [{"type": "reasoning_text", "text": "t"}], "encrypted_content": "e"},
        {"type": "message", "role": "assistant", "id": "m", "content": [{"type": "output_text", "text": "y"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "o"}]},
        {"type": "custom_tool_call", "call_id": "d", "name": "patch", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "d", "output": "o"},
        {"type": "local_shell_call", "call_id": "e", "action": {"type": "exec", "command": ["ls"]}},
        {"type": "local_shell_call_output", "call_id": "e", "output": "o"},
    ],
}  # fmt: skip
MESSAGES: dict[str, Any] = {
    "model": "m", "max_tokens": 9, "temperature": 1.0, "stop_sequences": ["x"], "stream": False, "top_k": 5,
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
    "metadata": {"user_id": "u"}, "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"effort": "max", "format": {"type": "json_schema", "schema": SCHEMA}},
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    "tools": [{"name": "f", "description": "d", "input_schema": SCHEMA}, {"type": "web_search_1", "name": "web"}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image", "source": SOURCE},
                                     {"type": "document", "title": "t", "source": {"type": "text", "data": "d"}}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": "s"},
                                          {"type": "redacted_thinking", "data": "z"}, {"type": "text", "text": "y"},
                                          {"type": "tool_use", "id": "c", "name": "f", "input": {"a": "b"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "is_error": False,
                                      "content": [{"type": "text", "text": "o"}]}]},
    ],
}  # fmt: skip
CHAT: dict[str, Any] = {
    "model": "m", "n": 1, "stop": ["x"], "max_tokens": 9, "logprobs": True, "top_logprobs": 2, "stream": False,
    "stream_options": {"include_usage": True}, "response_format": {"type": "json_object"}, "tool_choice": "auto",
    "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": PNG}}]},
        {"role": "assistant", "content": None, "reasoning_content": "r",
         "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "o"},
    ],
}  # fmt: skip
COMPLETIONS: dict[str, Any] = {"model": "m", "prompt": ["x", "y"], "n": 1, "echo": False, "logprobs": 1, "suffix": "z"}
BODIES = {"responses": RESPONSES, "messages": MESSAGES, "chat": CHAT, "completions": COMPLETIONS}
ANSWER = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}]}


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*at, key))


def spoilt(body: dict[str, Any]) -> Iterator[tuple[tuple[Any, ...], Any, dict[str, Any]]]:
    for at in places(body):
        for odd in ODD:
            copy: Any = deepcopy(body)
            holder = copy
            for key in at[:-1]:
                holder = holder[key]
            holder[at[-1]] = odd
            yield at, odd, copy


@pytest.mark.parametrize("dialect", sorted(BODIES))
def test_a_body_with_something_odd_in_it_is_translated_or_refused_by_name(dialect: str) -> None:
    n_translated = n_refused = 0
    for at, odd, body in spoilt(BODIES[dialect]):
        try:
            translation = DIALECTS[dialect].open(body, ResponseIds("s" * 32, 1.0, "w0.1.8"), ())
            orjson.dumps(translation.engine_request)
            if dialect != "completions":
                orjson.dumps(translation.full_answer(deepcopy(ANSWER)))
                translation.stream(deepcopy(ANSWER))
            n_translated += 1
        except BadRequest as error:
            assert error.field, (at, odd)
            n_refused += 1
        except Exception as error:
            raise AssertionError(f"{odd!r} at {at}") from error
    assert n_translated
    assert n_refused or dialect in ("chat", "completions")


def test_chunks_with_something_odd_in_them_still_make_an_answer() -> None:
    """Whatever an engine streams: what can be told of it is told, so that the call has a record."""
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    entry = {"token": "x", "logprob": -0.5, "bytes": [120], "top_logprobs": []}
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    deltas = [
        {"role": "assistant", "content": "", "reasoning_content": "r"}, {"content": "x"}, {"tool_calls": [call]},
        {"tool_calls": [{"index": 0, "function": {"arguments": " "}}]},
        {"thinking_blocks": [{"type": "thinking", "thinking": "t", "signature": "s"}]},
        {"function_call": {"name": "f", "arguments": "{"}},
    ]  # fmt: skip
    choices = [{"index": 0, "delta": one, "logprobs": {"content": [entry]}, "token_ids": [7]} for one in deltas]
    chunks = {
        "chunks": [{**head, "prompt_token_ids": [1], "choices": [choice]} for choice in choices]
        + [{**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "__verbose": {"tokens": [1]}}]
        + [{**head, "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}]
    }
    for at, odd, body in spoilt(chunks):
        if len(at) < 3:
            # Not even an object: nothing of it reaches this.
            continue
        assembly = Assembly()
        try:
            for one in body["chunks"]:
                assembly.feed(one)
            orjson.dumps([assembly.full_answer(), assembly.chunk()])
        except Exception as error:
            raise AssertionError(f"{odd!r} at {at}") from error
