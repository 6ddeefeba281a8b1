"""A call that a client spells anew is rendered as it was sampled; the reference is the ids of the engine's answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from core.serving.process import EngineProcess

from .serving_client import Client

ARGUMENTS: dict[str, Any] = {"text": "größe <3", "a": 1, "list": [1.5, {"b": None}]}
TOOL = {"type": "function", "function": {"name": "note", "parameters": {"type": "object"}}}


def spellings() -> list[str]:
    reordered = dict(reversed(ARGUMENTS.items()))
    return [
        json.dumps(ARGUMENTS, ensure_ascii=False),
        json.dumps(ARGUMENTS),
        json.dumps(ARGUMENTS, ensure_ascii=False, separators=(",", ":")),
        json.dumps(reordered, indent=2).replace("1,", "1.0,", 1),
    ]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with EngineProcess.start("scripted") as running:
        client = Client(running)
        yield client
        client.close()


def ids_of(answer: Any) -> tuple[list[int], list[int]]:
    return answer.prompt_token_ids, answer.choices[0].token_ids


@pytest.mark.parametrize("sampled", spellings())
@pytest.mark.parametrize("sent", spellings())
@pytest.mark.parametrize("keeps_ids", [True, False])
def test_the_next_prompt_begins_with_what_was_sampled(client, sampled: str, sent: str, keeps_ids: bool) -> None:
    rule = {"when": {"turn": 0}, "reply": {"tool_calls": [{"name": "note", "arguments": sampled}]}}
    client.script({"rules": [rule]})
    talk: list[dict[str, Any]] = [{"role": "user", "content": "write"}]
    first = client.chat(messages=talk, tools=[TOOL])
    (call,) = first.choices[0].message.tool_calls
    assert call.function.arguments == sampled
    call_id = call.id if keeps_ids else "rewritten"
    again = {"id": call_id, "type": "function", "function": {"name": "note", "arguments": sent}}
    talk += [
        {"role": "assistant", "content": None, "tool_calls": [again]},
        {"role": "tool", "tool_call_id": call_id, "content": "ok"},
    ]
    second = client.chat(messages=talk, tools=[TOOL])
    before = [token for ids in ids_of(first) for token in ids]
    assert ids_of(second)[0][: len(before)] == before


def test_other_arguments_are_rendered_as_they_are(client) -> None:
    client.script({"default": {"tool_calls": [{"name": "note", "arguments": {"a": 1}}]}})
    client.chat(messages=[{"role": "user", "content": "write"}], tools=[TOOL])
    other = {"id": "x", "type": "function", "function": {"name": "note", "arguments": '{"a":2}'}}
    talk = [{"role": "user", "content": "write"}, {"role": "assistant", "content": None, "tool_calls": [other]}]
    tokens = client.http.post("/tokenize", json={"messages": talk, "tools": [TOOL]}).json()["tokens"]
    assert '"arguments": {"a":2}' in client.http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
