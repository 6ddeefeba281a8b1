"""Assembles the events of a Messages stream into the full message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from core.dialects.base import Json
from core.dialects.calls import parsed_arguments
from core.dialects.messages_request import RAW_ARGUMENTS

_PARTIAL: Final = "partial_json"
_FIELDS: Final = {"citation": "citations"}
"""Delta field -> field of the block, where the names differ."""


class MessageAssembly:
    """Assembles one message. Deltas of unknown types extend the fields that they name."""

    def __init__(self) -> None:
        self._message: Json | None = None
        self._blocks: dict[int, _Block] = {}

    def feed(self, event: Mapping[str, Any]) -> None:
        """Add one parsed event; the event is not kept."""
        kind = event.get("type")
        if kind == "message_start":
            self._message = {**_object(event, "message")}
        elif kind == "content_block_start":
            self._blocks[_index(event)] = _Block(_object(event, "content_block"))
        elif kind == "content_block_delta" and (block := self._blocks.get(_index(event))) is not None:
            block.feed(_object(event, "delta"))
        elif kind == "message_delta" and self._message is not None:
            usage = {**_object(self._message, "usage"), **_known_fields(_object(event, "usage"))}
            rest = {name: value for name, value in event.items() if name not in ("type", "delta", "usage")}
            self._message |= {**_known_fields(_object(event, "delta")), **rest, "usage": usage}

    @property
    def begun(self) -> bool:
        """Whether there is a message yet."""
        return self._message is not None

    @property
    def ended(self) -> bool:
        """Whether it has a ``stop_reason``."""
        return self._message is not None and self._message.get("stop_reason") is not None

    def full_answer(self) -> Json:
        """The message so far."""
        return {
            **(self._message or {}),
            "content": [self._blocks[index].content() for index in sorted(self._blocks)],
        }


class _Block:
    """One content block. Texts are kept in pieces until they are read."""

    def __init__(self, started: Json) -> None:
        self._started = started
        self._texts: dict[str, list[str]] = {}
        self._lists: dict[str, list[Any]] = {}
        self._rest: Json = {}

    def feed(self, delta: Json) -> None:
        for name, value in delta.items():
            if name == "type":
                continue
            if name in _FIELDS:
                self._lists.setdefault(_FIELDS[name], []).append(value)
            elif isinstance(value, str):
                self._texts.setdefault(name, []).append(value)
            elif isinstance(value, list):
                self._lists.setdefault(name, []).extend(value)
            elif value is not None:
                self._rest[name] = value

    def content(self) -> Json:
        block = {**self._started, **self._rest}
        for name, pieces in self._texts.items():
            text = "".join(pieces)
            if name == _PARTIAL:
                if text.strip():
                    arguments = parsed_arguments(text)
                    # An interrupted call: its arguments are kept as partial text.
                    block["input"] = {RAW_ARGUMENTS: text} if arguments is None else arguments
            else:
                begun = block.get(name)
                block[name] = begun + text if isinstance(begun, str) else text
        for name, more in self._lists.items():
            begun = block.get(name)
            block[name] = [*begun, *more] if isinstance(begun, list) else list(more)
        return block


def _index(event: Mapping[str, Any]) -> int:
    index = event.get("index")
    return index if isinstance(index, int) else 0


def _object(holder: Mapping[str, Any], name: str) -> Json:
    value = holder.get(name)
    return value if isinstance(value, dict) else {}


def _known_fields(values: Json) -> Json:
    return {name: value for name, value in values.items() if value is not None}
