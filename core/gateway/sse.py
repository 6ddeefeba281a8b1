"""Event streams made from whole answers, as the OpenAI API sends them.

An engine's own stream can lose ids and log-probs, above all with tools, so by default the answer is taken whole,
made durable, and streamed to the agent from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"

_WHOLE_ONLY = frozenset({"role", "content", "tool_calls", "reasoning", "reasoning_content"})
_ENVELOPE = ("id", "created", "model", "system_fingerprint", "service_tier")


def event(data: Any) -> bytes:
    """One event with a JSON body."""
    return b"data: " + orjson.dumps(data) + b"\n\n"


def chat_stream(answer: Mapping[str, Any], request: Mapping[str, Any]) -> bytes:
    """The chunks of a chat answer: role, reasoning, content, tool calls, finish, usage if asked for, ``[DONE]``."""
    with_usage = _wants_usage(request)
    head = _head(answer, "chat.completion.chunk", with_usage)
    parts: list[bytes] = []
    for position, choice in enumerate(answer["choices"]):
        index = choice.get("index", position)
        for number, delta in enumerate(_deltas(choice.get("message") or {})):
            piece: dict[str, Any] = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            if number == 0:
                # Log-probs and ids belong to all the tokens of the choice: they go out once, with its first chunk.
                piece["logprobs"] = choice.get("logprobs")
                if "token_ids" in choice:
                    piece["token_ids"] = choice["token_ids"]
            chunk = {**head, "choices": [piece]}
            if not parts and "prompt_token_ids" in answer:
                chunk["prompt_token_ids"] = answer["prompt_token_ids"]
            parts.append(event(chunk))
        last = {
            "index": index,
            "delta": {},
            "logprobs": None,
            "finish_reason": choice.get("finish_reason") or "stop",
        }
        parts.append(event({**head, "choices": [last]}))
    if with_usage:
        parts.append(event({**head, "choices": [], "usage": answer.get("usage")}))
    parts.append(DONE)
    return b"".join(parts)


def completions_stream(answer: Mapping[str, Any], request: Mapping[str, Any]) -> bytes:
    """The chunks of a text completion: text, finish, usage if asked for, ``[DONE]``."""
    with_usage = _wants_usage(request)
    head = _head(answer, "text_completion", with_usage)
    parts: list[bytes] = []
    for position, choice in enumerate(answer["choices"]):
        index = choice.get("index", position)
        piece = {key: value for key, value in choice.items() if key != "finish_reason"}
        parts.append(event({**head, "choices": [{**piece, "index": index, "finish_reason": None}]}))
        last = {
            "index": index,
            "text": "",
            "logprobs": None,
            "finish_reason": choice.get("finish_reason") or "stop",
        }
        parts.append(event({**head, "choices": [last]}))
    if with_usage:
        parts.append(event({**head, "choices": [], "usage": answer.get("usage")}))
    parts.append(DONE)
    return b"".join(parts)


def _deltas(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    content = message.get("content")
    extras = {key: value for key, value in message.items() if key not in _WHOLE_ONLY and value is not None}
    yield {"role": message.get("role") or "assistant", "content": None if content is None else "", **extras}
    # Engines name their reasoning one way or the other; an agent gets it as the engine said it.
    reasoning = {key: message[key] for key in ("reasoning", "reasoning_content") if message.get(key)}
    if reasoning:
        yield reasoning
    if content:
        yield {"content": content}
    for index, call in enumerate(message.get("tool_calls") or []):
        function = call.get("function")
        if not isinstance(function, dict):
            yield {"tool_calls": [{**call, "index": index}]}
            continue
        opening = {**call, "index": index, "function": {**function, "arguments": ""}}
        yield {"tool_calls": [opening]}
        yield {"tool_calls": [{"index": index, "function": {"arguments": function.get("arguments") or ""}}]}


def _head(answer: Mapping[str, Any], kind: str, with_usage: bool) -> dict[str, Any]:
    head: dict[str, Any] = {key: answer[key] for key in _ENVELOPE if key in answer}
    head["object"] = kind
    if with_usage:
        head["usage"] = None
    return head


def _wants_usage(request: Mapping[str, Any]) -> bool:
    options = request.get("stream_options")
    return isinstance(options, dict) and bool(options.get("include_usage"))
