"""Answers in another dialect than chat, converted to chat for storage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from core.dialects.base import Dropped, Json, Relay
from core.dialects.messages import MessagesPassThrough, message_stream
from core.dialects.messages_request import messages_to_chat
from core.dialects.responses_request import items_to_chat
from core.errors import InvalidInput

_FINISH: Final = {"max_tokens": "length", "tool_use": "tool_calls", "refusal": "content_filter"}
_INCOMPLETE: Final = {"max_output_tokens": "length", "content_filter": "content_filter"}


def chat_answer(engine_dialect: str, response: Mapping[str, Any]) -> Mapping[str, Any]:
    """A recorded answer in chat's shape. Other bodies are returned unchanged."""
    reader = _READERS.get(engine_dialect)
    if reader is None:
        return response
    try:
        chat = reader(response)
    except InvalidInput:
        return response
    if chat is None:
        return response
    message, finish_reason = chat
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    return {"id": response.get("id"), "model": response.get("model"), "choices": [choice]}


def native_stream(engine_dialect: str, response: Mapping[str, Any]) -> bytes:
    """A whole native answer as events of its dialect."""
    assert engine_dialect == "messages"
    return message_stream(response)


def native_relay(engine_dialect: str) -> Relay:
    """A relay for native events, which are passed on unchanged."""
    assert engine_dialect == "messages"
    return MessagesPassThrough()


def _of_messages(response: Mapping[str, Any]) -> tuple[Json, str] | None:
    if response.get("type") != "message" or not isinstance(response.get("content"), list):
        return None
    request = {"messages": [{"role": "assistant", "content": response["content"]}]}
    (message,) = messages_to_chat(request, Dropped())
    signed = [block for block in response["content"] if block.get("type") in ("thinking", "redacted_thinking")]
    if signed:
        message["thinking_blocks"] = signed
    return message, _FINISH.get(str(response.get("stop_reason")), "stop")


def _of_responses(response: Mapping[str, Any]) -> tuple[Json, str] | None:
    if response.get("object") != "response" or not isinstance(response.get("output"), list):
        return None
    messages = items_to_chat([item for item in response["output"] if isinstance(item, dict)])
    message = messages[0] if messages else {"role": "assistant", "content": ""}
    details = response.get("incomplete_details")
    reason = _INCOMPLETE.get(str(details.get("reason"))) if isinstance(details, dict) else None
    return message, reason or ("tool_calls" if message.get("tool_calls") else "stop")


_READERS: Final[Mapping[str, Callable[[Mapping[str, Any]], tuple[Json, str] | None]]] = {
    "messages": _of_messages,
    "responses": _of_responses,
}
