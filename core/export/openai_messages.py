"""OpenAI-messages JSON lines: one conversation per line, with its tools, for whoever encodes texts himself.

A chosen step whose messages begin with those of a line so far continues it. An assistant message that was not
chosen carries ``"weight": 0``, as in OpenAI's fine-tuning files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from core.batch.plan import Plan
from core.export.base import Exporter, ExportSource, Progress, Sink, Written
from core.export.lines import write_conversations


def conversations(steps: list[dict[str, Any]]) -> Iterator[tuple[list[dict[str, Any]], list[dict[str, Any]] | None]]:
    """(messages, tools) of the lines of one trajectory's chosen steps, in order."""
    lines: list[tuple[list[dict[str, Any]], list[dict[str, Any]] | None, set[int]]] = []
    for step in steps:
        before, answer, tools = step["messages"], step["response_message"], step["tools"]
        if before is None or answer is None:
            continue
        found = None
        for line in lines:
            fits = len(line[0]) <= len(before) and line[0] == before[: len(line[0])] and line[1] == tools
            if fits and (found is None or len(line[0]) > len(found[0])):
                found = line
        if found is None:
            found = ([], tools, set())
            lines.append(found)
        messages, _, chosen = found
        messages[:] = [*before, answer]
        chosen.add(len(before))
    for messages, tools, chosen in lines:
        yield (
            [
                message if message.get("role") != "assistant" or place in chosen else {**message, "weight": 0}
                for place, message in enumerate(messages)
            ],
            tools,
        )


def _lines(steps: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for messages, tools in conversations(steps):
        yield {"messages": messages, **({"tools": tools} if tools else {})}


def write(plan: Plan, pool: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Stream the lines, a trajectory at a time."""
    return write_conversations(plan, pool, sink, progress, _lines)


def load_command(name: str) -> str:
    """Reads the lines."""
    return f"python -c \"import json; print(len([json.loads(line) for line in open('{name}')]))\""


EXPORTER = Exporter(
    name="openai_messages",
    title="OpenAI messages (JSONL)",
    description="Conversations with tools as text, for trainers that encode themselves; ids are not in it",
    suffix=".jsonl",
    write=write,
    load_command=load_command,
)
