from __future__ import annotations

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionChunk

from core.dialects.chat import DONE, chat_stream

texts = st.text(max_size=40)
calls = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.text(min_size=1, max_size=8),
            "type": st.just("function"),
            "function": st.fixed_dictionaries({"name": texts, "arguments": texts}),
        }
    ),
    max_size=3,
)
messages = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": st.none() | texts},
    optional={"tool_calls": calls, "reasoning_content": texts, "refusal": texts},
)
answers = st.fixed_dictionaries(
    {
        "id": st.just("chatcmpl-x"),
        "object": st.just("chat.completion"),
        "created": st.just(1),
        "model": st.just("m"),
        "choices": st.lists(
            st.fixed_dictionaries({"message": messages, "finish_reason": st.sampled_from(["stop", "tool_calls"])}),
            min_size=1,
            max_size=3,
        ),
        "usage": st.just({"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}),
    }
)


def events_of(stream: bytes) -> list[dict[str, Any]]:
    """A reader by the book: events end with a blank line, data lines are joined by line feeds."""
    events = [event for event in stream.decode().split("\n\n") if event]
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    assert events.pop() == DONE.decode().strip()
    return [orjson.loads(event[6:]) for event in events]


@given(answers, st.booleans())
def test_what_a_client_puts_together_is_what_the_engine_said(answer, with_usage):
    for position, choice in enumerate(answer["choices"]):
        choice["index"] = position
    request = {"stream_options": {"include_usage": True}} if with_usage else {}
    events = events_of(chat_stream(answer, request))
    for event in events:
        ChatCompletionChunk.model_validate(event, strict=True)
    usages = [event["usage"] for event in events if event.get("usage")]
    assert usages == ([answer["usage"]] if with_usage else [])
    for choice in answer["choices"]:
        message = choice["message"]
        deltas = [part["delta"] for event in events for part in event["choices"] if part["index"] == choice["index"]]
        assert deltas[0]["role"] == "assistant"
        for name in ("content", "reasoning_content"):
            assert "".join(delta.get(name) or "" for delta in deltas) == (message.get(name) or "")
        assert deltas[0].get("refusal") == message.get("refusal")
        built: dict[int, dict[str, Any]] = {}
        for delta in deltas:
            for piece in delta.get("tool_calls") or []:
                call = built.setdefault(piece["index"], {"id": None, "name": "", "arguments": ""})
                call["id"] = piece.get("id") or call["id"]
                call["name"] += piece["function"].get("name") or ""
                call["arguments"] += piece["function"].get("arguments") or ""
        assert [built[index] for index in sorted(built)] == [
            {"id": call["id"], **call["function"]} for call in message.get("tool_calls") or []
        ]
        finishes = [
            part["finish_reason"]
            for event in events
            for part in event["choices"]
            if part["index"] == choice["index"] and part["finish_reason"]
        ]
        assert finishes == [choice["finish_reason"]]
