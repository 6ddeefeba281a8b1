"""What hosted providers answer, whole and as a stream, in the wire formats that they document."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from starlette.responses import JSONResponse, StreamingResponse

CALLS = (("f", {"x": 1}), ("g", {}))


def _entries(*texts: str) -> dict[str, Any]:
    entries = [{"token": text, "logprob": -0.25, "bytes": list(text.encode()), "top_logprobs": []} for text in texts]
    return {"content": entries, "refusal": None}


def _openai_calls() -> list[dict[str, Any]]:
    return [
        {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
        for name, given in CALLS
    ]


_OPENAI_USAGE = {
    "prompt_tokens": 4, "completion_tokens": 13, "total_tokens": 17,
    "prompt_tokens_details": {"cached_tokens": 1}, "completion_tokens_details": {"reasoning_tokens": 2},
}  # fmt: skip
OPENAI: dict[str, Any] = {
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1_700_000_000, "model": "served",
    "choices": [
        {
            "index": 0, "finish_reason": "tool_calls", "logprobs": _entries("Hel", "", "lo"),
            "message": {"role": "assistant", "content": "Hello", "reasoning_content": "Hm so",
                        "tool_calls": _openai_calls()},
        },
        {
            "index": 1, "finish_reason": "length", "logprobs": _entries("Other"),
            "message": {"role": "assistant", "content": "Other"},
        },
    ],
    "usage": _OPENAI_USAGE,
}  # fmt: skip


def _openai_chunk(delta: dict[str, Any], index: int = 0, finish: str | None = None, *texts: str) -> dict[str, Any]:
    head = {name: OPENAI[name] for name in ("id", "created", "model")}
    logprobs = _entries(*texts) if texts else None
    choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
    return {**head, "object": "chat.completion.chunk", "choices": [choice]}


def _openai_chunks() -> list[dict[str, Any]]:
    def call(index: int, **more: Any) -> dict[str, Any]:
        return _openai_chunk({"tool_calls": [{"index": index, **more}]})

    return [
        _openai_chunk({"role": "assistant", "content": ""}),
        _openai_chunk({"role": "assistant", "content": ""}, 1),
        _openai_chunk({"reasoning_content": "Hm "}),
        _openai_chunk({"reasoning_content": "so"}),
        _openai_chunk({"content": "Hel"}, 0, None, "Hel"),
        # A token without text has its log-prob all the same.
        _openai_chunk({"content": ""}, 0, None, ""),
        _openai_chunk({"content": "Other"}, 1, None, "Other"),
        _openai_chunk({"content": "lo"}, 0, None, "lo"),
        call(0, id="call_f", type="function", function={"name": "f", "arguments": ""}),
        call(0, function={"arguments": '{"x"'}),
        call(1, id="call_g", type="function", function={"name": "g", "arguments": ""}),
        call(0, function={"arguments": ": 1}"}),
        call(1, function={"arguments": "{}"}),
        _openai_chunk({}, 1, "length"),
        _openai_chunk({}, 0, "tool_calls"),
        {**_openai_chunk({}), "choices": [], "usage": _OPENAI_USAGE},
    ]


ANTHROPIC: dict[str, Any] = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "served",
    "content": [
        {"type": "thinking", "thinking": "Hm so", "signature": "c2lnbmVk"},
        {"type": "redacted_thinking", "data": "zzz"},
        {"type": "text", "text": "Hello"},
        *({"type": "tool_use", "id": f"call_{name}", "name": name, "input": given} for name, given in CALLS),
    ],
    "stop_reason": "tool_use", "stop_sequence": None,
    "usage": {"input_tokens": 25, "cache_creation_input_tokens": 2, "cache_read_input_tokens": 3, "output_tokens": 15},
}  # fmt: skip


def _anthropic_events() -> list[dict[str, Any]]:
    def delta(index: int, kind: str, **fields: Any) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}

    begun = {**ANTHROPIC, "content": [], "stop_reason": None, "usage": {**ANTHROPIC["usage"], "output_tokens": 1}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": begun}, {"type": "ping"}]
    pieces: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
        (
            {"type": "thinking", "thinking": "", "signature": ""},
            [
                delta(0, "thinking_delta", thinking="Hm "),
                delta(0, "thinking_delta", thinking="so"),
                delta(0, "signature_delta", signature="c2lnbmVk"),
            ],
        ),
        (ANTHROPIC["content"][1], []),
        ({"type": "text", "text": ""}, [delta(2, "text_delta", text="Hel"), delta(2, "text_delta", text="lo")]),
        (
            {**ANTHROPIC["content"][3], "input": {}},
            [delta(3, "input_json_delta", partial_json=piece) for piece in ("", '{"x"', ": 1}")],
        ),
        ({**ANTHROPIC["content"][4], "input": {}}, [delta(4, "input_json_delta", partial_json="{}")]),
    ]
    for index, (block, deltas) in enumerate(pieces):
        events += [
            {"type": "content_block_start", "index": index, "content_block": block},
            *deltas,
            {"type": "content_block_stop", "index": index},
        ]
    ended = {"stop_reason": "tool_use", "stop_sequence": None}
    return [
        *events,
        {"type": "message_delta", "delta": ended, "usage": {"output_tokens": 15}},
        {"type": "message_stop"},
    ]


def _gemini(parts: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
    candidate = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    usage = more.pop("usage", {"promptTokenCount": 5, "totalTokenCount": 5})
    head = {"modelVersion": "served", "responseId": "r1", "usageMetadata": usage}
    return {"candidates": [{**candidate, **more}], **head}


_GEMINI_USAGE = {"promptTokenCount": 5, "candidatesTokenCount": 7, "thoughtsTokenCount": 2, "totalTokenCount": 14}
_GEMINI_CALLS = [{"functionCall": {"name": name, "args": given}} for name, given in CALLS]
GEMINI = _gemini(
    [{"text": "Hm so", "thought": True}, {"text": "Hello"}, *_GEMINI_CALLS], finishReason="STOP", usage=_GEMINI_USAGE
)


def _gemini_chunks() -> list[dict[str, Any]]:
    return [
        _gemini([{"text": "Hm ", "thought": True}]),
        _gemini([{"text": "so", "thought": True}]),
        _gemini([{"text": "Hel"}]),
        _gemini([{"text": "lo"}]),
        _gemini(_GEMINI_CALLS[:1]),
        _gemini(_GEMINI_CALLS[1:], finishReason="STOP", usage=_GEMINI_USAGE),
    ]


WIRES: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "openai": (OPENAI, _openai_chunks()),
    "anthropic": (ANTHROPIC, _anthropic_events()),
    "gemini": (GEMINI, _gemini_chunks()),
}
"""Wire -> (the whole answer, the same as a stream)."""


def provider(
    wire: str, *, gate: threading.Event | None = None, n_before: int = 0, n_sent: int | None = None, end: str = ""
) -> Callable[[Any], Any]:
    """A provider's reply to a request, for ``Upstream.reply``.

    Args:
        gate: the stream goes on with it after ``n_before`` chunks.
        n_sent: the stream has no more than these.
        end: what it ends with instead, as it stands.
    """
    whole, chunks = WIRES[wire]

    def reply(seen: Any) -> Any:
        n = seen.body.get("n") or 1
        if not (seen.body.get("stream") or "streamGenerate" in seen.path):
            return JSONResponse({**whole, "choices": whole["choices"][:n]} if "choices" in whole else whole)
        wanted = [chunk for chunk in chunks if all(choice["index"] < n for choice in chunk.get("choices", ()))]

        async def events() -> AsyncIterator[bytes]:
            for number, chunk in enumerate(wanted[:n_sent]):
                if number == n_before and gate is not None:
                    assert await asyncio.to_thread(gate.wait, 20)
                name = b"event: " + chunk["type"].encode() + b"\n" if wire == "anthropic" else b""
                yield name + b"data: " + json.dumps(chunk).encode() + b"\n\n"
            yield (end or ("data: [DONE]\n\n" if wire == "openai" and n_sent is None else "")).encode()

        return StreamingResponse(events(), media_type="text/event-stream")

    return reply
