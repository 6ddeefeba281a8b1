"""Messages streams put together again, held against the official client's own putting together."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from core.dialects import ResponseIds, native_relay, native_stream
from core.dialects.messages import MESSAGES
from core.dialects.messages_assembly import MessageAssembly
from core.dialects.messages_request import RAW_ARGUMENTS
from core.gateway.calls.outbox import MAX_WAITING, Outbox
from core.gateway.transport.sse import EventReader
from tests.effort import settings

EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
USAGE = {"input_tokens": 3, "output_tokens": 5, "cache_read_input_tokens": 1, "cache_creation_input_tokens": 0}
words = st.text(max_size=30)
inputs = st.dictionaries(st.text(min_size=1, max_size=5), st.one_of(words, st.integers(-99, 99), st.lists(words)))
blocks = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, words),
    st.builds(lambda text, sign: {"type": "thinking", "thinking": text, "signature": sign}, words, words),
    st.builds(lambda data: {"type": "redacted_thinking", "data": data}, words),
    st.builds(lambda name, given: {"type": "tool_use", "id": f"t{name}", "name": name, "input": given}, words, inputs),
)
messages = st.builds(
    lambda content, reason: {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": content,
        "stop_reason": reason, "stop_sequence": None, "usage": USAGE,
    },
    st.lists(blocks, max_size=5),
    st.sampled_from(["end_turn", "tool_use", "max_tokens"]),
)  # fmt: skip


def events_of(stream: bytes) -> list[dict[str, Any]]:
    return [json.loads(data) for data in EventReader().feed(stream)]


def cut(events: list[dict[str, Any]], size: int) -> list[dict[str, Any]]:
    """The same with every text in pieces."""
    parts = []
    for event in events:
        delta = event.get("delta", {})
        name = next((name for name in ("text", "thinking", "partial_json") if name in delta), None)
        if event["type"] != "content_block_delta" or name is None:
            parts.append(event)
            continue
        text = delta[name]
        parts += [{**event, "delta": {**delta, name: text[at : at + size]}} for at in range(0, len(text), size)]
    return parts


def assembled(events: list[dict[str, Any]]) -> MessageAssembly:
    assembly = MessageAssembly()
    for event in events:
        assembly.feed(event)
    return assembly


@given(messages, st.integers(1, 7))
def test_the_whole_is_the_message_and_what_the_sdk_makes_of_it(message, size):
    events = cut(events_of(native_stream("messages", message)), size)
    assembly = assembled(events)
    assert assembly.ended
    assert assembly.full_answer() == message
    snapshot, unparsed = None, {}
    for event in events:
        parsed = EVENT.validate_python(event)
        snapshot = accumulate_event(event=parsed, current_snapshot=snapshot, json_bufs=unparsed)
    assert snapshot is not None
    assert snapshot.model_dump(exclude_none=True, exclude_unset=True)["content"] == message["content"]


@settings(max_examples=25)
@given(messages, st.integers(1, 3), st.data())
def test_a_slow_agent_gets_the_same_message(message, size, data):
    """Whenever it reads, and however much is put together while it does not."""
    events = [*cut(events_of(native_stream("messages", message)), size)]
    box = Outbox(MESSAGES.open({"messages": []}, ResponseIds("s"), ()).relay())
    box.pass_through("messages")
    sent = b""
    for event in events:
        # Many of them, so that what waits is put together.
        box.put([{"type": "ping"}] * data.draw(st.sampled_from([0, 0, MAX_WAITING])) + [event])
        assert len(box._waiting) <= MAX_WAITING
        if data.draw(st.booleans()):
            sent += box.take()
    assert b"message_stop" not in sent
    assert b"message_delta" not in sent
    sent += box.rest()
    sent_events = events_of(sent)
    assert assembled(sent_events).full_answer() == message
    assert [event["type"] for event in sent_events].count("message_stop") == 1


def test_what_is_not_known_is_kept():
    begun = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "usage": {"input_tokens": 1}}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": begun},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "a"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "b"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta", "citation": {"n": 1}}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta", "citation": {"n": 2}}},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "new", "data": "x"}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "new_delta", "data": "y", "facts": {"k": 1}}},
        {"type": "content_block_start", "index": 2, "content_block": {"type": "tool_use", "id": "t", "input": {}}},
        {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"cut'}},
        {"type": "someday"},
    ]
    assembly = assembled(events)
    assert assembly.begun
    assert not assembly.ended
    ended = {"stop_reason": "max_tokens", "container": {"id": "c"}}
    assembly.feed({"type": "message_delta", "delta": ended, "usage": {"output_tokens": 2}, "context_management": {}})
    assert assembly.ended
    whole = assembly.full_answer()
    assert whole["content"] == [
        {"type": "text", "text": "ab", "citations": [{"n": 1}, {"n": 2}]},
        {"type": "new", "data": "xy", "facts": {"k": 1}},
        {"type": "tool_use", "id": "t", "input": {RAW_ARGUMENTS: '{"cut'}},
    ]
    assert whole["usage"] == {"input_tokens": 1, "output_tokens": 2}
    assert (whole["container"], whole["context_management"]) == ({"id": "c"}, {})


def test_the_end_is_said_once():
    relay = native_relay("messages")
    assert relay.finish() == b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    assert relay.feed({"type": "message_stop"})
    assert relay.finish() == b""


@pytest.mark.parametrize("events", [[], [{"type": "ping"}], [{"type": "content_block_delta", "index": 3}]])
def test_what_is_no_message_has_not_begun(events):
    assert not assembled(events).begun
