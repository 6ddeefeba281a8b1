"""Exports to LLaMA-Factory: conversations in its ``sharegpt`` formatting, and the ``dataset_info.json`` for them.

There is one line per planned step, whose answer is the last message. Train with ``mask_history: true``; otherwise
earlier answers are trained on as well. LLaMA-Factory encodes texts, so the file has no token ids. Its ``openai``
formatting is not used: it loses text next to tool calls, encodes arguments twice and adds a line to system prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from core.batch.plan import Plan
from core.dialects.exact import exact_json
from core.export.base import Difference, Exporter, ExportSource, Progress, Written
from core.export.lines import Lines, longest_row, not_as_text, repeated, write_conversations
from core.export.reading import Row, json_lines, others
from core.export.sink import Sink

DATASET = "claw_studio"
TAGS = {
    "role_tag": "role",
    "content_tag": "content",
    "user_tag": "user",
    "assistant_tag": "assistant",
    "observation_tag": "tool",
    "function_tag": "function_call",
    "system_tag": "system",
}


THOUGHT = ("<think>\n", "\n</think>\n\n")
CALLS = ("<tool_call>", "</tool_call>")
NEXT_RESULT = "\n</tool_response>\n<tool_response>\n"
"""LLaMA-Factory's markers of reasoning, of tool calls after a text, and between several tool results."""


class _NotExpressible(Exception):
    """LLaMA-Factory's formatting can't express a conversation; the message is the reason."""


def text_of(content: Any) -> str:
    """A message's content as text. Raises _NotExpressible if a part is not text."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = [part.get("text") if isinstance(part, dict) else None for part in content]
    if not all(isinstance(text, str) for text in texts):
        raise _NotExpressible("they hold images or other parts that are no text")
    return "".join(map(str, texts))


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    """A tool call's name and arguments. Arguments are an object, since LLaMA-Factory serializes them."""
    function = call.get("function") or {}
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = exact_json(arguments or "{}")
        except ValueError:
            raise _NotExpressible("the arguments of a tool call are no JSON that can be written as it is") from None
    return {"name": function.get("name"), "arguments": arguments}


def _answer(message: Mapping[str, Any]) -> dict[str, Any]:
    text = text_of(message.get("content"))
    if thought := message.get("reasoning_content") or message.get("reasoning"):
        text = f"{THOUGHT[0]}{text_of(thought)}{THOUGHT[1]}{text}"
    if not message.get("tool_calls"):
        return {"role": "assistant", "content": text}
    calls = orjson.dumps([_call(call) for call in message["tool_calls"]]).decode()
    if any(word in text or word in calls for word in CALLS):
        raise _NotExpressible("they hold the words that mark tool calls")
    return {"role": "function_call", "content": f"{text}{CALLS[0]}{calls}{CALLS[1]}" if text else calls}


def _messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Convert messages: an optional system prompt, then questions and answers in alternation."""
    converted: list[dict[str, Any]] = []
    for message in messages:
        role = "system" if message.get("role") == "developer" else message.get("role")
        if role == "assistant":
            converted.append(_answer(message))
        elif role == "tool" and converted and converted[-1]["role"] == "tool":
            converted[-1]["content"] += NEXT_RESULT + text_of(message.get("content"))
        else:
            converted.append({"role": role, "content": text_of(message.get("content"))})
    turns = converted[1:] if converted and converted[0]["role"] == "system" else converted
    prompt_roles, answer_roles = {"user", "tool"}, {"assistant", "function_call"}
    if any(turn["role"] not in (answer_roles if place % 2 else prompt_roles) for place, turn in enumerate(turns)):
        raise _NotExpressible("questions and answers don't take turns, and LLaMA-Factory skips such conversations")
    return converted


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    """A function schema with the fields that LLaMA-Factory's templates need."""
    parameters = {"type": "object", "properties": {}, **(function.get("parameters") or {})}
    return {"description": "", **function, "parameters": parameters}


def _lines(steps: list[dict[str, Any]]) -> Lines:
    lines: list[Mapping[str, Any]] = []
    without: dict[str, str] = {}
    for step in steps:
        if (reason := not_as_text(step)) is None:
            functions = [_tool(tool["function"]) for tool in step["tools"] or () if "function" in tool]
            try:
                messages = _messages([*step["messages"], step["response_message"]])
            except _NotExpressible as error:
                reason = str(error)
            else:
                tools = orjson.dumps(functions).decode() if functions else ""
                lines.append({"messages": messages, "tools": tools})
        if reason is not None:
            without[step["step_uid"]] = reason
    return lines, without


def differences(plan: Plan, settings: Mapping[str, str]) -> Sequence[Difference]:
    """Differences due to text-only data and LLaMA-Factory's defaults."""
    longest = longest_row(plan)
    return (
        Difference("LLaMA-Factory encodes the texts with its template; ids may differ from the captured ones"),
        Difference("Earlier answers of a conversation are trained on again", "mask_history: true"),
        Difference("Longer conversations are cut", f"cutoff_len: {longest} or more"),
        repeated("LLaMA-Factory", "per_device_train_batch_size"),
    )


def write(plan: Plan, source: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Write the file, one trajectory at a time."""
    return write_conversations(plan, source, sink, progress, _lines)


def read(data: bytes, settings: Mapping[str, str]) -> Iterator[Row]:
    """The conversations as LLaMA-Factory reads them with ``mask_history: true``: the last answer is in the loss."""
    for row in json_lines(data):
        n = len(row["messages"])
        yield Row(messages=row["messages"], trained=[i == n - 1 for i in range(n)], fields=others(row, "messages"))


def dataset_info(name: str) -> bytes:
    """The content of ``dataset_info.json`` for LLaMA-Factory's ``dataset_dir``."""
    info = {
        DATASET: {
            "file_name": name,
            "formatting": "sharegpt",
            "columns": {"messages": "messages", "tools": "tools"},
            "tags": TAGS,
        }
    }
    return orjson.dumps(info, option=orjson.OPT_INDENT_2)


def load_command(name: str) -> str:
    """A command that loads the file with ``datasets``, as LLaMA-Factory does."""
    return (
        'python -c "from datasets import load_dataset; '
        f"print(load_dataset('json', data_files='{name}', split='train'))\""
        f"  # in LLaMA-Factory's YAML: dataset_dir: this folder, dataset: {DATASET}, mask_history: true"
    )


EXPORTER = Exporter(
    name="llama_factory",
    title="LLaMA-Factory (JSONL)",
    description="Conversations in the sharegpt formatting and dataset_info.json; train with mask_history: true",
    suffix=".jsonl",
    write=write,
    read=read,
    load_command=load_command,
    texts=True,
    differences=differences,
    imitates=True,
    beside={"dataset_info.json": dataset_info},
    by_group=True,
)
