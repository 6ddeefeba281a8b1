"""Tool calls and usage of chat answers, streamed or not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from core.dialects.base import Json, reasoning_of
from core.dialects.exact import exact_json


@dataclass(slots=True)
class ToolCall:
    """One call; ``arguments`` is the sampled text."""

    id: str = ""
    name: str = ""
    arguments: str = ""


class ToolCalls:
    """The tool calls of one message, collected from a whole message or from deltas.

    Args:
        prefix: prefix of ids for calls without one.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._calls: dict[int, ToolCall] = {}

    def feed(self, delta: Mapping[str, Any]) -> None:
        """Add the calls of a message or delta, also the legacy ``function_call``."""
        pieces = delta.get("tool_calls")
        for position, piece in enumerate(pieces if isinstance(pieces, list) else ()):
            if not isinstance(piece, dict):
                continue
            index = piece.get("index")
            index = index if isinstance(index, int) else position
            call = self._calls.setdefault(index, ToolCall())
            if isinstance(piece.get("id"), str):
                call.id = call.id or piece["id"]
            self._add(call, piece.get("function") or piece.get("custom"))
        if isinstance(legacy := delta.get("function_call"), dict):
            self._add(self._calls.setdefault(0, ToolCall()), legacy)

    def all(self) -> list[ToolCall]:
        """All calls in order, each with an id."""
        calls = [self._calls[index] for index in sorted(self._calls)]
        for number, call in enumerate(calls):
            call.id = call.id or f"{self._prefix}_{number}"
        return calls

    def __bool__(self) -> bool:
        return bool(self._calls)

    @staticmethod
    def _add(call: ToolCall, function: Any) -> None:
        if not isinstance(function, dict):
            return
        if isinstance(name := function.get("name"), str):
            # The first value counts; engines may repeat it.
            call.name = call.name or name
        for key in ("arguments", "input"):
            arguments = function.get(key)
            if isinstance(arguments, str):
                call.arguments += arguments
            elif isinstance(arguments, dict):
                # Some engines send arguments as an object.
                call.arguments += orjson.dumps(arguments).decode()


def parsed_arguments(arguments: str) -> Json | None:
    """The arguments as an object; None if they are not one or would not round-trip. Empty text is an empty object."""
    if not arguments.strip():
        return {}
    try:
        value = exact_json(arguments)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def chunks_of(answer: Mapping[str, Any]) -> Iterator[Json]:
    """The first choice of a chat answer as stream chunks: reasoning, content, calls, end."""
    choices = answer.get("choices")
    choice: Mapping[str, Any] = choices[0] if isinstance(choices, list) and choices else {}
    maybe_message = choice.get("message")
    message: Mapping[str, Any] = maybe_message if isinstance(maybe_message, dict) else {}

    def chunk(delta: Json, **more: Any) -> Json:
        return {"choices": [{"index": 0, "delta": delta, **more}]}

    if reasoning := reasoning_of(message):
        yield chunk({"reasoning_content": reasoning}, logprobs=choice.get("logprobs"))
    for name in ("content", "refusal"):
        if message.get(name):
            yield chunk({name: message[name]}, logprobs=None if reasoning else choice.get("logprobs"))
    calls = {name: message[name] for name in ("tool_calls", "function_call") if message.get(name)}
    if calls:
        yield chunk(calls)
    ended = {name: choice[name] for name in ("finish_reason", "stop_reason", "matched_stop") if name in choice}
    yield {**chunk({}, **ended), "usage": answer.get("usage")}


def usage_counts(usage: Any) -> tuple[int, int, int, int]:
    """(prompt, cached prompt, completion, reasoning) tokens; 0 if unknown."""
    counts = usage if isinstance(usage, dict) else {}

    def count(holder: Any, name: str) -> int:
        value = holder.get(name) if isinstance(holder, dict) else None
        return value if isinstance(value, int) and not isinstance(value, bool) else 0

    return (
        count(counts, "prompt_tokens"),
        count(counts.get("prompt_tokens_details"), "cached_tokens"),
        count(counts, "completion_tokens"),
        count(counts.get("completion_tokens_details"), "reasoning_tokens"),
    )


def own_choices(chunk: Mapping[str, Any]) -> Iterable[tuple[Json, Json]]:
    """(choice, delta) of a chunk's first choice; only one is ever requested."""
    choices = chunk.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and choice.get("index", 0) == 0:
            delta = choice.get("delta")
            yield choice, delta if isinstance(delta, dict) else {}
