"""Builds the ``response`` object of the Responses API and its items from an engine's answer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from core.dialects.base import Json, ResponseIds
from core.dialects.calls import ToolCall, ToolCalls, usage_counts
from core.dialects.errors import prompt_too_long
from core.dialects.responses_request import encode_reasoning, includes
from core.dialects.responses_tools import ToolNames
from core.errors import StudioError

RESPONSE_PREFIX: Final = "resp_"
INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Chat's ``finish_reason`` -> reason of ``incomplete_details``; every other one completes the response."""
_ECHOED: Final = (
    "instructions", "max_output_tokens", "max_tool_calls", "metadata", "previous_response_id", "prompt_cache_key",
    "safety_identifier", "temperature", "top_logprobs", "top_p", "user",
)  # fmt: skip
_RESPONSE_ID = re.compile(RESPONSE_PREFIX + r"(?P<step_uid>[^-]+)-(?P<mark>.+)")


def parse_response_id(response_id: str) -> tuple[str, str] | None:
    """(step uid, journal position) of a response id that ``ResponseItems`` made; None for any other."""
    match = _RESPONSE_ID.fullmatch(response_id)
    return (match["step_uid"], match["mark"]) if match is not None else None


class ResponseItems:
    """Builds one response and its items, for whole answers and for streams.

    The ids of a response and of its items all end with the step's uid and a journal position, so the call's record is
    found by any of them.

    Args:
        body: the agent's request.
        tools: the request's tool for each chat function.
    """

    def __init__(self, body: Mapping[str, Any], ids: ResponseIds, tools: ToolNames) -> None:
        self._body = body
        self._tools = tools
        self._tail = f"{ids.step_uid}-{ids.mark}" if ids.mark else ids.step_uid
        self.response_id = RESPONSE_PREFIX + self._tail
        self._at = ids.at
        reasoning = body.get("reasoning")
        self.summarises = isinstance(reasoning, dict) and bool(
            reasoning.get("summary") or reasoning.get("generate_summary")
        )
        """Whether the request has a reasoning summary. The summary is the complete reasoning."""
        self._seal = includes(body, "reasoning.encrypted_content")
        self._with_logprobs = includes(body, "message.output_text.logprobs")

    def tool_calls(self) -> ToolCalls:
        """An empty collector for this call's tool calls."""
        return ToolCalls(f"call_{self._tail}")

    def text_logprobs(self, logprobs: Any) -> list[Json]:
        """Log-probs of the answer's tokens if the request includes them, else an empty list."""
        entries = logprobs.get("content") if isinstance(logprobs, dict) else None
        return list(entries) if self._with_logprobs and isinstance(entries, list) else []

    def item_id(self, prefix: str, index: int) -> str:
        """The id of the item at ``index``."""
        return f"{prefix}_{self._tail}_{index}"

    def reasoning_item(self, index: int, text: str) -> Json:
        """A reasoning item; its text is in the summary if one is requested, else in the content."""
        shown: Json = {"summary": [], "content": [{"type": "reasoning_text", "text": text}]}
        if self.summarises:
            shown = {"summary": [{"type": "summary_text", "text": text}]}
        item: Json = {"id": self.item_id("rs", index), "type": "reasoning", **shown}
        if self._seal:
            item["encrypted_content"] = encode_reasoning(text)
        return item

    def text_part(self, text: str, logprobs: Sequence[Json] = ()) -> Json:
        """A text part of a message."""
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}

    def message_item(self, index: int, parts: Sequence[Json], status: str) -> Json:
        """An assistant message."""
        head = {"id": self.item_id("msg", index), "type": "message", "status": status, "role": "assistant"}
        return {**head, "content": list(parts)}

    def call_item(self, index: int, call: ToolCall) -> Json:
        """A tool call item."""
        return self._tools.item(call, f"{self._tail}_{index}")

    def response(
        self,
        engine_model: Any,
        output: Sequence[Json] = (),
        *,
        finish: str | None = None,
        usage: Any = None,
        failure: StudioError | None = None,
    ) -> Json:
        """A ``response`` object; its status is ``in_progress`` without ``finish`` and ``failure``."""
        body = self._body
        reason = INCOMPLETE.get(finish or "")
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
    """``{code, message}`` with OpenAI's error codes."""
    if prompt_too_long(error):
        code = "context_length_exceeded"
    elif error.http_status == 429:
        code = "rate_limit_exceeded"
    else:
        code = "invalid_prompt" if error.http_status in (400, 422) else "server_error"
    return {"code": code, "message": error.message}
