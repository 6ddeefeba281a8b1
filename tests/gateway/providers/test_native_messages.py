"""Claude behind the gateway: a Messages call to one of Anthropic's models goes and comes as it is."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest
from starlette.responses import JSONResponse

from core.dialects import chat_answer
from tests.gateway.providers.wire_formats import ANTHROPIC, WIRES, provider

KEY = "agents-own-provider-key"
MESSAGE: dict[str, Any] = {
    "id": "msg_01",
    "type": "message",
    "role": "assistant",
    "model": "claude-any",
    "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": "c2lnbmVk"},
        {"type": "redacted_thinking", "data": "zzz"},
        {"type": "text", "text": "Look:"},
        {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}},
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": [1, 2]}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {
        "input_tokens": 7, "output_tokens": 9, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 1,
    },
}  # fmt: skip
BODY: dict[str, Any] = {
    "model": "anthropic/claude-any",
    "max_tokens": 50,
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [{"type": "web_search_20250305", "name": "web_search"}],
}


@pytest.fixture
def gateway(make_gateway, upstream, monkeypatch):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    gateway = make_gateway(timeout_s=20.0)
    gateway.engines.add("claude", "anthropic/claude-any", kind="litellm", api_base=upstream.base_url)
    upstream.reply = MESSAGE
    return gateway


@pytest.fixture
def claude(gateway):
    with anthropic.Anthropic(base_url=gateway.root, api_key=KEY, max_retries=0) as client:
        yield client


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_is_lost(gateway, upstream, claude, stream):
    extra = {"anthropic-beta": "some-beta"}
    if stream:
        with claude.messages.stream(**BODY, extra_headers=extra) as events:
            answer = events.get_final_message()
    else:
        answer = claude.messages.create(**BODY, extra_headers=extra)
    got = answer.model_dump(exclude_none=True)
    assert got["content"] == MESSAGE["content"]
    assert {name: got["usage"][name] for name in MESSAGE["usage"]} == MESSAGE["usage"]
    assert (got["id"], got["stop_reason"]) == ("msg_01", "tool_use")
    assert upstream.last.path == "messages"
    assert upstream.last.body == {**BODY, "model": "claude-any", **({"stream": True} if stream else {})}
    assert upstream.last.headers["x-api-key"] == KEY
    assert upstream.last.headers["anthropic-beta"] == "some-beta"
    (record,) = gateway.records()
    assert (record["dialect"], record["engine_dialect"], record["dropped_fields"]) == ("messages", "messages", [])
    assert record["response"] == MESSAGE
    assert "response_id" not in record
    assert KEY.encode() not in next(gateway.directory.glob("*.seg")).read_bytes()


@pytest.mark.parametrize("sdk", [True, False])
def test_the_providers_own_stream_goes_on_as_it_is(gateway, upstream, claude, sdk):
    upstream.reply = provider("anthropic")
    if sdk:
        with claude.messages.stream(**BODY) as events:
            answer = events.get_final_message()
        assert answer.model_dump(exclude_none=True)["content"] == ANTHROPIC["content"]
    else:
        body = {**BODY, "stream": True}
        raw = gateway.http.post("/v1/messages", json=body, headers={"x-api-key": KEY}).text
        sent_events = [json.loads(line[6:]) for line in raw.splitlines() if line.startswith("data: ")]
        assert sent_events == WIRES["anthropic"][1]
    (record,) = gateway.records()
    assert record["response"] == ANTHROPIC
    assert (record["stream_mode"], record["engine_dialect"], record["error"]) == ("relay", "messages", None)


@pytest.mark.parametrize("n_sent", [1, 12])
def test_a_message_that_breaks_off_is_no_answer(gateway, upstream, claude, n_sent):
    event = 'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}\n\n'
    for end, match in (("", "in the middle"), (event, "Overloaded")):
        upstream.reply = provider("anthropic", n_sent=n_sent, end=end)
        with pytest.raises(anthropic.APIStatusError, match=match), claude.messages.stream(**BODY) as events:
            events.get_final_message()
        record = gateway.records()[-1]
        assert match in record["error"]["message"]
        assert record["response"]["id"] == "msg_1"


def test_what_is_stored_is_canonical():
    (choice,) = chat_answer("messages", MESSAGE)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert (message["content"], message["reasoning_content"]) == ("Look:", "Hm.")
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": [1, 2]}'}
    assert [block["type"] for block in message["thinking_blocks"]] == ["thinking", "redacted_thinking"]
    response = {
        "object": "response", "id": "r", "status": "completed",
        "output": [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Look:"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        ],
    }  # fmt: skip
    (choice,) = chat_answer("responses", response)["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Look:", "tool_calls")
    assert chat_answer("messages", {"type": "error"}) == {"type": "error"}


def test_the_providers_error_is_the_agents(gateway, upstream, claude):
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    upstream.reply = lambda request: JSONResponse(error, status_code=529, headers={"Retry-After": "3"})
    with pytest.raises(anthropic.APIStatusError) as caught:
        claude.messages.create(**BODY)
    assert caught.value.status_code == 529
    assert caught.value.body == error
    assert caught.value.response.headers["retry-after"] == "3"
    assert gateway.records()[0]["error"]["message"] == "Overloaded"


def test_keys_inside_the_body_are_taken_out(gateway, upstream, claude):
    secret = "canary-of-an-mcp-server"
    servers = [{"type": "url", "url": "https://example.org", "name": "m", "authorization_token": secret}]
    gateway.http.post("/v1/messages", json={**BODY, "mcp_servers": servers}, headers={"x-api-key": KEY})
    tool = {
        "type": "mcp",
        "server_label": "m",
        "server_url": "https://example.org",
        "headers": {"Authorization": secret},
    }
    upstream.reply = {"choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}]}
    gateway.http.post("/v1/responses", json={"model": "m", "input": "x", "tools": [tool]}, headers={"x-api-key": KEY})
    first, second = gateway.records()
    assert first["dropped_fields"] == ["mcp_servers.authorization_token"]
    assert second["dropped_fields"][0] == "tools.headers"
    assert secret.encode() not in next(gateway.directory.glob("*.seg")).read_bytes()
