from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types import MessageParam
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from core.dialects import MESSAGES, RESPONSES, BadRequest, ResponseIds, canonical_request
from core.dialects.messages_request import IMAGE_MARK
from core.dialects.responses_request import encode_reasoning
from tests.effort import settings

from .strategies import conversations

NAMES = ResponseIds("s")
MARK = {"cache_control": {"type": "ephemeral"}}
MESSAGE_PARAM: TypeAdapter[Any] = TypeAdapter(MessageParam)


def messages_chat(body: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    translation = MESSAGES.open({"model": "m", "max_tokens": 9, "messages": [], **body}, NAMES, ())
    return dict(translation.engine_request), list(translation.dropped)


def responses_chat(body: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    translation = RESPONSES.open({"model": "m", "input": [], **body}, NAMES, ())
    return dict(translation.engine_request), list(translation.dropped)


def anthropic_part(part: dict[str, Any]) -> dict[str, Any]:
    if part["type"] == "text":
        return dict(part)
    url = part["image_url"]["url"]
    if url.startswith("data:"):
        kind, _, data = url.removeprefix("data:").partition(";base64,")
        return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}
    return {"type": "image", "source": {"type": "url", "url": url}}


@st.composite
def as_messages(draw: st.DrawFn, chat: list[dict[str, Any]]) -> dict[str, Any]:
    """Chat messages in Anthropic's form, written by this test; texts as strings or blocks, cache marks anywhere."""

    def marked(blocks: list[dict[str, Any]]) -> Any:
        if len(blocks) == 1 and set(blocks[0]) == {"type", "text"} and draw(st.booleans()):
            return blocks[0]["text"]
        return [{**block, **(MARK if draw(st.booleans()) else {})} for block in blocks]

    body: dict[str, Any] = {"messages": []}
    for message in chat:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
        blocks = [anthropic_part(part) for part in parts]
        if message["role"] == "system":
            body["system"] = marked(blocks)
        elif message["role"] == "user":
            body["messages"].append({"role": "user", "content": marked(blocks)})
        elif message["role"] == "assistant":
            if thinking := message.get("reasoning_content"):
                blocks.insert(0, {"type": "thinking", "thinking": thinking, "signature": "any"})
            for call in message.get("tool_calls", ()):
                function = call["function"]
                given = json.loads(function["arguments"])
                blocks.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": given})
            body["messages"].append({"role": "assistant", "content": marked(blocks)})
        else:
            result = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": marked(blocks)}
            last = body["messages"][-1]
            if last["role"] == "user" and any(block["type"] == "tool_result" for block in last["content"]):
                last["content"].append(result)
            else:
                body["messages"].append({"role": "user", "content": [result]})
    return body


@given(conversations().flatmap(lambda chat: st.tuples(st.just(chat), as_messages(chat))))
def test_messages_say_what_chat_says(case: Any) -> None:
    chat, body = case
    for message in body["messages"]:
        MESSAGE_PARAM.validate_python(message)
    assert messages_chat(body)[0]["messages"] == chat


@st.composite
def as_items(draw: st.DrawFn, chat: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Chat messages as Responses items, written by this test."""
    items: list[dict[str, Any]] = []
    for message in chat:
        role, content = message["role"], message["content"]
        if role == "tool":
            items.append(
                {"type": "function_call_output", "call_id": message["tool_call_id"], "output": content}
                if draw(st.booleans())
                else {
                    "type": "function_call_output",
                    "call_id": message["tool_call_id"],
                    "output": [{"type": "input_text", "text": content}],
                }
            )
            continue
        if thinking := message.get("reasoning_content"):
            shown = draw(
                st.sampled_from(
                    [
                        {"summary": [], "encrypted_content": encode_reasoning(thinking)},
                        {"summary": [], "content": [{"type": "reasoning_text", "text": thinking}]},
                        {"summary": [{"type": "summary_text", "text": thinking}]},
                    ]
                )
            )
            items.append({"type": "reasoning", "id": "rs_1", **shown})
        if content is not None:
            kind = "output_text" if role == "assistant" else "input_text"
            parts: Any = [
                {"type": kind, "text": part["text"]}
                if part["type"] == "text"
                else {"type": "input_image", "image_url": part["image_url"]["url"]}
                for part in ([{"type": "text", "text": content}] if isinstance(content, str) else content)
            ]
            if isinstance(content, str) and draw(st.booleans()):
                parts = content
            role = draw(st.sampled_from(["system", "developer"])) if role == "system" else role
            items.append({**({"type": "message"} if draw(st.booleans()) else {}), "role": role, "content": parts})
        for call in message.get("tool_calls", ()):
            items.append({"type": "function_call", "call_id": call["id"], **call["function"]})
    return items


@given(conversations().flatmap(lambda chat: st.tuples(st.just(chat), as_items(chat))), st.booleans())
def test_responses_say_what_chat_says(case: Any, with_instructions: bool) -> None:
    chat, items = case
    body: dict[str, Any] = {"input": items}
    if with_instructions and chat[0]["role"] == "system":
        body = {"input": items[1:], "instructions": chat[0]["content"]}
    assert responses_chat(body)[0]["messages"] == chat


@settings(max_examples=50)
@given(conversations().flatmap(lambda chat: st.tuples(as_messages(chat), as_messages(chat))))
def test_cache_marks_and_forms_leave_no_trace(pair: Any) -> None:
    one, other = pair
    assert messages_chat(one) == messages_chat(other)


def test_claude_codes_volatile_system_prompt_is_the_same_every_call() -> None:
    def system(cch: str) -> list[dict[str, Any]]:
        billing = f"x-anthropic-billing-header: cc_version=2.1.329.4cd; cc_entrypoint=sdk-cli; cch={cch};"
        return [{"type": "text", "text": billing}, {"type": "text", "text": "You are Claude Code.", **MARK}]

    first, dropped = messages_chat({"system": system("0a1b2"), "messages": [{"role": "user", "content": "x"}]})
    second, _ = messages_chat({"system": system("99999"), "messages": [{"role": "user", "content": "x"}]})
    assert first == second
    assert first["messages"][0] == {"role": "system", "content": "You are Claude Code."}
    assert dropped == ["system.x-anthropic-billing-header"]


TOOL = {"name": "f", "description": "does", "input_schema": {"type": "object", "properties": {}}}


def test_messages_tools_choice_and_settings() -> None:
    chat, dropped = messages_chat(
        {
            "tools": [{**TOOL, **MARK}, {"type": "web_search_20250305", "name": "web_search"}],
            "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
            "stop_sequences": ["END"],
            "temperature": 0.5,
            "top_k": 5,
            "top_p": 0.9,
            "metadata": {"user_id": "u"},
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "output_config": {"effort": "max", "format": {"type": "json_schema", "schema": {"type": "object"}}},
            "context_management": {"edits": []},
            "min_p": 0.1,
            "chat_template_kwargs": {"enable_thinking": False},
        }
    )
    assert chat["tools"] == [
        {
            "type": "function",
            "function": {"name": "f", "description": "does", "parameters": TOOL["input_schema"]},
        }
    ]
    assert chat["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    assert chat["parallel_tool_calls"] is False
    assert (chat["stop"], chat["temperature"], chat["top_k"], chat["top_p"]) == (["END"], 0.5, 5, 0.9)
    assert chat["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert chat["reasoning_effort"] == "high"
    assert (chat["min_p"], chat["chat_template_kwargs"]) == (0.1, {"enable_thinking": False})
    assert chat["max_tokens"] == 9
    assert dropped == [
        "tools.web_search_20250305", "output_config.effort", "context_management", "metadata", "thinking",
    ]  # fmt: skip
    assert not {"metadata", "thinking", "system", "stop_sequences", "output_config"} & set(chat)


@pytest.mark.parametrize(("given_", "asked"), [("auto", "auto"), ("any", "required"), ("none", "none")])
def test_messages_tool_choices(given_: str, asked: str) -> None:
    assert messages_chat({"tools": [TOOL], "tool_choice": {"type": given_}})[0]["tool_choice"] == asked
    assert "tool_choice" not in messages_chat({"tool_choice": {"type": given_}})[0]


def test_results_come_first_their_images_after_them() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    results = [
        {"type": "text", "text": "note"},
        {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "shot"}, image]},
        {"type": "tool_result", "tool_use_id": "b", "content": "boom", "is_error": True},
        {"type": "tool_result", "tool_use_id": "c"},
    ]
    chat, dropped = messages_chat({"messages": [{"role": "user", "content": results}]})
    shown = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    assert chat["messages"] == [
        {"role": "tool", "tool_call_id": "a", "content": f"shot\n{IMAGE_MARK}"},
        {"role": "tool", "tool_call_id": "b", "content": "boom"},
        {"role": "tool", "tool_call_id": "c", "content": ""},
        {"role": "user", "content": [shown, {"type": "text", "text": "note"}]},
    ]
    assert dropped == ["messages.tool_result.is_error"]


def test_documents_and_what_chat_has_no_word_for() -> None:
    blocks = [
        {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "body"}},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AA=="}},
        {"type": "document", "source": {"type": "url", "url": "https://example.org/x.pdf"}},
        {"type": "search_result", "title": "S", "source": "s", "content": [{"type": "text", "text": "found"}]},
        {"type": "container_upload", "file_id": "f"},
    ]
    messages = [
        {"type": "redacted_thinking", "data": "zz"},
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "server_tool_use", "id": "x", "name": "web_search", "input": {}},
        {"type": "text", "text": "ok"},
    ]
    chat, dropped = messages_chat(
        {"messages": [{"role": "user", "content": blocks}, {"role": "assistant", "content": messages}]}
    )
    texts = [part.get("text") for part in chat["messages"][0]["content"]]
    assert texts == ["T", "body", None, "S", "s", "found"]
    assert chat["messages"][0]["content"][2]["file"]["file_data"] == "data:application/pdf;base64,AA=="
    assert chat["messages"][1] == {"role": "assistant", "content": "ok", "reasoning_content": "hm"}
    assert dropped == [
        "messages.document.url", "messages.container_upload", "messages.redacted_thinking", "messages.server_tool_use",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"messages": "x"}, "messages"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages.0.content"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": 3}]}]}, "messages.0.content.id"),
        ({"tools": [{"input_schema": {}}]}, "tools.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "never"}}, "tool_choice.type"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
    ],
)
def test_messages_that_are_none_name_their_field(body: dict[str, Any], field: str) -> None:
    with pytest.raises(BadRequest) as caught:
        messages_chat(body)
    assert caught.value.field == field
    assert caught.value.http_status == 400


GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /x+/"}


def test_responses_tools_and_their_calls_both_ways() -> None:
    tools = [
        {"type": "function", "name": "shell", "parameters": {"type": "object"}, "strict": False},
        {"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": GRAMMAR},
        {"type": "local_shell"},
        {"type": "namespace", "name": "mcp__files", "tools": [{"type": "function", "name": "read", "parameters": {}}]},
        {"type": "web_search"},
    ]
    translation = RESPONSES.open({"model": "m", "input": "x", "tools": tools}, NAMES, ())
    functions = [tool["function"] for tool in translation.engine_request["tools"]]
    assert [function["name"] for function in functions] == ["shell", "apply_patch", "local_shell", "mcp__files__read"]
    assert "start: /x+/" in functions[1]["description"]
    assert list(translation.dropped) == ["tools.web_search"]
    spelled = [
        ("shell", '{"command": ["ls"]}'),
        ("apply_patch", json.dumps({"input": "*** Begin Patch\nä"}, ensure_ascii=False)),
        ("local_shell", '{"command": ["ls", "-l"], "timeout_ms": 5}'),
        ("mcp__files__read", '{"path": "x"}'),
        ("unheard_of", "{}"),
    ]
    calls = [
        {"id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": text}}
        for n, (name, text) in enumerate(spelled)
    ]
    choice = {"index": 0, "message": {"content": None, "tool_calls": calls}, "finish_reason": "tool_calls"}
    output = translation.full_answer({"choices": [choice]})["output"]
    assert [item["type"] for item in output] == [
        "function_call", "custom_tool_call", "local_shell_call", "function_call", "function_call",
    ]  # fmt: skip
    assert output[1]["input"] == "*** Begin Patch\nä"
    assert output[2]["action"]["command"] == ["ls", "-l"]
    assert (output[3]["namespace"], output[3]["name"]) == ("mcp__files", "read")
    results = [
        {"type": item["type"].replace("_call", "_call_output"), "call_id": item["call_id"], "output": "done"}
        for item in output
    ]
    again = RESPONSES.open({"model": "m", "tools": tools, "input": [*output, *results]}, NAMES, ()).engine_request[
        "messages"
    ]
    assert again[0]["tool_calls"] == calls
    assert [message["tool_call_id"] for message in again[1:]] == [call["id"] for call in calls]


def test_a_custom_call_that_is_not_in_its_form_is_given_as_it_is() -> None:
    tools = [{"type": "custom", "name": "apply_patch"}]
    translation = RESPONSES.open({"model": "m", "input": "x", "tools": tools}, NAMES, ())
    call = {"id": "a", "type": "function", "function": {"name": "apply_patch", "arguments": "*** Begin"}}
    (item,) = translation.full_answer({"choices": [{"message": {"tool_calls": [call]}}]})["output"]
    assert item["input"] == "*** Begin"


def test_responses_settings() -> None:
    chat, dropped = responses_chat(
        {
            "instructions": "Be brief.",
            "input": [
                {"role": "developer", "content": "Sandboxed."},
                {"role": "user", "content": "x"},
                {"role": "developer", "content": "Now read-only."},
            ],
            "max_output_tokens": 77,
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True},
                     "verbosity": "low"},
            "reasoning": {"effort": "medium", "summary": "auto"},
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "k",
            "truncation": "auto",
            "service_tier": None,
            "client_metadata": {"a": "b"},
            "min_p": 0.2,
        }
    )  # fmt: skip
    assert chat["messages"] == [
        {"role": "system", "content": "Be brief.\n\nSandboxed."},
        {"role": "user", "content": "x"},
        {"role": "system", "content": "Now read-only."},
    ]
    assert (chat["max_tokens"], chat["verbosity"], chat["reasoning_effort"], chat["min_p"]) == (
        77,
        "low",
        "medium",
        0.2,
    )
    assert chat["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
    }
    assert dropped == ["client_metadata", "prompt_cache_key", "truncation"]
    assert not {"store", "include", "text", "input", "instructions", "reasoning"} & set(chat)


def test_responses_tool_choices() -> None:
    tools = [{"type": "function", "name": name, "parameters": {}} for name in ("f", "g")]

    def choice(tool_choice: Any) -> tuple[Any, list[str]]:
        chat, _ = responses_chat({"tools": tools, "tool_choice": tool_choice})
        return chat.get("tool_choice"), [tool["function"]["name"] for tool in chat["tools"]]

    assert choice("required") == ("required", ["f", "g"])
    assert choice({"type": "function", "name": "g"}) == ({"type": "function", "function": {"name": "g"}}, ["f", "g"])
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]}
    assert choice(allowed) == ("required", ["g"])


def test_images_of_results_wait_for_the_last_result() -> None:
    shot = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"}
    items = [
        *({"type": "function_call", "call_id": call, "name": "f", "arguments": "{}"} for call in "ab"),
        {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "one"}, shot]},
        {"type": "function_call_output", "call_id": "b", "output": "two"},
    ]
    messages = responses_chat({"input": items})[0]["messages"]
    assert [message["role"] for message in messages] == ["assistant", "tool", "tool", "user"]
    assert messages[1]["content"] == f"one\n{IMAGE_MARK}"
    assert messages[3]["content"][0]["image_url"]["detail"] == "auto"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"input": 3}, "input"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input.role"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input.arguments"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
        ({"tool_choice": 3, "tools": []}, "tool_choice"),
    ],
)
def test_responses_that_are_none_name_their_field(body: dict[str, Any], field: str) -> None:
    with pytest.raises(BadRequest) as caught:
        responses_chat(body)
    assert caught.value.field == field


def test_the_recorded_request_gives_the_same_chat() -> None:
    body = {"model": "m", "max_tokens": 5, "system": "s", "messages": [{"role": "user", "content": "x"}]}
    assert canonical_request("messages", body) == MESSAGES.open(body, NAMES, ()).engine_request
    assert canonical_request("chat", body) is body
    items = [{"role": "user", "content": "earlier"}, {"role": "user", "content": "x"}]
    assert len(canonical_request("responses", {"input": "x"}, items)["messages"]) == 2
