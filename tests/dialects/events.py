"""Event streams read independently of the code that writes them, and put together by the official clients."""

from __future__ import annotations

import json
from typing import Any

from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

MESSAGE_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
RESPONSE_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def parse(stream: bytes) -> list[tuple[str | None, Any]]:
    """(event name, data) of each event; comments are left out."""
    events = []
    assert stream.endswith(b"\n\n")
    for block in stream.decode().removesuffix("\n\n").split("\n\n"):
        name, data = None, []
        for line in block.split("\n"):
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                data.append(line.removeprefix("data: "))
            else:
                assert line.startswith(":"), line
        if data:
            text = "\n".join(data)
            events.append((name, text if text == "[DONE]" else json.loads(text)))
    return events


def message_of(stream: bytes) -> dict[str, Any]:
    """What Anthropic's client makes of a stream."""
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    kinds = []
    for name, data in parse(stream):
        assert name == data["type"]
        if name == "ping":
            continue
        kinds.append(name)
        snapshot = accumulate_event(
            event=MESSAGE_EVENT.validate_python(data), current_snapshot=snapshot, json_bufs=buffers
        )
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    starts = [data["index"] for name, data in parse(stream) if name == "content_block_start"]
    assert starts == list(range(len(starts)))
    return Message.model_validate(snapshot.model_dump(warnings=False)).model_dump(exclude_none=True)


def whole_message(body: dict[str, Any]) -> dict[str, Any]:
    """A whole answer as Anthropic's types read it."""
    return Message.model_validate(body).model_dump(exclude_none=True)


def response_of(stream: bytes) -> dict[str, Any]:
    """What OpenAI's client makes of a stream: the last event's response, held against what had been said before."""
    state: Any = ResponseStreamState(input_tools=omit, text_format=omit)
    snapshot: Any = None
    done: list[Any] = []
    for number, (name, data) in enumerate(parse(stream)):
        assert name == data["type"]
        assert data["sequence_number"] == number
        if number < 2:
            assert name == ("response.created", "response.in_progress")[number]
        event = RESPONSE_EVENT.validate_python(data)
        state.handle_event(event)
        snapshot = state._ResponseStreamState__current_snapshot
        if name == "response.output_item.done":
            assert data["output_index"] == len(done)
            done.append(data["item"])
    final = data["response"]
    assert name == f"response.{final['status']}"
    assert done == final["output"]
    for item, final_item in zip(snapshot.output, final["output"], strict=True):
        if item.type == "message":
            assert [getattr(part, "text", "") for part in item.content if part.type == "output_text"] == [
                part["text"] for part in final_item["content"] if part["type"] == "output_text"
            ]
        elif item.type == "function_call":
            assert item.arguments == final_item["arguments"]
    return Response.model_validate(final).model_dump()
