"""Anthropic Messages requests as OpenAI chat requests.

What chat can't express is dropped and listed: server tools, cited documents by address, redacted thinking. Cache marks
and Claude Code's billing line are removed without a note, so that requests which differ only in them share their
prefix.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from core.dialects.base import BadRequest, Dropped, Json, chat_request, objects, plain_content, text_of

RAW_ARGUMENTS: Final = "raw_arguments"
"""Key of a tool input whose arguments are not a JSON object."""
BILLING_HEADER: Final = "x-anthropic-billing-header"
IMAGE_MARK: Final = "[image]"
"""Replaces an image in a tool message; the image follows in a user message."""

CONTINUE: Final[Mapping[str, bool]] = {"continue_final_message": True, "add_generation_prompt": False}
"""Request fields that make an engine continue the last message."""
PREFILL: Final = "messages.prefill"
"""The name of the dropped part if an engine can't continue a message."""

_SAME: Final = ("model", "max_tokens", "temperature", "top_p", "top_k", "stream")
_TRANSLATED: Final = frozenset(
    {*_SAME, "messages", "system", "tools", "tool_choice", "stop_sequences", "output_config", "output_format"}
)
_NOT_CHAT: Final = frozenset(
    {"betas", "cache_control", "container", "context_management", "diagnostics", "fallbacks", "inference_geo",
     "mcp_servers", "metadata", "service_tier", "speed", "thinking", "user_profile_id"}
)  # fmt: skip
"""Fields of the Messages API without an equivalent in chat. Unknown fields are passed to the engine."""
_EFFORTS: Final = {"max": "high", "xhigh": "high"}
"""Reasoning efforts that chat engines don't accept -> the nearest accepted one."""


def to_chat(body: Mapping[str, Any]) -> tuple[Json, list[str]]:
    """The chat request, and the names of dropped fields.

    Raises:
        BadRequest: an invalid field.
    """
    dropped = Dropped()
    chat: Json = {name: body.get(name) for name in _SAME}
    chat["messages"] = messages_to_chat(body, dropped)
    chat["tools"] = _tools(body.get("tools"), dropped)
    chat["tool_choice"], chat["parallel_tool_calls"] = _tool_choice(body.get("tool_choice"))
    if not chat["tools"]:
        chat["tool_choice"] = chat["parallel_tool_calls"] = None
    chat["stop"] = body.get("stop_sequences") or None
    chat["response_format"], chat["reasoning_effort"] = _output(body, dropped)
    for name in sorted(_NOT_CHAT.intersection(body)):
        if body[name] is not None:
            dropped.add(name)
    engines_own = {name: value for name, value in body.items() if name not in _TRANSLATED and name not in _NOT_CHAT}
    if _is_prefill(chat["messages"]):
        chat |= CONTINUE
    return {**engines_own, **chat_request(chat)}, dropped.names


def _is_prefill(messages: Sequence[Json]) -> bool:
    """Whether the last message is the beginning of the answer. A message with tool calls is complete."""
    last = messages[-1] if messages else {}
    return last.get("role") == "assistant" and "tool_calls" not in last and bool(last.get("content"))


def messages_to_chat(body: Mapping[str, Any], dropped: Dropped) -> list[Json]:
    """System prompt and messages."""
    messages: list[Json] = []
    if body.get("system"):
        system = _system(body["system"], dropped)
        if system:
            messages.append({"role": "system", "content": system})
    for number, message in enumerate(objects(body.get("messages"), "messages")):
        where = f"messages.{number}"
        role, content = message.get("role"), message.get("content")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        blocks = objects(content, f"{where}.content")
        if role == "assistant":
            messages.append(_assistant(blocks, where, dropped))
        elif role == "user":
            messages += _user(blocks, where, dropped)
        elif role == "system":
            messages.append({"role": "system", "content": _system(blocks, dropped)})
        else:
            raise BadRequest(f"{where}.role must be user or assistant", field=f"{where}.role")
    return messages


def _system(system: Any, dropped: Dropped) -> str:
    if isinstance(system, str):
        return system
    texts = []
    for block in objects(system, "system"):
        if block.get("type") != "text":
            dropped.add(f"system.{block.get('type')}")
            continue
        text = text_of(block.get("text"), "system")
        if text.startswith(BILLING_HEADER):
            # Changes with every call; the provider removes it as well.
            dropped.add(f"system.{BILLING_HEADER}")
            continue
        texts.append(text)
    return "\n".join(texts)


def _assistant(blocks: Sequence[Json], where: str, dropped: Dropped) -> Json:
    texts: list[str] = []
    thinking: list[str] = []
    calls: list[Json] = []
    for block in blocks:
        kind = block.get("type")
        if kind == "text":
            texts.append(text_of(block.get("text"), f"{where}.content.text"))
        elif kind == "thinking":
            thinking.append(text_of(block.get("thinking"), f"{where}.content.thinking"))
        elif kind == "tool_use":
            calls.append(_call(block, where))
        else:
            dropped.add(f"messages.{kind}")
    content = "".join(texts)
    message: Json = {"role": "assistant", "content": content if content or not calls else None}
    if thinking:
        message["reasoning_content"] = "".join(thinking)
    if calls:
        message["tool_calls"] = calls
    return message


def _call(block: Json, where: str) -> Json:
    tool_input = block.get("input")
    if (
        isinstance(tool_input, dict)
        and tool_input.keys() == {RAW_ARGUMENTS}
        and isinstance(tool_input[RAW_ARGUMENTS], str)
    ):
        arguments = tool_input[RAW_ARGUMENTS]
    else:
        # Serialised as models and chat templates do, so that the call has the same tokens as when it was sampled.
        arguments = json.dumps(tool_input if tool_input is not None else {}, ensure_ascii=False)
    return {
        "id": text_of(block.get("id"), f"{where}.content.id"),
        "type": "function",
        "function": {"name": text_of(block.get("name"), f"{where}.content.name"), "arguments": arguments},
    }


def _user(blocks: Sequence[Json], where: str, dropped: Dropped) -> list[Json]:
    """Tool results first, as chat requires; then the user's content, images of results before it."""
    results: list[Json] = []
    parts: list[Json] = []
    own_parts: list[Json] = []
    for block in blocks:
        if block.get("type") == "tool_result":
            text, images = _tool_result(block, where, dropped)
            results.append(
                {
                    "role": "tool",
                    "tool_call_id": text_of(block.get("tool_use_id"), f"{where}.content.tool_use_id"),
                    "content": text,
                }
            )
            parts += images
        else:
            own_parts += _parts(block, where, dropped)
    parts += own_parts
    if parts or not results:
        results.append({"role": "user", "content": plain_content(parts)})
    return results


def _tool_result(block: Json, where: str, dropped: Dropped) -> tuple[str, list[Json]]:
    if block.get("is_error"):
        dropped.add("messages.tool_result.is_error")
    content = block.get("content")
    if content is None:
        return "", []
    if isinstance(content, str):
        return content, []
    parts = [part for inner in objects(content, f"{where}.content.content") for part in _parts(inner, where, dropped)]
    texts = [part["text"] if part["type"] == "text" else IMAGE_MARK for part in parts]
    return "\n".join(texts), [part for part in parts if part["type"] != "text"]


def _parts(block: Json, where: str, dropped: Dropped) -> list[Json]:
    """A user's content block as chat parts."""
    kind = block.get("type")
    if kind == "text":
        return [{"type": "text", "text": text_of(block.get("text"), f"{where}.content.text")}]
    if kind == "tool_reference":
        return [{"type": "text", "text": text_of(block.get("tool_name"), f"{where}.content.tool_name")}]
    source = block.get("source")
    if kind == "image" and isinstance(source, dict):
        address = _address(source)
        if address is not None:
            return [{"type": "image_url", "image_url": {"url": address}}]
    if kind == "document" and isinstance(source, dict):
        return _document(block, source, where, dropped)
    if kind == "search_result":
        texts = [block.get("title"), block.get("source")]
        inner = [part for one in objects(block.get("content"), where) for part in _parts(one, where, dropped)]
        return [*({"type": "text", "text": text} for text in texts if isinstance(text, str)), *inner]
    dropped.add(f"messages.{kind}")
    return []


def _document(block: Json, source: Json, where: str, dropped: Dropped) -> list[Json]:
    titles = [{"type": "text", "text": block[name]} for name in ("title", "context") if block.get(name)]
    if source.get("type") == "text":
        return [*titles, {"type": "text", "text": text_of(source.get("data"), f"{where}.content.source.data")}]
    if source.get("type") == "content":
        inner = source.get("content")
        blocks = [{"type": "text", "text": inner}] if isinstance(inner, str) else objects(inner, where)
        return [*titles, *(part for one in blocks for part in _parts(one, where, dropped))]
    address = _address(source)
    if source.get("type") == "base64" and address is not None:
        name = block.get("title") or "document.pdf"
        return [{"type": "file", "file": {"filename": name, "file_data": address}}]
    dropped.add(f"messages.document.{source.get('type')}")
    return []


def _address(source: Json) -> str | None:
    if source.get("type") == "base64" and isinstance(source.get("data"), str):
        return f"data:{source.get('media_type')};base64,{source['data']}"
    if source.get("type") == "url" and isinstance(source.get("url"), str):
        return str(source["url"])
    return None


def _tools(tools: Any, dropped: Dropped) -> list[Json] | None:
    if tools is None:
        return None
    functions: list[Json] = []
    for tool in objects(tools, "tools"):
        if not isinstance(tool.get("input_schema"), dict):
            # Server tools: their inputs and results are encrypted.
            dropped.add(f"tools.{tool.get('type')}")
            continue
        function: Json = {
            "name": text_of(tool.get("name"), "tools.name"),
            "description": tool.get("description"),
            "parameters": tool["input_schema"],
            "strict": tool.get("strict"),
        }
        functions.append({"type": "function", "function": chat_request(function)})
    return functions or None


def _tool_choice(choice: Any) -> tuple[Any, bool | None]:
    """(tool_choice, parallel_tool_calls)."""
    if choice is None:
        return None, None
    if not isinstance(choice, dict):
        raise BadRequest("tool_choice must be an object", field="tool_choice")
    parallel = False if choice.get("disable_parallel_tool_use") else None
    kind = choice.get("type")
    if kind == "tool":
        return {"type": "function", "function": {"name": text_of(choice.get("name"), "tool_choice.name")}}, parallel
    names = {"auto": "auto", "any": "required", "none": "none"}
    if not isinstance(kind, str) or kind not in names:
        raise BadRequest(f"unknown tool_choice {kind!r}", field="tool_choice.type", hint="auto, any, tool, none")
    return names[kind], parallel


def _output(body: Mapping[str, Any], dropped: Dropped) -> tuple[Json | None, Any]:
    """(response_format, reasoning_effort)."""
    config = body.get("output_config")
    config = config if isinstance(config, dict) else {}
    form = config.get("format") or body.get("output_format")
    effort = config.get("effort")
    if isinstance(effort, str) and effort in _EFFORTS:
        dropped.add("output_config.effort")
        effort = _EFFORTS[effort]
    for name in sorted(config.keys() - {"format", "effort"}):
        dropped.add(f"output_config.{name}")
    if not isinstance(form, dict):
        return None, effort
    if form.get("type") != "json_schema" or not isinstance(form.get("schema"), dict):
        raise BadRequest("only format json_schema is known", field="output_config.format")
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": form["schema"], "strict": True}}, effort
