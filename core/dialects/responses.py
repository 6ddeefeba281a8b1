"""OpenAI Responses: answers made from OpenAI chat. Streams: ``core.dialects.responses_stream``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from core.dialects.base import Dialect, Json, ResponseIds, content_text, first_choice, maybe_text, reasoning_of
from core.dialects.calls import ToolCall, ToolCalls, chunks_of, usage_counts
from core.dialects.chat import KEEP_ALIVE
from core.dialects.errors import openai_error, prompt_too_long
from core.dialects.responses_request import sealed, to_chat, wants
from core.dialects.responses_stream import ResponsesRelay
from core.dialects.responses_tools import ToolNames
from core.errors import StudioError

RESPONSE_PREFIX: Final = "resp_"

_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
_ECHOED: Final = (
    "instructions", "max_output_tokens", "max_tool_calls", "metadata", "previous_response_id", "prompt_cache_key",
    "safety_identifier", "temperature", "top_logprobs", "top_p", "user",
)  # fmt: skip


class ResponsesTranslation:
    """One call of the Responses API.

    Ids of the response and its items end alike, in the step and a place in the journal, so that whoever gets one
    back finds the record that it came from.
    """

    def __init__(self, body: Mapping[str, Any], names: ResponseIds, items: Sequence[Json] = ()) -> None:
        self._names = ToolNames()
        self.asked, self.dropped = to_chat(body, self._names, items)
        self._tail = f"{names.step_uid}-{names.mark}" if names.mark else names.step_uid
        self.response_id = RESPONSE_PREFIX + self._tail
        self._body = body
        self._at = names.at
        reasoning = body.get("reasoning")
        self._summarise = isinstance(reasoning, dict) and bool(
            reasoning.get("summary") or reasoning.get("generate_summary")
        )
        self._seal = wants(body, "reasoning.encrypted_content")
        self._with_logprobs = wants(body, "message.output_text.logprobs")

    def whole(self, answer: Mapping[str, Any]) -> Json:
        """A ``response`` object."""
        choice, message = first_choice(answer)
        output: list[Json] = []
        if reasoning := reasoning_of(message):
            output.append(self.reasoning_item(len(output), reasoning))
        text, refusal = content_text(message.get("content")), maybe_text(message.get("refusal"))
        finish = maybe_text(choice.get("finish_reason")) or "stop"
        parts: list[Json] = []
        if text:
            parts.append(self.text_part(text, self.text_logprobs(choice.get("logprobs"))))
        if refusal:
            parts.append({"type": "refusal", "refusal": refusal})
        calls = self.tool_calls()
        calls.feed(message)
        if parts:
            output.append(self.message_item(len(output), parts, "incomplete" if finish in _INCOMPLETE else "completed"))
        for call in calls.all():
            output.append(self.call_item(len(output), call))
        return self.response(answer.get("model"), output, finish=finish, usage=answer.get("usage"))

    def stream(self, answer: Mapping[str, Any]) -> bytes:
        """The events of a whole answer."""
        relay = self.relay()
        parts = [relay.feed({"model": answer.get("model"), **chunk}) for chunk in chunks_of(answer)]
        return b"".join([*parts, relay.finish()])

    def relay(self) -> ResponsesRelay:
        """For an engine that streams."""
        return ResponsesRelay(self)

    def tool_calls(self) -> ToolCalls:
        """An empty collector of this call's tool calls."""
        return ToolCalls(f"call_{self._tail}")

    @property
    def summarises(self) -> bool:
        """Whether the agent asked to be shown thinking: as a summary, which is all of it."""
        return self._summarise

    def text_logprobs(self, logprobs: Any) -> list[Json]:
        """Log-probs of the answer's tokens, where the agent asked for them."""
        entries = logprobs.get("content") if isinstance(logprobs, dict) else None
        return list(entries) if self._with_logprobs and isinstance(entries, list) else []

    def item_id(self, prefix: str, index: int) -> str:
        """The id of the item at ``index``."""
        return f"{prefix}_{self._tail}_{index}"

    def reasoning_item(self, index: int, text: str) -> Json:
        """Thinking: what the engine calls it, or a summary for who asked for one."""
        shown: Json = {"summary": [], "content": [{"type": "reasoning_text", "text": text}]}
        if self._summarise:
            shown = {"summary": [{"type": "summary_text", "text": text}]}
        item: Json = {"id": self.item_id("rs", index), "type": "reasoning", **shown}
        if self._seal:
            item["encrypted_content"] = sealed(text)
        return item

    def text_part(self, text: str, logprobs: Sequence[Json] = ()) -> Json:
        """A part of a message."""
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}

    def message_item(self, index: int, parts: Sequence[Json], status: str) -> Json:
        """What the model said."""
        head = {"id": self.item_id("msg", index), "type": "message", "status": status, "role": "assistant"}
        return {**head, "content": list(parts)}

    def call_item(self, index: int, call: ToolCall) -> Json:
        """A tool call."""
        return self._names.item(call, f"{self._tail}_{index}")

    def response(
        self,
        engine_model: Any,
        output: Sequence[Json] = (),
        *,
        finish: str | None = None,
        usage: Any = None,
        failure: StudioError | None = None,
    ) -> Json:
        """A ``response`` object. In progress without ``finish`` and ``failure``."""
        body = self._body
        reason = _INCOMPLETE.get(finish or "")
        status = "in_progress" if finish is None else "incomplete" if reason else "completed"
        reasoning = body.get("reasoning")
        reasoning = reasoning if isinstance(reasoning, dict) else {}
        text = body.get("text")
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": int(self._at),
            "status": "failed" if failure is not None else status,
            "background": False,
            "error": None if failure is None else _failure(failure),
            "incomplete_details": {"reason": reason} if reason else None,
            **{name: body.get(name) for name in _ECHOED},
            "model": body.get("model") or (engine_model if isinstance(engine_model, str) else ""),
            "output": list(output),
            "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
            "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
            "service_tier": "default",
            "store": body.get("store") is not False,
            "text": text if isinstance(text, dict) and "format" in text else {"format": {"type": "text"}},
            "tool_choice": body.get("tool_choice") or "auto",
            "tools": body.get("tools") or [],
            "truncation": body.get("truncation") or "disabled",
            "usage": _usage(usage) if finish is not None else None,
        }


def _usage(usage: Any) -> Json:
    n_prompt, n_cached, n_completion, n_reasoning = usage_counts(usage)
    return {
        "input_tokens": n_prompt,
        "input_tokens_details": {"cached_tokens": n_cached, "cache_write_tokens": 0},
        "output_tokens": n_completion,
        "output_tokens_details": {"reasoning_tokens": n_reasoning},
        "total_tokens": n_prompt + n_completion,
    }


def _failure(error: StudioError) -> Json:
    """``{code, message}`` with the codes that agents know."""
    if prompt_too_long(error):
        code = "context_length_exceeded"
    elif error.http_status == 429:
        code = "rate_limit_exceeded"
    else:
        code = "invalid_prompt" if error.http_status in (400, 422) else "server_error"
    return {"code": code, "message": error.message}


RESPONSES: Final = Dialect("responses", "responses", "chat", KEEP_ALIVE, openai_error, ResponsesTranslation)
