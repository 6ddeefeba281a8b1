"""Imports OpenAI messages: a conversation with its tools per line, as in fine-tuning files and the studio's export."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from core.errors import InvalidInput
from core.imports.base import (
    ConvertedRecord,
    Format,
    ReadResult,
    Repeats,
    conversation,
    finished,
    number,
    objects,
    text,
)
from core.imports.files import converted

NAME = "messages"
OWN = frozenset(
    {"messages", "tools", "reward", "score", "trajectory_uid", "prompt_uid", "channel", "agent", "model", "metadata"}
)


def read(path: Path) -> Iterator[ReadResult]:
    """Read a file. Each assistant turn becomes a step; the line's ``reward`` or ``score`` is set on the last one."""
    repeats = Repeats()

    def convert(where: str, record: Mapping[str, Any]) -> ConvertedRecord:
        messages, tools = objects(record.get("messages"), "messages"), objects(record.get("tools"), "tools")
        if messages is None:
            raise InvalidInput("a conversation needs its messages", field="messages")
        metadata = record.get("metadata") or {}
        if not isinstance(metadata, Mapping):
            raise InvalidInput("not an object", field="metadata")
        common = {
            "trajectory_uid": text(record, "trajectory_uid") or repeats.uid(record),
            **{name: text(record, name) for name in ("prompt_uid", "channel", "agent", "model")},
            "metadata": {**{name: value for name, value in record.items() if name not in OWN}, **metadata},
        }
        steps = conversation(messages, tools, common, reward=number(record, "reward", "score"))
        return ConvertedRecord(where, [finished(step, NAME) for step in steps])

    return converted(path, convert)


def _recognises(path: Path, first: Any) -> bool:
    if not isinstance(first, Mapping) or not isinstance(first.get("messages"), list | str):
        return False
    return not {"response", "response_text", "session_id", "output"} & first.keys()


FORMAT = Format(NAME, "OpenAI messages (JSON lines, with tools)", _recognises, read)
