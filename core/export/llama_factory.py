"""LLaMA-Factory: conversations in its ``openai`` formatting, and the ``dataset_info.json`` that names them.

One line per chosen step, whose answer is the last message: train with ``mask_history: true``, or answers that were not
chosen are trained on as well. It encodes texts itself, so ids are not in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from core.batch.plan import Plan
from core.export.base import Exporter, ExportSource, Progress, Sink, Written
from core.export.lines import write_conversations

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


def text_of(content: Any) -> str:
    """A message's content as text: parts that are no text have none here."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    role = "system" if message.get("role") == "developer" else message.get("role")
    kept = {"role": role, "content": text_of(message.get("content"))}
    calls = message.get("tool_calls")
    return {**kept, "tool_calls": calls} if calls else kept


def _lines(steps: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for step in steps:
        if step["messages"] is not None and step["response_message"] is not None:
            functions = [tool["function"] for tool in step["tools"] or () if "function" in tool]
            yield {
                "messages": [_message(message) for message in [*step["messages"], step["response_message"]]],
                "tools": orjson.dumps(functions).decode() if functions else "",
            }


def write(plan: Plan, pool: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Stream the lines, a trajectory at a time."""
    return write_conversations(plan, pool, sink, progress, _lines)


def dataset_info(name: str) -> bytes:
    """The registry file that LLaMA-Factory's ``dataset_dir`` holds."""
    info = {
        DATASET: {
            "file_name": name,
            "formatting": "openai",
            "columns": {"messages": "messages", "tools": "tools"},
            "tags": TAGS,
        }
    }
    return orjson.dumps(info, option=orjson.OPT_INDENT_2)


def load_command(name: str) -> str:
    """Reads the file with ``datasets``, as LLaMA-Factory does."""
    return (
        'python -c "from datasets import load_dataset; '
        f"print(load_dataset('json', data_files='{name}', split='train'))\""
        f"  # in LLaMA-Factory's YAML: dataset_dir: this folder, dataset: {DATASET}, mask_history: true"
    )


EXPORTER = Exporter(
    name="llama_factory",
    title="LLaMA-Factory (JSONL)",
    description="Conversations in the openai formatting and dataset_info.json; train with mask_history: true",
    suffix=".jsonl",
    write=write,
    load_command=load_command,
    beside={"dataset_info.json": dataset_info},
)
