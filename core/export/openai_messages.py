"""Exports OpenAI messages as JSON lines: one conversation with its tools per line, for trainers that tokenize texts.

A planned step whose messages extend those of an existing line continues that line. Assistant messages that are not
planned, or that have redacted tokens, get ``"weight": 0``, as in OpenAI's fine-tuning files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from core.batch.plan import Plan
from core.export.base import Difference, Exporter, ExportSource, Progress, Written
from core.export.lines import Lines, not_as_text, write_conversations
from core.export.reading import Row, json_lines, others
from core.export.sink import Sink


def conversations(steps: list[dict[str, Any]]) -> Iterator[tuple[list[dict[str, Any]], list[dict[str, Any]] | None]]:
    """Yield (messages, tools) of each line for the planned steps of one trajectory, in order."""
    lines: list[tuple[list[dict[str, Any]], list[dict[str, Any]] | None, set[int]]] = []
    for step in steps:
        before, answer, tools = step["messages"], step["response_message"], step["tools"]
        if before is None or answer is None:
            continue
        longest = None
        for line in lines:
            fits = len(line[0]) <= len(before) and line[0] == before[: len(line[0])] and line[1] == tools
            if fits and (longest is None or len(line[0]) > len(longest[0])):
                longest = line
        if longest is None:
            longest = ([], tools, set())
            lines.append(longest)
        messages, _, chosen = longest
        messages[:] = [*before, answer]
        if not_as_text(step) is None:
            chosen.add(len(before))
    for messages, tools, chosen in lines:
        yield (
            [
                message if message.get("role") != "assistant" or place in chosen else {**message, "weight": 0}
                for place, message in enumerate(messages)
            ],
            tools,
        )


def _lines(steps: list[dict[str, Any]]) -> Lines:
    without = {step["step_uid"]: reason for step in steps if (reason := not_as_text(step)) is not None}
    objects = [
        {"messages": messages, **({"tools": tools} if tools else {})} for messages, tools in conversations(steps)
    ]
    return list(objects), without


def differences(plan: Plan, settings: Mapping[str, str]) -> Sequence[Difference]:
    """Differences due to text-only data."""
    return (
        Difference("The trainer encodes the texts; ids may differ from the captured ones"),
        Difference("Answers outside the plan are trained on if the trainer ignores weights", "weight: 0 of a message"),
    )


def write(plan: Plan, source: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Write the file, one trajectory at a time."""
    return write_conversations(plan, source, sink, progress, _lines)


def read(data: bytes, settings: Mapping[str, str]) -> Iterator[Row]:
    """The conversations; answers with the weight 0 are in no loss."""
    for row in json_lines(data):
        messages = row["messages"]
        trained = [one["role"] == "assistant" and one.get("weight") != 0 for one in messages]
        yield Row(messages=messages, trained=trained, fields=others(row, "messages"))


def load_command(name: str) -> str:
    """A command that reads the lines."""
    return f"python -c \"import json; print(len([json.loads(line) for line in open('{name}')]))\""


EXPORTER = Exporter(
    name="openai_messages",
    title="OpenAI messages (JSONL)",
    description="Conversations with tools as text, for trainers that tokenize texts; without token ids",
    suffix=".jsonl",
    write=write,
    read=read,
    load_command=load_command,
    texts=True,
    differences=differences,
    imitates=True,
    by_group=True,
)
