"""Imports ClawGym's rollout logs: the record file (one call per line) and the conversation log (one rollout per value).

Both contain text only. ClawGym encodes it again for training, so the logs have no token ids.
"""

from __future__ import annotations

import calendar
import re
import time
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
from core.imports.files import by_session, converted, first_record

NAME = "clawgym"
_THINK = re.compile(r"\s*<think>(.*?)</think>\s*", re.DOTALL)
_END = re.compile(r"(?:<\|im_end\|>|<\|endoftext\|>|\s)+\Z")


def read(path: Path) -> Iterator[ReadResult]:
    """Read either of the two kinds of file."""
    if _is_record(first_record(path)):
        return by_session(path, lambda record: text(record, "session_id"), _call)
    repeats = Repeats()
    return converted(path, lambda where, record: _rollout(where, record, repeats))


def _call(record: Mapping[str, Any], session: str, index: int, last: bool) -> ConvertedRecord:
    messages = objects(record.get("messages"), "messages")
    response_text = record.get("response_text")
    if messages is None or not isinstance(response_text, str):
        raise InvalidInput("a call needs messages and response_text", field="response_text")
    state = record.get("next_state")
    step = {
        "trajectory_uid": session,
        "step_index": index,
        "created_at": _seconds(record.get("timestamp")),
        "agent": "openclaw",
        "messages": messages,
        "response_message": _answer(response_text, objects(record.get("tool_calls"), "tool_calls") or []),
        "tools": objects(record.get("tools"), "tools"),
        "finish_reason": "tool_calls" if record.get("tool_calls") else "stop",
        "reward": number(record, "reward"),
        "is_last": last,
        "metadata": {"response_text": response_text, **({} if state is None else {"next_state": state})},
    }
    return ConvertedRecord("", [finished(step, NAME)])


def _answer(response_text: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
    """The chat message of a rendered turn."""
    body = _END.sub("", response_text)
    thought = _THINK.match(body)
    if thought:
        body = body[thought.end() :]
    if calls:
        body = body.partition("<tool_call>")[0].rstrip()
    message: dict[str, Any] = {"role": "assistant", "content": body}
    if thought and thought[1].strip():
        message["reasoning_content"] = thought[1].strip()
    if calls:
        message["tool_calls"] = calls
    return message


def _rollout(where: str, record: Mapping[str, Any], repeats: Repeats) -> ConvertedRecord:
    prompts = record.get("raw_prompts") or {}
    turns = objects(record.get("steps"), "steps")
    if not isinstance(prompts, Mapping) or not turns:
        raise InvalidInput("a conversation log needs steps and raw_prompts", field="steps")
    messages: list[dict[str, Any]] = []
    for role, name in (("system", "system_prompt"), ("user", "user_prompt")):
        if isinstance(prompts.get(name), str) and prompts[name]:
            messages.append({"role": role, "content": prompts[name]})
    for number_of_turn, turn in enumerate(turns):
        calls = [
            {
                "id": f"call_{number_of_turn}_{index}",
                "type": "function",
                "function": {"name": called.get("name"), "arguments": called.get("arguments")},
            }
            for index, called in enumerate(objects(turn.get("tool_calls"), "steps.tool_calls") or [])
        ]
        message: dict[str, Any] = {"role": "assistant", "content": turn.get("content") or ""}
        if turn.get("reasoning_content"):
            message["reasoning_content"] = turn["reasoning_content"]
        if calls:
            message["tool_calls"] = calls
        messages.append(message)
        for index, seen in enumerate(turn.get("observations") or []):
            answered = {"tool_call_id": calls[index]["id"]} if index < len(calls) else {}
            messages.append({"role": "tool", **answered, "content": seen})
    common = {
        "trajectory_uid": text(record, "session_id") or repeats.uid(record),
        "prompt_uid": text(record, "prompt_uid", "task_id"),
        "agent": "openclaw",
    }
    tools = objects(prompts.get("tools"), "raw_prompts.tools")
    steps = conversation(messages, tools, common, reward=number(record, "reward", "score"))
    return ConvertedRecord(where, [finished(step, NAME) for step in steps])


def _seconds(stamp: Any) -> float | None:
    """Parse a time. ClawGym writes local time without a zone; it is taken as UTC."""
    if not isinstance(stamp, str):
        return None
    try:
        return float(calendar.timegm(time.strptime(stamp, "%Y-%m-%d %H:%M:%S")))
    except ValueError as error:
        raise InvalidInput(f"{stamp!r} is not a time", field="timestamp") from error


def _is_record(first: Any) -> bool:
    return isinstance(first, Mapping) and {"session_id", "messages", "response_text"} <= first.keys()


def _recognises(path: Path, first: Any) -> bool:
    is_log = isinstance(first, Mapping) and {"steps", "raw_prompts"} <= first.keys()
    return is_log or _is_record(first)


FORMAT = Format(NAME, "ClawGym logs (record file, conversation log)", _recognises, read)
