"""Conversations of agents in each dialect: request bodies, and continuation from the answers."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

DIALECTS = ("chat", "completions", "responses", "messages")
IDENTITIES = ("header", "path", "anonymous", "key")
PATHS = {
    "chat": "chat/completions",
    "completions": "completions",
    "responses": "responses",
    "messages": "messages",
}
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
USE_A_TOOL = "Use a tool."
SLOWLY = "Say it slowly."
FAULTS = {
    "status": "status:503",
    "refused": "status:400",
    "gone": "disconnect",
    "half": "disconnect_body",
    "torn": "disconnect_stream:3",
    "garbage": "garbage",
    "empty": "empty_choices",
    "no ids": "missing_ids",
    "hang": "hang",
}
"""Word in the question -> how the engine fails."""

SCRIPT = {
    "model": "soak",
    "log_size": 0,
    "rules": [
        *({"when": {"last_contains": f"fault {word}."}, "fault": fault} for word, fault in FAULTS.items()),
        {"when": {"last_contains": SLOWLY}, "reply": {"n_tokens": 60}, "chunk_delay_s": 0.02},
        {
            "when": {"last_contains": USE_A_TOOL, "has_tools": True},
            "reply": {"content": "A look.", "tool_calls": [{"name": "read_file", "arguments": {"path": "report.md"}}]},
        },
    ],
    "default": {
        "variants": [
            {"content": f"Answer {number}: " + "the report names each file and what it says, " * (1 + number % 5)}
            for number in range(40)
        ]
    },
}


@dataclass
class Conversation:
    """One agent's attempt: what was said so far.

    Args:
        uid: of its trajectory, where it says one.
        dialect: as the agent speaks.
        identity: how the gateway learns whose call it is.
        n_turns: calls until it is over.
    """

    uid: str
    dialect: str
    identity: str
    n_turns: int
    key: str | None = None
    turn: int = 0
    messages: list[dict[str, Any]] = field(default_factory=list)
    text: str = ""
    response_id: str | None = None
    steps: list[str] = field(default_factory=list)

    @property
    def path(self) -> str:
        """Where its next call goes."""
        named = f"/{self.uid}/p-{self.uid[:8]}" if self.identity == "path" else ""
        return f"{named}/v1/{PATHS[self.dialect]}"

    @property
    def headers(self) -> dict[str, str]:
        """Who calls."""
        if self.key is not None:
            return {"Authorization": f"Bearer {self.key}"}
        return {"X-Trajectory-Uid": self.uid} if self.identity == "header" else {}

    def ask(self, draw: random.Random, question: str, *, stream: bool, n: int = 1) -> dict[str, Any]:
        """The body of the next call; ``take`` its answer, or ``drop`` the question."""
        self.turn += 1
        body: dict[str, Any] = {"model": "soak", "stream": stream}
        if self.dialect == "completions":
            self.text += f"\nQ: {question}\nA:"
            return {**body, "prompt": self.text, "max_tokens": 200, "seed": draw.randrange(1 << 30)}
        self.messages.append({"role": "user", "content": question})
        if self.dialect == "chat":
            tool = {"type": "function", "function": {"name": "read_file", "parameters": SCHEMA}}
            return {**body, "messages": self.messages, "tools": [tool], "n": n, "seed": draw.randrange(1 << 30)}
        if self.dialect == "messages":
            tools = [{"name": "read_file", "input_schema": SCHEMA}]
            return {**body, "messages": self.messages, "max_tokens": 500, "system": "Be brief.", "tools": tools}
        tools = [{"type": "function", "name": "read_file", "parameters": SCHEMA}]
        if self.response_id is not None:
            new = self.messages[-2:] if self.messages[-2:-1] and self.messages[-2].get("type") else self.messages[-1:]
            return {**body, "input": new, "previous_response_id": self.response_id, "tools": tools}
        return {**body, "input": self.messages, "tools": tools}

    def take(self, answer: dict[str, Any]) -> None:
        """Go on from what was answered, and answer the tool that it called."""
        if self.dialect == "completions":
            self.text += answer["choices"][0]["text"]
        elif self.dialect == "chat":
            message = answer["choices"][0]["message"]
            self.messages.append({name: value for name, value in message.items() if value})
            for call in message.get("tool_calls") or ():
                self.messages.append(
                    {"role": "tool", "tool_call_id": call["id"], "content": "report.md holds 12 lines"}
                )
        elif self.dialect == "messages":
            self.messages.append({"role": "assistant", "content": answer["content"]})
            used = [block for block in answer["content"] if block["type"] == "tool_use"]
            if used:
                results = [{"type": "tool_result", "tool_use_id": one["id"], "content": "12 lines"} for one in used]
                self.messages.append({"role": "user", "content": results})
        else:
            self.response_id = answer["id"]
            for item in answer["output"]:
                if item["type"] == "function_call":
                    output = {"type": "function_call_output", "call_id": item["call_id"], "output": "12 lines"}
                    self.messages.append(output)

    def drop(self) -> None:
        """Nothing came of the question."""
        if self.dialect == "completions":
            self.text = self.text.rpartition("\nQ: ")[0]
        else:
            self.messages.pop()


def assembled(dialect: str, text: str) -> dict[str, Any] | None:
    """The complete answer of a stream; None if its end is missing or it contains an error."""
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    if any("error" in event or event.get("type") == "error" for event in events):
        return None
    if dialect == "responses":
        return next((event["response"] for event in events if event.get("type") == "response.completed"), None)
    if dialect == "messages":
        return _message(events) if any(event["type"] == "message_stop" for event in events) else None
    if "data: [DONE]" not in text:
        return None
    first = [choice for event in events for choice in event["choices"] if choice["index"] == 0]
    if dialect == "completions":
        return {"choices": [{"text": "".join(choice["text"] for choice in first)}]}
    deltas = [choice["delta"] for choice in first]
    calls: dict[int, dict[str, Any]] = {}
    for piece in (call for delta in deltas for call in delta.get("tool_calls") or ()):
        call = calls.setdefault(piece["index"], {"type": "function", "function": {"name": "", "arguments": ""}})
        call["id"] = piece.get("id") or call["id"]
        for name, value in piece["function"].items():
            call["function"][name] += value or ""
    content = "".join(delta.get("content") or "" for delta in deltas)
    return {"choices": [{"message": {"role": "assistant", "content": content, "tool_calls": [*calls.values()]}}]}


def _message(events: list[dict[str, Any]]) -> dict[str, Any]:
    blocks: dict[int, dict[str, Any]] = {}
    for event in events:
        if event["type"] == "content_block_start":
            blocks[event["index"]] = {**event["content_block"], "pieces": ""}
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            blocks[event["index"]]["pieces"] += delta.get("text") or delta.get("partial_json") or ""
    content = []
    for block in blocks.values():
        pieces = block.pop("pieces")
        input_fields = {"text": pieces} if block["type"] == "text" else {"input": json.loads(pieces or "{}")}
        if block["type"] in ("text", "tool_use"):
            content.append({**block, **input_fields})
    return {"content": content}
