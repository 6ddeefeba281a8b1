"""Remembers the exact text of sampled tool calls, so that later prompts contain the same tokens.

Clients parse a call's arguments and serialize them again with other white space, escapes or key order. The object is
the same, but its tokens differ, so the next prompt would not start with the sampled tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cachetools import LRUCache

MAX_REMEMBERED: Final = 10_000

Json = Mapping[str, Any]


class Spellings:
    """The latest tool calls, found by id, name and arguments, or without the id if the client has changed it."""

    def __init__(self) -> None:
        self._texts: LRUCache[tuple[str, str], str] = LRUCache(MAX_REMEMBERED)

    def sampled(self, calls: Sequence[Json]) -> None:
        """Remember the tool calls of one answer (OpenAI's format)."""
        for call in calls:
            text = call["function"]["arguments"]
            call_key = _call_key(call["function"]["name"], text)
            if call_key is not None:
                for key in ((call["id"], call_key), ("", call_key)):
                    self._texts[key] = text

    def respelled(self, messages: Sequence[Json]) -> Sequence[Json]:
        """The messages, with the arguments of known tool calls replaced by the sampled text."""
        return [self._message(message) if message.get("tool_calls") else message for message in messages]

    def _message(self, message: Json) -> Json:
        calls = message["tool_calls"]
        return {**message, "tool_calls": [self._call(call) for call in calls]} if isinstance(calls, list) else message

    def _call(self, call: Any) -> Any:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            return call
        key = _call_key(function.get("name"), function.get("arguments"))
        if key is None:
            return call
        text = self._texts.get((str(call.get("id")), key), self._texts.get(("", key)))
        return call if text is None else {**call, "function": {**function, "arguments": text}}


def _call_key(name: Any, arguments: Any) -> str | None:
    """A key of name and arguments that ignores formatting; None if the arguments are not a JSON object."""
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
        return json.dumps([name, _plain(value)], sort_keys=True) if isinstance(value, dict) else None
    except (ValueError, RecursionError):  # not JSON, or nested too deeply
        return None


def _plain(value: Any) -> Any:
    """Numbers as JavaScript serializes them: 1.0 becomes 1."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
