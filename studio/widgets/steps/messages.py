"""A step's messages as cards: messages shared with the parent are folded, tool calls are shown with their results.

Supports chat messages (``tool_calls``, role ``tool``) and content blocks (``tool_use``, ``tool_result``,
``thinking``). Other content is shown as JSON, never dropped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from core.dialects.exact import exact_json
from studio.kit.format import count

Message = Mapping[str, Any]
Entry = dict[str, Any]

TRANSITION_TEXT = {
    "realigned": "Realigned: the same conversation as the parent's in different tokens (chat template or re-encoding).",
    "tail_replaced": "Tail replaced: the end of the parent's context was replaced before this call.",
    "compacted": "Compacted: the agent rewrote its history into a shorter one.",
    "forked": "Forked: this call continues from an earlier point than its predecessor.",
}
MAX_HISTORY = 400
"""Messages of a step's folded history, the latest: at thousands of turns all of them take a second at each step."""
TEXT_TYPES = frozenset({"text", "input_text", "output_text"})
THINKING_TYPES = frozenset({"thinking", "reasoning"})


def delta(
    step: Mapping[str, Any], *, parent: Mapping[str, Any] | None = None, later: Sequence[Mapping[str, Any]] = ()
) -> list[Entry]:
    """Entries for ``components.messages_view``: folded history, new messages, the sampled answer.

    Args:
        step: one step as ``pool.steps.get`` gives it.
        parent: the step its prompt continues, or None.
        later: the trajectory's steps after this one, which hold the results of its calls.
    """
    messages = list(step.get("messages") or [])
    n_shared = shared_messages(step, parent)
    answered = (parent or {}).get("response_message")
    if answered and n_shared < len(messages) and same_content(messages[n_shared], answered):
        n_shared += 1
    entries: list[Entry] = []
    if n_shared:
        where = f"shared with step {parent['step_index']}" if parent else "shared with the parent step"
        entries.append({"kind": "folded", "n": n_shared, "label": where, "entries": _history(messages[:n_shared])})
    note = TRANSITION_TEXT.get(step.get("transition") or "")
    if note:
        entries.append({"kind": "mark", "text": note})
    entries += cards(messages[n_shared:], before=messages[:n_shared])
    return entries + answer(step, later)


def _history(messages: Sequence[Message]) -> list[Entry]:
    """The cards of the last ``MAX_HISTORY`` messages, below a line that says where the others are."""
    n_cut = max(len(messages) - MAX_HISTORY, 0)
    shown = cards(messages[n_cut:], before=messages[:n_cut])
    if not n_cut:
        return shown
    noun = "message is" if n_cut == 1 else "messages are"
    return [{"kind": "mark", "text": f"{count(n_cut)} earlier {noun} on the tab Transcript"}, *shown]


def answer(step: Message, later: Sequence[Mapping[str, Any]] = ()) -> list[Entry]:
    """The cards of the sampled answer and of an error."""
    response = step.get("response_message")
    entries = [_answer(step, response, len(step.get("messages") or []), later)] if response else []
    if step.get("error"):
        entries.append({"kind": "mark", "text": f"The call failed: {step['error']}"})
    return entries


def shared_messages(step: Mapping[str, Any], parent: Mapping[str, Any] | None) -> int:
    """Number of leading messages shared with the parent: as linked at ingest, else by comparison."""
    n = len(step.get("messages") or [])
    linked = step.get("n_shared_messages")
    if linked is not None:
        return min(int(linked), n)
    if parent is None:
        return 0
    known = [*(parent.get("messages") or [])]
    if parent.get("response_message"):
        known.append(parent["response_message"])
    shared = 0
    for mine, theirs in zip(step.get("messages") or [], known, strict=False):
        if mine != theirs:
            break
        shared += 1
    return shared


def same_content(one: Message, other: Message) -> bool:
    """Whether two messages have equal content, apart from call ids and empty fields, which agents may rewrite."""

    def content(message: Message) -> list[Any]:
        calls = [(call["name"], call["arguments"]) for call in calls_of(message)]
        return [message.get("role"), [part.get("text") for part in parts_of(message)], calls]

    return content(one) == content(other)


def cards(messages: Sequence[Message], *, before: Sequence[Message] = ()) -> list[Entry]:
    """One card per message; a tool result is joined to its call, which may be in ``before``."""
    known = {call["id"]: call for message in before for call in calls_of(message) if call["id"]}
    results = dict(results_of(messages))
    entries: list[Entry] = []
    consumed: set[str] = set()
    for message in messages:
        for call in calls_of(message):
            if call["id"] in results:
                consumed.add(call["id"])
    for message in messages:
        answers = [(uid, parts) for uid, parts in results_of([message]) if uid not in consumed]
        only_results = message.get("role") == "tool" or is_only_results(message)
        if only_results and not answers:
            continue
        if only_results:
            answered_calls = [_answered(known.get(uid), uid, parts, message) for uid, parts in answers]
            entries.append(card(message, role="tool", parts=[], calls=answered_calls))
            continue
        calls = [
            {**call, "result": {"parts": results[call["id"]]} if call["id"] in results else None}
            for call in calls_of(message)
        ]
        entries.append(card(message, calls=calls))
    return entries


def conversation(messages: Sequence[Message], marked: Sequence[bool]) -> list[Entry]:
    """One card per message as it stands; those that are ``marked`` carry the badge "in the loss"."""
    return [
        {
            **card(message, calls=[{**call, "waiting": ""} for call in calls_of(message)]),
            **({"sampled": True, "badge": "in the loss"} if in_loss else {}),
        }
        for message, in_loss in zip(messages, marked, strict=True)
    ]


def edited_answer(message: Message, author: str) -> list[Entry]:
    """The cards of an answer that a person edited; they follow those of the captured one."""
    note = f"Edited by {author}. SFT and DPO plans take the answer below; its tokens were not sampled."
    calls = [{**call, "waiting": "not run"} for call in calls_of(message)]
    return [{"kind": "mark", "text": note}, {**card(message, calls=calls), "badge": "edited"}]


def calls_of(message: Message) -> list[dict[str, Any]]:
    """The tool calls of a message: id, name, arguments as indented JSON text, and a problem with them or None."""
    calls = []
    for call in message.get("tool_calls") or []:
        function = call.get("function") or {}
        text, problem = _arguments(function.get("arguments"))
        calls.append({"id": call.get("id"), "name": function.get("name"), "arguments": text, "problem": problem})
    for block in _blocks(message):
        if block.get("type") == "tool_use":
            text, problem = _arguments(block.get("input"))
            calls.append({"id": block.get("id"), "name": block.get("name"), "arguments": text, "problem": problem})
    return calls


def reasoning_of(message: Message) -> str:
    """Reasoning that came with the message: its own field, thinking blocks, or a leading ``<think>``."""
    direct = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(direct, str):
        return direct
    thoughts = [
        str(block.get("thinking") or block.get("text") or "")
        for block in _blocks(message)
        if block.get("type") in THINKING_TYPES
    ]
    if thoughts:
        return "\n".join(thoughts)
    content = message.get("content")
    if isinstance(content, str) and content.lstrip().startswith("<think>"):
        return content.lstrip().removeprefix("<think>").partition("</think>")[0].strip()
    return ""


def parts_of(message: Message) -> list[dict[str, Any]]:
    """Visible content as parts: text, image, or JSON for everything else."""
    content = message.get("content")
    if content is None or content == "":
        return []
    if isinstance(content, str):
        visible = content.lstrip()
        if visible.startswith("<think>") and "</think>" in visible:
            content = visible.partition("</think>")[2].lstrip()
        return [{"kind": "text", "text": content}] if content else []
    return [part for block in _blocks(message) if (part := _part(block)) is not None]


def headline(step: Mapping[str, Any]) -> str:
    """A short title of a step: the tools it calls, else the start of its answer."""
    tools = list(step.get("tool_names") or [])
    if not tools and step.get("response_message"):
        tools = [call["name"] or "?" for call in calls_of(step["response_message"])]
    if tools:
        return " · ".join(f"{name}()" for name in tools)
    text = " ".join(str(step.get("preview") or "").split())
    if not text and step.get("response_message"):
        parts = parts_of(step["response_message"])
        text = " ".join(str(parts[0].get("text", "")).split())[:200] if parts else ""
    return text or (str(step["error"]) if step.get("error") else "empty answer")


def _answer(step: Mapping[str, Any], response: Message, n_messages: int, later: Sequence[Mapping[str, Any]]) -> Entry:
    notes = [f"finish: {step['finish_reason']}"] if step.get("finish_reason") else []
    follow = next((other for other in later if other.get("parent_step_uid") == step.get("step_uid")), None)
    answers = list(results_of((follow.get("messages") or [])[n_messages:])) if follow else []
    by_id = dict(answers)
    calls = []
    for place, call in enumerate(calls_of(response)):
        # Some agents rewrite call ids between turns; then results are matched by their order.
        parts = by_id.get(call["id"]) or (answers[place][1] if place < len(answers) else None)
        where = f"in step {follow['step_index']}" if follow and parts is not None else None
        calls.append({**call, "result": None if parts is None else {"parts": parts, "where": where}})
    return card(response, role="assistant", calls=calls, sampled=True, notes=notes)


def card(
    message: Message,
    *,
    role: str | None = None,
    parts: list[dict[str, Any]] | None = None,
    calls: list[dict[str, Any]],
    sampled: bool = False,
    notes: Sequence[str] = (),
) -> Entry:
    """The entry of one message; ``calls`` with their results, ``parts`` in place of the message's own."""
    shown = parts_of(message) if parts is None else parts
    reasoning = reasoning_of(message)
    inner = [part for call in calls if call.get("result") for part in call["result"]["parts"]]
    n_chars = len(reasoning) + sum(len(str(part.get("text", ""))) for part in [*shown, *inner])
    return {
        "kind": "message",
        "role": role or str(message.get("role") or "unknown"),
        "name": message.get("name"),
        "parts": shown,
        "reasoning": reasoning,
        "calls": calls,
        "sampled": sampled,
        "notes": list(notes),
        "n_chars": n_chars,
        "raw": dict(message),
    }


def _answered(call: Mapping[str, Any] | None, uid: str, parts: list[dict[str, Any]], message: Message) -> Entry:
    entry = dict(call) if call else {"id": uid, "name": message.get("name"), "arguments": "", "problem": None}
    if call is None:
        entry["problem"] = "the call is not in this context"
    return {**entry, "result": {"parts": parts}}


def results_of(messages: Sequence[Message]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """(call id, content parts) of every tool result, in order."""
    for message in messages:
        if message.get("role") == "tool":
            yield str(message.get("tool_call_id") or ""), parts_of(message)
        for block in _blocks(message):
            if block.get("type") == "tool_result":
                yield str(block.get("tool_use_id") or ""), parts_of({"content": block.get("content")})


def is_only_results(message: Message) -> bool:
    """Whether a message has content blocks and all are tool results."""
    blocks = list(_blocks(message))
    return bool(blocks) and all(block.get("type") == "tool_result" for block in blocks)


def _blocks(message: Message) -> Iterator[Mapping[str, Any]]:
    content = message.get("content")
    if isinstance(content, list):
        for block in content:
            yield block if isinstance(block, Mapping) else {"type": "text", "text": str(block)}


def _part(block: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = block.get("type")
    if kind in TEXT_TYPES:
        return {"kind": "text", "text": str(block.get("text", ""))}
    if kind in ("image_url", "input_image", "image"):
        return _image(block)
    if kind in ("tool_use", "tool_result") or kind in THINKING_TYPES:
        return None
    return {"kind": "json", "text": json.dumps(block, ensure_ascii=False, indent=2)}


def _image(block: Mapping[str, Any]) -> dict[str, Any]:
    """Only images embedded in the call are shown; a remote URL is printed, never fetched."""
    url = block.get("image_url")
    address = url.get("url") if isinstance(url, Mapping) else url
    source = block.get("source")
    if isinstance(source, Mapping) and source.get("type") == "base64":
        address = f"data:{source.get('media_type', 'image/png')};base64,{source.get('data', '')}"
    if isinstance(address, str) and address.startswith("data:image/"):
        return {"kind": "image", "src": address}
    return {"kind": "image", "src": None, "alt": f"image at {address}, not loaded"}


def _arguments(value: Any) -> tuple[str, str | None]:
    """Arguments as indented JSON; text that is not JSON, or would change when parsed, is kept unchanged."""
    if value is None or value == "":
        return "", None
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False, indent=2), None
    try:
        return json.dumps(exact_json(value), ensure_ascii=False, indent=2), None
    except orjson.JSONDecodeError:
        return value, "arguments are not JSON"
    except ValueError as error:
        return value, f"arguments are shown unparsed: {error}"
