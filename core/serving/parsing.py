"""Incremental parser from sampled text to an assistant message: reasoning, content, Hermes tool calls.

It is the inverse of the chat template's assistant turn. Text that can't be parsed stays content, so that nothing
sampled is lost. Stream deltas and the complete message come from the same parser and therefore agree.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

THINK, END_THINK = "<think>", "</think>"
CALL, END_CALL = "<tool_call>", "</tool_call>"

_CALL_FORM = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*', re.DOTALL)
_QUOTES = re.compile(r'\\.|"', re.DOTALL)


def assistant_text(message: Mapping[str, Any]) -> str:
    """The text of an assistant turn as the chat template writes it, without the end token.

    ``message`` may have ``content``, ``reasoning`` and ``tool_calls: [{name, arguments}]``. Arguments are an object, or
    a text that is inserted unchanged.
    """
    content = message.get("content") or ""
    reasoning = message.get("reasoning")
    text = f"{THINK}\n{reasoning}\n{END_THINK}\n\n{content}" if reasoning else content
    for n, call in enumerate(message.get("tool_calls") or ()):
        arguments = call.get("arguments", {})
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        name = json.dumps(call["name"], ensure_ascii=False)
        glue = "\n" if content or n else ""
        text += f'{glue}{CALL}\n{{"name": {name}, "arguments": {arguments}}}\n{END_CALL}'
    return text


def parse_call(text: str) -> tuple[str, str] | None:
    """Name and arguments (JSON text) of a tool call, from the text between its marks; None if malformed.

    The arguments' text is kept as sampled, so that rendering the call again gives the same tokens.
    """
    form = _CALL_FORM.match(text)
    try:
        if form is not None:
            value, end = json.JSONDecoder().raw_decode(text, form.end())
            if isinstance(value, dict) and text[end:].strip() == "}":
                return json.loads(form.group(1)), text[form.end() : end]
        call = json.loads(text)
    except (ValueError, RecursionError):  # not JSON, or nested too deeply
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments")
    if not isinstance(arguments, dict):
        return None
    return call["name"], json.dumps(arguments, ensure_ascii=False)


class MessageParser:
    """Turns text into OpenAI's stream deltas; ``message`` is the message that they add up to.

    Args:
        tools: parse tool calls; otherwise their text is content.
        reasoning: parse a leading ``<think>`` block as reasoning.
        call_id: returns the id of the n-th tool call.
    """

    def __init__(self, *, tools: bool, reasoning: bool, call_id: Callable[[int], str]) -> None:
        self._tools = tools
        self._call_id = call_id
        self._step: Callable[[], list[dict[str, Any]] | None] = self._open if reasoning else self._content_step
        self._text = ""
        self._glue = ""
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self.tool_calls: list[dict[str, Any]] = []

    def feed(self, text: str) -> list[dict[str, Any]]:
        """Add ``text``; returns the deltas that are final, in order."""
        self._text += text
        deltas: list[dict[str, Any]] = []
        while (step := self._step()) is not None:
            deltas += step
        return deltas

    def close(self) -> list[dict[str, Any]]:
        """Deltas of the text that was held back. Call it once, at the end."""
        rest, self._text = self._text, ""
        if self._step == self._reason:
            return self._add_reasoning(rest)
        if self._step == self._call_step:
            return self._add_content(self._glue + CALL + rest)
        if self.tool_calls and not rest.strip():
            return []
        return self._add_content(rest)

    @property
    def message(self) -> dict[str, Any]:
        """The assistant message in OpenAI's format, with ``reasoning`` and ``reasoning_content`` if there is any."""
        content = "".join(self._content)
        reasoning = "".join(self._reasoning)
        bare = bool(self.tool_calls or reasoning)
        message: dict[str, Any] = {"role": "assistant", "content": content or (None if bare else "")}
        if reasoning:
            message["reasoning"] = message["reasoning_content"] = reasoning
        if self.tool_calls:
            message["tool_calls"] = self.tool_calls
        return message

    # Each step consumes a prefix of ``_text`` and returns deltas, or None if it needs more text.

    def _open(self) -> list[dict[str, Any]] | None:
        if self._text.startswith(THINK + "\n"):
            self._text = self._text[len(THINK) + 1 :]
            self._step = self._reason
        elif not (THINK + "\n").startswith(self._text):
            self._step = self._content_step
        else:
            return None
        return []

    def _reason(self) -> list[dict[str, Any]] | None:
        before, mark, after = self._text.partition(END_THINK)
        if mark:
            self._text = after
            self._step = self._after_thinking
            return self._add_reasoning(before.removesuffix("\n"))
        keep = _held_back(self._text, ("\n" + END_THINK, END_THINK))
        self._text, ready = self._text[len(self._text) - keep :], self._text[: len(self._text) - keep]
        return self._add_reasoning(ready) if ready else None

    def _after_thinking(self) -> list[dict[str, Any]] | None:
        if len(self._text) < 2 and self._text in ("", "\n"):
            return None
        for _ in range(2):
            self._text = self._text.removeprefix("\n")
        self._step = self._content_step
        return []

    def _content_step(self) -> list[dict[str, Any]] | None:
        if not self._tools:
            ready, self._text = self._text, ""
            return self._add_content(ready) if ready else None
        before, mark, after = self._text.partition(CALL)
        if mark:
            self._glue = "\n" if before.endswith("\n") else ""
            self._text = after
            self._step = self._call_step
            return self._add_content(before.removesuffix("\n"))
        keep = _held_back(self._text, ("\n" + CALL, CALL))
        self._text, ready = self._text[len(self._text) - keep :], self._text[: len(self._text) - keep]
        return self._add_content(ready) if ready else None

    def _call_step(self) -> list[dict[str, Any]] | None:
        end = self._text.find(END_CALL)
        while end >= 0 and _ends_in_string(self._text[:end]):
            end = self._text.find(END_CALL, end + 1)
        if end < 0:
            return None
        inside, self._text = self._text[:end], self._text[end + len(END_CALL) :]
        self._step = self._content_step
        call = parse_call(inside)
        if call is None:
            return self._add_content(self._glue + CALL + inside + END_CALL)
        return self._add_call(*call)

    def _add_content(self, text: str) -> list[dict[str, Any]]:
        if not text:
            return []
        self._content.append(text)
        return [{"content": text}]

    def _add_reasoning(self, text: str) -> list[dict[str, Any]]:
        if not text:
            return []
        self._reasoning.append(text)
        return [{"reasoning": text, "reasoning_content": text}]

    def _add_call(self, name: str, arguments: str) -> list[dict[str, Any]]:
        index = len(self.tool_calls)
        head = {"id": self._call_id(index), "type": "function"}
        self.tool_calls.append({**head, "function": {"name": name, "arguments": arguments}})
        opening = {"index": index, **head, "function": {"name": name, "arguments": ""}}
        return [
            {"tool_calls": [opening]},
            {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]},
        ]


class StopScanner:
    """Cuts generated text at the first stop string. A tail that may become a stop string is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        """Add ``text``; returns the text that is final, and the stop string if one was found (not part of the text)."""
        if not self._stops:
            return text, None
        text = self._held + text
        matches = [(text.find(s), s) for s in self._stops if s in text]
        if matches:
            at, stop = min(matches)
            self._held = ""
            return text[:at], stop
        keep = _held_back(text, self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], None

    def close(self) -> str:
        """The text that was held back."""
        rest, self._held = self._held, ""
        return rest


def _ends_in_string(text: str) -> bool:
    """Whether ``text`` ends inside a JSON string. An end mark at that position is part of an argument."""
    quotes: list[str] = _QUOTES.findall(text)
    return quotes.count('"') % 2 == 1


def _held_back(text: str, marks: Sequence[str]) -> int:
    """Length of the longest suffix of ``text`` that is a proper prefix of one of ``marks``."""
    longest = 0
    for mark in marks:
        for n in range(min(len(mark) - 1, len(text)), longest, -1):
            if text.endswith(mark[:n]):
                longest = n
                break
    return longest
