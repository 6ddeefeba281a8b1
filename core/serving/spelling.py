"""How the arguments of tool calls were sampled, so that a call that comes back is rendered as it was.

Clients parse arguments and write them again: without blanks, with other blanks, with escapes, in another order. The
object is the same and the tokens are not, so a prompt would no longer begin with what was sampled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cachetools import LRUCache

MAX_REMEMBERED: Final = 10_000

Json = Mapping[str, Any]


class Spellings:
    """The latest calls of all answers. A call is known by its id, and by name and arguments where ids are rewritten."""

    def __init__(self) -> None:
        self._texts: LRUCache[tuple[str, str], str] = LRUCache(MAX_REMEMBERED)

    def sampled(self, calls: Sequence[Json]) -> None:
        """Remember the calls of one answer, OpenAI's shape."""
        for call in calls:
            text = call["function"]["arguments"]
            meant = _meant(call["function"]["name"], text)
            if meant is not None:
                for key in ((call["id"], meant), ("", meant)):
                    self._texts[key] = text

    def respelled(self, messages: Sequence[Json]) -> Sequence[Json]:
        """The messages, calls among them that mean what was sampled spelled as it was."""
        return [self._message(message) if message.get("tool_calls") else message for message in messages]

    def _message(self, message: Json) -> Json:
        calls = message["tool_calls"]
        return {**message, "tool_calls": [self._call(call) for call in calls]} if isinstance(calls, list) else message

    def _call(self, call: Any) -> Any:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            return call
        meant = _meant(function.get("name"), function.get("arguments"))
        if meant is None:
            return call
        text = self._texts.get((str(call.get("id")), meant), self._texts.get(("", meant)))
        return call if text is None else {**call, "function": {**function, "arguments": text}}


def _meant(name: Any, arguments: Any) -> str | None:
    """Name and arguments however they are spelled; None where they are no JSON object."""
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
        return json.dumps([name, _plain(value)], sort_keys=True) if isinstance(value, dict) else None
    except (ValueError, RecursionError):  # no JSON, or nested deeper than is read
        return None


def _plain(value: Any) -> Any:
    """Numbers as JavaScript has them: 1.0 is 1."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
