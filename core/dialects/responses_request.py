"""OpenAI Responses requests as chat requests."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, Final

from core.dialects.base import BadRequest, Dropped, Json, chat_request, objects, plain_content, text_of
from core.dialects.messages_request import IMAGE_MARK
from core.dialects.responses_tools import ToolNames

ENCRYPTED_PREFIX: Final = b"claw-studio:"
"""Prefix, before base64, of ``encrypted_content``: it is not encrypted and holds the sampled reasoning."""

_SAME: Final = ("model", "temperature", "top_p", "parallel_tool_calls", "stream")
_TRANSLATED: Final = frozenset(
    {*_SAME, "input", "instructions", "max_output_tokens", "reasoning", "text", "tool_choice", "tools", "top_logprobs",
     "include", "previous_response_id", "store"}
)  # fmt: skip
_NOT_CHAT: Final = frozenset(
    {"client_metadata", "context_management", "max_tool_calls", "metadata", "moderation", "prompt_cache_key",
     "prompt_cache_options", "prompt_cache_retention", "safety_identifier", "service_tier", "stream_options",
     "truncation", "user"}
)  # fmt: skip
"""Fields of the Responses API that engines don't use. Unknown fields are passed to the engine."""
_REFUSED: Final = ("background", "conversation", "prompt")
"""Unsupported fields that would change the answer; such requests are refused."""
_CALLS: Final = frozenset({"function_call", "custom_tool_call", "local_shell_call"})
_OUTPUTS: Final = frozenset({"function_call_output", "custom_tool_call_output", "local_shell_call_output"})


def to_chat(body: Mapping[str, Any], names: ToolNames, items: Sequence[Json] = ()) -> tuple[Json, list[str]]:
    """The chat request, and the names of dropped fields.

    Args:
        names: empty; filled with the tool of each chat function.
        items: the full input if ``body`` has only a part of it (``previous_response_id``, item references).

    Raises:
        BadRequest: an invalid field.
    """
    for name in _REFUSED:
        if body.get(name):
            raise BadRequest(f"{name} is not served by this gateway", field=name)
    dropped = Dropped()
    chat: Json = {name: body.get(name) for name in _SAME}
    functions = names.to_chat(body.get("tools"), dropped)
    chat["messages"] = _Conversation(names, dropped).messages(body.get("instructions"), items or input_items(body))
    chat["tool_choice"], chat["tools"] = names.choice(body.get("tool_choice"), functions, dropped)
    if not chat["tools"]:
        chat["tool_choice"] = chat["parallel_tool_calls"] = None
    chat["max_tokens"] = body.get("max_output_tokens")
    reasoning = body.get("reasoning")
    if isinstance(reasoning, dict):
        chat["reasoning_effort"] = reasoning.get("effort")
    chat["response_format"], chat["verbosity"] = _text_format(body.get("text"))
    if body.get("top_logprobs") or includes(body, "message.output_text.logprobs"):
        chat["logprobs"] = True
        chat["top_logprobs"] = body.get("top_logprobs")
    for name in sorted(_NOT_CHAT.intersection(body)):
        if body[name] is not None:
            dropped.add(name)
    engines_own = {
        name: value
        for name, value in body.items()
        if name not in _TRANSLATED and name not in _NOT_CHAT and name not in _REFUSED
    }
    return {**engines_own, **chat_request(chat)}, dropped.names


def input_items(body: Mapping[str, Any]) -> list[Json]:
    """The items of a request; a text is one user message."""
    items = body.get("input")
    if items is None:
        return []
    if isinstance(items, str):
        return [{"type": "message", "role": "user", "content": items}]
    return objects(items, "input")


def items_to_chat(items: Sequence[Json]) -> list[Json]:
    """Items as chat messages."""
    return _Conversation(ToolNames(), Dropped()).messages(None, items)


def includes(body: Mapping[str, Any], name: str) -> bool:
    """Whether the request includes an optional part of answers."""
    included = body.get("include")
    return isinstance(included, list) and name in included


def encode_reasoning(reasoning: str) -> str:
    """Reasoning as ``encrypted_content``."""
    return base64.b64encode(ENCRYPTED_PREFIX + reasoning.encode()).decode()


def decode_reasoning(encrypted: Any) -> str | None:
    """The reasoning of such an ``encrypted_content``; None for another service's."""
    if not isinstance(encrypted, str):
        return None
    try:
        plain = base64.b64decode(encrypted, validate=True)
        return plain.removeprefix(ENCRYPTED_PREFIX).decode() if plain.startswith(ENCRYPTED_PREFIX) else None
    except (binascii.Error, UnicodeDecodeError):
        return None


class _Conversation:
    """Converts items to chat messages. The items of one answer become one assistant message again."""

    def __init__(self, names: ToolNames, dropped: Dropped) -> None:
        self._names = names
        self._dropped = dropped
        self._messages: list[Json] = []
        self._answer: Json | None = None
        self._images: list[Json] = []

    def messages(self, instructions: Any, items: Sequence[Json]) -> list[Json]:
        """All messages."""
        if instructions:
            if isinstance(instructions, str):
                self._system(instructions)
            else:
                items = [*objects(instructions, "instructions"), *items]
        for item in items:
            self._item(item)
        self._close()
        self._show_images()
        return self._messages

    def _item(self, item: Json) -> None:
        kind = item.get("type") or ("message" if "role" in item else "item_reference")
        if not isinstance(kind, str):
            raise BadRequest("an item's type is not a text", field="input.type")
        if kind not in _OUTPUTS:
            self._show_images()
        if kind == "message" and item.get("role") == "assistant":
            self._assistant_message(item)
        elif kind == "message":
            self._close()
            self._user_message(item)
        elif kind == "reasoning":
            self._reasoning(item)
        elif kind in _CALLS:
            self._open(lambda answer: False).setdefault("tool_calls", []).append(self._names.chat_call(item))
        elif kind in _OUTPUTS:
            self._close()
            self._result(item)
        elif kind == "item_reference":
            raise BadRequest(f"no item {item.get('id')!r} was found", field="input", hint="send the item itself")
        else:
            self._dropped.add(f"input.{kind}")

    def _assistant_message(self, item: Json) -> None:
        answer = self._open(_is_over)
        parts = self._parts(item.get("content"), "")
        text = "".join(part["text"] for part in parts if part["type"] == "text")
        answer["content"] = (answer["content"] or "") + text

    def _reasoning(self, item: Json) -> None:
        text = decode_reasoning(item.get("encrypted_content"))
        if text is None:
            if item.get("encrypted_content"):
                self._dropped.add("input.reasoning.encrypted_content")
            for name, joiner in (("content", ""), ("summary", "\n\n")):
                listed = item.get(name)
                parts = [p for p in listed if isinstance(p, dict)] if isinstance(listed, list) else []
                text = joiner.join(str(part.get("text", "")) for part in parts)
                if text:
                    break
        if not text and not item.get("encrypted_content"):
            # An id that this gateway did not issue.
            self._dropped.add("input.reasoning")
        if text:
            answer = self._open(_is_over)
            answer["reasoning_content"] = answer.get("reasoning_content", "") + text

    def _open(self, is_full: Any) -> Json:
        if self._answer is not None and is_full(self._answer):
            self._close()
        if self._answer is None:
            self._answer = {"role": "assistant", "content": None}
        return self._answer

    def _close(self) -> None:
        if self._answer is None:
            return
        if "tool_calls" not in self._answer and self._answer["content"] is None:
            self._answer["content"] = ""
        self._messages.append(self._answer)
        self._answer = None

    def _user_message(self, item: Json) -> None:
        role = item.get("role")
        content = plain_content(self._parts(item.get("content"), "input.content"))
        if role in ("system", "developer"):
            if isinstance(content, str):
                self._system(content)
                return
            role = "system"
        elif role != "user":
            raise BadRequest(f"unknown role {role!r}", field="input.role", hint="user, assistant, system, developer")
        self._messages.append({"role": role, "content": content})

    def _system(self, text: str) -> None:
        """Instructions and developer messages at the beginning become one message: templates allow one."""
        if len(self._messages) == 1 and self._messages[0]["role"] == "system":
            first = self._messages[0]
            if isinstance(first["content"], str):
                first["content"] = f"{first['content']}\n\n{text}"
                return
        self._messages.append({"role": "system", "content": text})

    def _result(self, item: Json) -> None:
        output = item.get("output")
        call_id = text_of(item.get("call_id") or item.get("id"), "input.call_id")
        parts = self._parts(output if output is not None else "", "input.output")
        texts = [part["text"] if part["type"] == "text" else IMAGE_MARK for part in parts]
        result: Json = {"role": "tool", "tool_call_id": call_id, "content": "\n".join(texts)}
        self._messages.append(result)
        self._images += [part for part in parts if part["type"] != "text"]

    def _show_images(self) -> None:
        """Append images after the last result of a turn: chat requires results right after calls, and only text in
        them.
        """
        if self._images:
            self._messages.append({"role": "user", "content": self._images})
            self._images = []

    def _parts(self, content: Any, where: str) -> list[Json]:
        """Content of an item as chat parts."""
        if isinstance(content, str):
            return [{"type": "text", "text": content}]
        parts: list[Json] = []
        for part in objects(content, where or "input.content"):
            kind = part.get("type")
            if kind in ("input_text", "output_text", "text", "summary_text", "reasoning_text"):
                parts.append({"type": "text", "text": text_of(part.get("text"), f"{where}.text")})
            elif kind == "refusal":
                parts.append({"type": "text", "text": text_of(part.get("refusal"), f"{where}.refusal")})
            elif kind == "input_image" and isinstance(part.get("image_url"), str):
                image = {"url": part["image_url"], "detail": part.get("detail")}
                parts.append({"type": "image_url", "image_url": chat_request(image)})
            elif kind == "input_file" and (part.get("file_data") or part.get("file_id")):
                file = {name: part.get(name) for name in ("filename", "file_data", "file_id")}
                parts.append({"type": "file", "file": chat_request(file)})
            elif kind == "input_audio" and isinstance(part.get("input_audio"), dict):
                parts.append({"type": "input_audio", "input_audio": part["input_audio"]})
            else:
                self._dropped.add(f"input.{kind}")
        return parts


def _is_over(answer: Json) -> bool:
    """Whether the next text begins another answer. An answer with open calls has not ended."""
    return answer["content"] is not None and "tool_calls" not in answer


def _text_format(text: Any) -> tuple[Json | None, Any]:
    """(response_format, verbosity)."""
    if not isinstance(text, dict):
        return None, None
    form = text.get("format")
    kind = form.get("type") if isinstance(form, dict) else None
    verbosity = text.get("verbosity")
    if not isinstance(form, dict) or kind in (None, "text"):
        return None, verbosity
    if kind == "json_object":
        return {"type": "json_object"}, verbosity
    if kind != "json_schema":
        raise BadRequest(f"unknown text.format {kind!r}", field="text.format", hint="text, json_object, json_schema")
    schema = {name: form.get(name) for name in ("name", "description", "schema", "strict")}
    return {"type": "json_schema", "json_schema": chat_request(schema)}, verbosity
