"""OpenAI Responses: whole answers made from OpenAI chat answers. Streams: ``core.dialects.responses_stream``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from core.dialects.base import Dialect, Json, ResponseIds, content_text, first_choice, maybe_text, reasoning_of
from core.dialects.calls import chunks_of
from core.dialects.chat import KEEP_ALIVE
from core.dialects.errors import openai_error
from core.dialects.responses_items import INCOMPLETE, ResponseItems
from core.dialects.responses_request import to_chat
from core.dialects.responses_stream import ResponsesRelay
from core.dialects.responses_tools import ToolNames


class ResponsesTranslation:
    """One call of the Responses API."""

    def __init__(self, body: Mapping[str, Any], ids: ResponseIds, items: Sequence[Json] = ()) -> None:
        tools = ToolNames()
        self.engine_request, self.dropped = to_chat(body, tools, items)
        self._items = ResponseItems(body, ids, tools)
        self.response_id = self._items.response_id

    def full_answer(self, answer: Mapping[str, Any]) -> Json:
        """A ``response`` object."""
        items = self._items
        choice, message = first_choice(answer)
        output: list[Json] = []
        if reasoning := reasoning_of(message):
            output.append(items.reasoning_item(len(output), reasoning))
        text, refusal = content_text(message.get("content")), maybe_text(message.get("refusal"))
        finish = maybe_text(choice.get("finish_reason")) or "stop"
        parts: list[Json] = []
        if text:
            parts.append(items.text_part(text, items.text_logprobs(choice.get("logprobs"))))
        if refusal:
            parts.append({"type": "refusal", "refusal": refusal})
        calls = items.tool_calls()
        calls.feed(message)
        if parts:
            status = "incomplete" if finish in INCOMPLETE else "completed"
            output.append(items.message_item(len(output), parts, status))
        for call in calls.all():
            output.append(items.call_item(len(output), call))
        return items.response(answer.get("model"), output, finish=finish, usage=answer.get("usage"))

    def stream(self, answer: Mapping[str, Any]) -> bytes:
        """The events of a whole answer."""
        relay = self.relay()
        parts = [relay.feed({"model": answer.get("model"), **chunk}) for chunk in chunks_of(answer)]
        return b"".join([*parts, relay.finish()])

    def relay(self) -> ResponsesRelay:
        """For an engine that streams."""
        return ResponsesRelay(self._items)


RESPONSES: Final = Dialect("responses", "responses", "chat", KEEP_ALIVE, openai_error, ResponsesTranslation)
