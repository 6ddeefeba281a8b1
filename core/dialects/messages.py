"""Anthropic Messages: answers and event streams made from OpenAI chat answers."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from core.dialects.base import (
    Dialect,
    Json,
    ResponseIds,
    content_text,
    first_choice,
    maybe_text,
    named_event,
    reasoning_of,
)
from core.dialects.calls import ToolCall, ToolCalls, chunks_of, own_choices, parsed_arguments, usage_counts
from core.dialects.errors import anthropic_error
from core.dialects.messages_request import RAW_ARGUMENTS, to_chat
from core.errors import StudioError

PING: Final = named_event("ping", {"type": "ping"})

_STOP_REASONS: Final = {
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}


class MessagesTranslation:
    """One call of the Messages API."""

    def __init__(self, body: Mapping[str, Any], ids: ResponseIds, earlier: Sequence[Json] = ()) -> None:
        self.engine_request, self.dropped = to_chat(body)
        self.response_id = f"msg_{ids.step_uid}"
        model = body.get("model")
        self._model = model if isinstance(model, str) else None
        self._step_uid = ids.step_uid
        self._call_prefix = f"toolu_{ids.step_uid}"

    def full_answer(self, answer: Mapping[str, Any]) -> Json:
        """A ``message`` object."""
        choice, message = first_choice(answer)
        content: list[Json] = []
        if reasoning := reasoning_of(message):
            content.append({"type": "thinking", "thinking": reasoning, "signature": self.signature(len(content))})
        refusal = maybe_text(message.get("refusal"))
        text = content_text(message.get("content")) + refusal
        if text:
            content.append({"type": "text", "text": text})
        calls = ToolCalls(self._call_prefix)
        calls.feed(message)
        for call in calls.all():
            content.append({"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call)})
        stop_reason, stop_sequence = _stop(choice, bool(calls), bool(refusal))
        head = self.head(answer.get("model"), answer.get("usage"), with_output=True)
        return {**head, "content": content, "stop_reason": stop_reason, "stop_sequence": stop_sequence}

    def stream(self, answer: Mapping[str, Any]) -> bytes:
        """The events of a whole answer."""
        relay = MessagesRelay(self, usage=answer.get("usage"))
        parts = [relay.feed({"model": answer.get("model"), **chunk}) for chunk in chunks_of(answer)]
        return b"".join([*parts, relay.finish()])

    def relay(self) -> MessagesRelay:
        """For an engine that streams."""
        return MessagesRelay(self)

    def head(self, engine_model: Any, usage: Any, *, with_output: bool) -> Json:
        """A message without content."""
        return {
            "id": self.response_id,
            "type": "message",
            "role": "assistant",
            "model": self._model or (engine_model if isinstance(engine_model, str) else ""),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(usage, with_output=with_output),
        }

    def tool_calls(self) -> ToolCalls:
        """An empty collector for this call's tool calls."""
        return ToolCalls(self._call_prefix)

    def signature(self, block: int) -> str:
        """A signature for unsigned thinking, because agents return only signed thinking blocks.

        Each block gets its own, because agents identify blocks by it.
        """
        return base64.b64encode(f"claw-studio:{self._step_uid}:{block}".encode()).decode()


class MessagesRelay:
    """Translates chat chunks to Messages events.

    Blocks follow each other strictly and a call's input must be complete JSON, so tool calls are sent at the end of the
    engine's stream. Text is sent as it arrives.
    """

    def __init__(self, translation: MessagesTranslation, usage: Any = None) -> None:
        self._translation = translation
        self._usage = usage
        self._started = False
        self._open: str | None = None
        self._n_blocks = 0
        self._calls = translation.tool_calls()
        self._refused = False
        self._ended: Json = {}

    def feed(self, chunk: Mapping[str, Any]) -> bytes:
        """Events of one chunk."""
        if chunk.get("usage"):
            self._usage = chunk["usage"]
        out = self._start(chunk.get("model"))
        for choice, delta in own_choices(chunk):
            out += self._piece("thinking", reasoning_of(delta))
            refusal = maybe_text(delta.get("refusal"))
            self._refused |= bool(refusal)
            out += self._piece("text", content_text(delta.get("content")) + refusal)
            self._calls.feed(delta)
            self._ended |= {k: choice[k] for k in ("finish_reason", "stop_reason", "matched_stop") if choice.get(k)}
        return b"".join(out)

    def finish(self) -> bytes:
        """Tool calls, stop reason, usage, end."""
        out = [*self._start(None), *self._close()]
        for call in self._calls.all():
            arguments = _input(call)
            spelled = (
                call.arguments if RAW_ARGUMENTS not in arguments and call.arguments.strip() else json.dumps(arguments)
            )
            out += [
                _event(
                    "content_block_start",
                    index=self._n_blocks,
                    content_block={"type": "tool_use", "id": call.id, "name": call.name, "input": {}},
                ),
                _event(
                    "content_block_delta",
                    index=self._n_blocks,
                    delta={"type": "input_json_delta", "partial_json": spelled},
                ),
                _event("content_block_stop", index=self._n_blocks),
            ]
            self._n_blocks += 1
        stop_reason, stop_sequence = _stop(self._ended, bool(self._calls), self._refused)
        out += [
            _event(
                "message_delta",
                delta={"stop_reason": stop_reason, "stop_sequence": stop_sequence},
                usage=_usage(self._usage, with_output=True),
            ),
            _event("message_stop"),
        ]
        return b"".join(out)

    def fail(self, error: StudioError) -> bytes:
        """An ``error`` event, which ends the stream."""
        return named_event("error", anthropic_error(error))

    def _start(self, model: Any) -> list[bytes]:
        if self._started:
            return []
        self._started = True
        return [_event("message_start", message=self._translation.head(model, self._usage, with_output=False))]

    def _piece(self, kind: str, text: str) -> list[bytes]:
        if not text:
            return []
        out: list[bytes] = []
        if self._open != kind:
            out = self._close()
            empty: Json = {"type": kind, kind: "", **({"signature": ""} if kind == "thinking" else {})}
            out.append(_event("content_block_start", index=self._n_blocks, content_block=empty))
            self._open = kind
        out.append(_event("content_block_delta", index=self._n_blocks, delta={"type": f"{kind}_delta", kind: text}))
        return out

    def _close(self) -> list[bytes]:
        if self._open is None:
            return []
        out: list[bytes] = []
        if self._open == "thinking":
            signed = {"type": "signature_delta", "signature": self._translation.signature(self._n_blocks)}
            out.append(_event("content_block_delta", index=self._n_blocks, delta=signed))
        out.append(_event("content_block_stop", index=self._n_blocks))
        self._open = None
        self._n_blocks += 1
        return out


class MessagesPassThrough:
    """The provider's own events, unchanged."""

    def __init__(self) -> None:
        self._stopped = False

    def feed(self, chunk: Mapping[str, Any]) -> bytes:
        """The event."""
        self._stopped |= chunk.get("type") == "message_stop"
        return named_event(str(chunk.get("type")), chunk)

    def finish(self) -> bytes:
        """``message_stop``, if the provider did not send it."""
        return b"" if self._stopped else _event("message_stop")

    def fail(self, error: StudioError) -> bytes:
        """An ``error`` event, which ends the stream."""
        return named_event("error", anthropic_error(error))


def message_stream(message: Mapping[str, Any]) -> bytes:
    """A whole native message as events. Blocks of unknown types are sent in one piece."""
    out = [_event("message_start", message={**message, "content": [], "stop_reason": None, "stop_sequence": None})]
    for index, block in enumerate(message.get("content") or ()):
        kind = block.get("type")
        empty, deltas = dict(block), []
        if kind == "text":
            empty["text"] = ""
            deltas = [{"type": "text_delta", "text": block.get("text", "")}]
            if citations := block.get("citations"):
                empty["citations"] = []
                deltas += [{"type": "citations_delta", "citation": citation} for citation in citations]
        elif kind == "thinking":
            empty |= {"thinking": "", "signature": ""}
            deltas = [
                {"type": "thinking_delta", "thinking": block.get("thinking", "")},
                {"type": "signature_delta", "signature": block.get("signature", "")},
            ]
        elif kind in ("tool_use", "server_tool_use"):
            empty["input"] = {}
            deltas = [{"type": "input_json_delta", "partial_json": json.dumps(block.get("input") or {})}]
        out.append(_event("content_block_start", index=index, content_block=empty))
        out += [_event("content_block_delta", index=index, delta=delta) for delta in deltas]
        out.append(_event("content_block_stop", index=index))
    ended = {"stop_reason": message.get("stop_reason"), "stop_sequence": message.get("stop_sequence")}
    out += [_event("message_delta", delta=ended, usage=message.get("usage") or {}), _event("message_stop")]
    return b"".join(out)


def _event(kind: str, **body: Any) -> bytes:
    return named_event(kind, {"type": kind, **body})


def _input(call: ToolCall) -> Json:
    """A call's input. Arguments that are not a JSON object are wrapped as text, and unwrapped in later requests."""
    arguments = parsed_arguments(call.arguments)
    return {RAW_ARGUMENTS: call.arguments} if arguments is None else arguments


def _stop(choice: Mapping[str, Any], called: bool, refused: bool) -> tuple[str, str | None]:
    """(stop_reason, stop_sequence)."""
    stop_text = choice.get("stop_reason") or choice.get("matched_stop")
    reason = _STOP_REASONS.get(str(choice.get("finish_reason")), "end_turn")
    if reason == "end_turn":
        if refused:
            return "refusal", None
        if called:
            return "tool_use", None
        if isinstance(stop_text, str):
            return "stop_sequence", stop_text
    return reason, None


def _usage(usage: Any, *, with_output: bool) -> Json:
    n_prompt, n_cached, n_completion, _ = usage_counts(usage)
    return {
        "input_tokens": max(n_prompt - n_cached, 0),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": n_cached,
        "output_tokens": n_completion if with_output else 0,
    }


MESSAGES: Final = Dialect("messages", "messages", "chat", PING, anthropic_error, MessagesTranslation)
