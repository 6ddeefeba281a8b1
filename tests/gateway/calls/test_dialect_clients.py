"""Messages and Responses through the official clients, over the scripted engine that ships."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from pydantic import BaseModel

from core.gateway.engines.routing import Retries
from core.serving.process import EngineProcess
from core.tokens import extract_tokens
from tests.gateway.conftest import Gateway
from tests.gateway.upstream import chat_answer

ADD = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
SCRIPT = {
    "model": "scripted-1",
    "reasoning_parser": True,
    "rules": [
        {
            "when": {"turn": 0, "has_tools": True},
            "reply": {
                "reasoning": "Sum it.",
                "content": "Let me add.",
                "tool_calls": [
                    {"name": "add", "arguments": {"a": 2, "b": 3}},
                    {"name": "add", "arguments": {"a": 20, "b": 30}},
                ],
            },
        },
        {"when": {"turn": 1, "has_tools": True}, "reply": {"content": "5 and 50: grüße 你好"}},
        {"when": {"last_contains": "slowly"}, "reply": {"content": "here"}, "delay_s": 0.5},
        {"when": {"last_contains": "broken call"}, "reply": {"tool_calls": [{"name": "add", "arguments": "{broken"}]}},
        *(
            {"when": {"last_contains": f"fault {fault}."}, "fault": fault, "delay_s": delay_s}
            for fault, delay_s in (("status:503", 0.0), ("status:429", 0.0), ("garbage", 0.0), ("disconnect", 0.3))
        ),
    ],
    "default": {"content": "plain answer"},
}


@pytest.fixture
def engine(process: EngineProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=str(process.base_url).removesuffix("/v1"), timeout=30) as http:
        http.put("/__script", json=SCRIPT).raise_for_status()
        http.delete("/__log").raise_for_status()
        yield http


@pytest.fixture
def mode(request) -> str:
    """How answers are taken from the engine and given to the agent: ``none`` is no stream at all."""
    return getattr(request, "param", "relay")


@pytest.fixture
def gateway(make_gateway, process, engine, mode):
    gateway = make_gateway(timeout_s=5.0, limits={"keepalive_s": 0.1})
    gateway.engines.add("scripted", process.base_url, streaming="auto" if mode == "none" else mode)
    return gateway


every_mode = pytest.mark.parametrize("mode", ["none", "whole", "relay"], indirect=True)


@pytest.fixture
def claude(gateway) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=gateway.root, api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture
def gpt(gateway) -> Iterator[openai.OpenAI]:
    with gateway.sdk() as client:
        yield client


def user_message(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def check_tokens(gateway, engine: httpx.Client, dialect: str) -> None:
    """Every call is recorded with the ids that the engine says it sampled."""
    records, logged = gateway.records(), engine.get("/__log").json()["requests"]
    assert len(records) == len(logged) > 0
    for record, entry in zip(records, logged, strict=True):
        assert (record["dialect"], record["engine_dialect"]) == (dialect, "chat")
        tokens = extract_tokens(record["response"], 0, record["engine_dialect"])
        assert (tokens.token_source, tokens.mismatch) == ("engine", None)
        assert tokens.prompt_ids == entry["prompt_ids"]
        assert tokens.response_ids == entry["choices"][0]["response_ids"]
        assert len(tokens.response_logprobs or ()) == len(tokens.response_ids or ())


def ask_claude(client: anthropic.Anthropic, stream: bool, **body: Any) -> anthropic.types.Message:
    body = {"model": "any-name", "max_tokens": 200, **body}
    if not stream:
        return client.messages.create(**body)
    with client.messages.stream(**body) as events:
        kinds = [event.type for event in events]
        assert kinds[0] == "message_start"
        assert kinds[-1] == "message_stop"
        return events.get_final_message()


@every_mode
def test_a_messages_tool_loop(gateway, engine, claude, mode):
    stream = mode != "none"
    tools = [{"name": "add", "description": "Adds.", "input_schema": ADD}]
    messages = user_message("What is 2 + 3, and 20 + 30?")
    answer = ask_claude(claude, stream, system="Be exact.", messages=messages, tools=tools)
    assert [block.type for block in answer.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert answer.content[0].thinking.strip() == "Sum it."
    assert answer.content[1].text.strip() == "Let me add."
    assert [block.input for block in answer.content[2:]] == [{"a": 2, "b": 3}, {"a": 20, "b": 30}]
    assert (answer.stop_reason, answer.model, answer.role) == ("tool_use", "any-name", "assistant")
    assert answer.usage.output_tokens == len(gateway.records()[0]["response"]["choices"][0]["token_ids"])
    assert answer.usage.input_tokens == len(gateway.records()[0]["response"]["prompt_token_ids"])
    messages.append({"role": "assistant", "content": answer.content})
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": str(sum(block.input.values()))}
        for block in answer.content[2:]
    ]
    messages.append({"role": "user", "content": results})
    final = ask_claude(claude, stream, system="Be exact.", messages=messages, tools=tools)
    assert (final.content[0].text, final.stop_reason) == ("5 and 50: grüße 你好", "end_turn")
    check_tokens(gateway, engine, "messages")
    first, second = gateway.records()
    assert first["request"]["system"] == "Be exact."
    assert [record["response_id"] for record in (first, second)] == [answer.id, final.id]
    assert [record["stream_mode"] for record in (first, second)] == [mode] * 2
    # The prompt of the second call begins with all tokens of the first one: the agent changed nothing.
    tokens = extract_tokens(first["response"], 0, "chat")
    before = [*tokens.prompt_ids, *tokens.response_ids]
    assert extract_tokens(second["response"], 0, "chat").prompt_ids[: len(before)] == before


def test_a_messages_stream_is_kept_alive_by_pings(gateway):
    body = {"model": "m", "max_tokens": 9, "messages": user_message("slowly"), "stream": True}
    with gateway.http.stream("POST", "/v1/messages?beta=true", json=body) as response:
        lines = [line for line in response.iter_lines() if line.startswith("event: ")]
    assert lines[:2] == ["event: ping", "event: ping"]
    assert lines[-1] == "event: message_stop"
    with anthropic.Anthropic(base_url=gateway.root, api_key="x", max_retries=0) as client:
        assert ask_claude(client, True, messages=user_message("slowly")).content[0].text == "here"


@every_mode
def test_malformed_arguments_arrive_and_come_back(gateway, claude, engine, mode):
    stream = mode != "none"
    tools = [{"name": "add", "input_schema": ADD}]
    y = {"role": "assistant", "content": "y"}
    answer = ask_claude(
        claude,
        stream,
        messages=[*user_message("x"), y, *user_message("z"), y, *user_message("broken call")],
        tools=tools,
    )
    called = gateway.records()[0]["response"]["choices"][0]["message"].get("tool_calls")
    if called is None:  # the engine's parser left the text as it was
        assert "{broken" in answer.content[0].text
    else:
        assert answer.content[-1].input == {"raw_arguments": called[0]["function"]["arguments"]}


@pytest.mark.parametrize(
    ("fault", "status", "kind"),
    [
        ("status:503", anthropic.APIStatusError, "overloaded_error"),
        ("status:429", anthropic.RateLimitError, "rate_limit_error"),
        ("garbage", anthropic.APIStatusError, "api_error"),
    ],
)
@every_mode
def test_messages_failures(make_gateway, process, engine, fault, status, kind, mode):
    stream = mode != "none"
    # No keep-alive comes before the engine's last word: a failure has its own status.
    gateway = make_gateway(limits={"retries": Retries(backoff_s=0.01)})
    gateway.engines.add("scripted", process.base_url, streaming="auto" if mode == "none" else mode)
    claude = anthropic.Anthropic(base_url=gateway.root, api_key="unused", max_retries=0)
    with pytest.raises(status) as caught:
        ask_claude(claude, stream, messages=user_message(f"fault {fault}."))
    assert caught.value.body["type"] == "error"
    assert caught.value.body["error"]["type"] == kind
    (record,) = gateway.records()
    assert record["error"]["message"]


def test_messages_that_do_not_fit_get_400_and_no_record(gateway, claude):
    with pytest.raises(anthropic.BadRequestError) as caught:
        claude.messages.create(model="m", max_tokens=9, messages=[{"role": "robot", "content": "x"}])
    assert "messages.0.role" in str(caught.value)
    assert gateway.records() == []


def test_failures_inside_opened_streams(gateway, claude, gpt):
    with pytest.raises(anthropic.APIStatusError) as caught:
        ask_claude(claude, True, messages=user_message("fault disconnect."))
    assert caught.value.body["error"]["type"] == "api_error"
    events = list(gpt.responses.create(model="m", input="fault disconnect.", stream=True))
    assert [event.type for event in events] == ["response.created", "response.in_progress", "response.failed"]
    assert events[-1].response.error.code == "server_error"
    assert "closed the connection" in events[-1].response.error.message
    assert [record["error"]["type"] for record in gateway.records()] == ["engine_error"] * 2


def test_tokens_are_counted_by_the_engine(gateway, claude):
    body: dict[str, Any] = {"system": "Be brief.", "messages": user_message("How long is this?"),
                            "tools": [{"name": "add", "input_schema": ADD}]}  # fmt: skip
    counted = claude.messages.count_tokens(model="m", **body).input_tokens
    assert counted == ask_claude(claude, False, **body).usage.input_tokens
    assert len(gateway.records()) == 1


def test_input_tokens_of_a_response_are_counted(gateway, gpt):
    first = ask_gpt(gpt, False, input="one")
    body: dict[str, Any] = {"input": "two", "previous_response_id": first.id, "instructions": "Be brief."}
    counted = gpt.responses.input_tokens.count(model="m", **body)
    assert counted.input_tokens == ask_gpt(gpt, False, **body).usage.input_tokens


def test_tokens_are_estimated_where_nobody_counts(make_gateway, upstream):
    gateway = make_gateway(upstream)
    body = {"model": "m", "messages": user_message("x" * 400)}
    answer = gateway.http.post("/v1/messages/count_tokens", json=body).json()
    assert answer["estimated"] is True
    assert 100 <= answer["input_tokens"] <= 130
    assert gateway.http.post("/v1/messages/count_tokens", json={"messages": 3}).json()["type"] == "error"


def test_an_answer_limit_beyond_the_models_context_is_none(gateway, claude, engine):
    """Claude Code asks for 128,000 tokens of whatever stands behind the gateway."""
    engine.put("/__script", json={**SCRIPT, "context_length": 1000}).raise_for_status()
    for max_tokens in (128_000, 998):
        answer = ask_claude(claude, True, max_tokens=max_tokens, messages=user_message("x"))
        assert answer.content[0].text == "plain answer"
    assert [record["dropped_fields"] for record in gateway.records()] == [["max_tokens"]] * 2
    assert "max_tokens" in gateway.records()[0]["request"]
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask_claude(claude, False, messages=user_message("word " * 1000))
    assert caught.value.body["error"]["message"].startswith("prompt is too long")


def test_models_in_both_shapes(gateway, claude, gpt):
    (model,) = claude.models.list().data
    assert (model.id, model.type, model.display_name) == ("scripted-1", "model", "scripted-1")
    assert claude.models.retrieve("scripted-1").created_at.year >= 2024
    assert gpt.models.retrieve("scripted-1").object == "model"
    with pytest.raises(openai.NotFoundError):
        gpt.models.retrieve("nobody/knows")
    with pytest.raises(anthropic.NotFoundError):
        claude.models.retrieve("nobody")


def ask_gpt(client: openai.OpenAI, stream: bool, **body: Any) -> Any:
    body = {"model": "any-name", **body}
    if not stream:
        return client.responses.create(**body)
    with client.responses.stream(**body) as events:
        kinds = [event.type for event in events]
        assert kinds[:2] == ["response.created", "response.in_progress"]
        assert kinds[-1] == "response.completed"
        return events.get_final_response()


ADD_FUNCTION: Any = {"type": "function", "name": "add", "parameters": ADD, "strict": False}


@pytest.mark.parametrize("chained", [False, True])
@every_mode
def test_a_responses_tool_loop(gateway, engine, gpt, mode, chained):
    stream = mode != "none"
    items: list[Any] = [{"role": "user", "content": "What is 2 + 3, and 20 + 30?"}]
    extra: dict[str, Any] = {} if chained else {"store": False, "include": ["reasoning.encrypted_content"]}
    settings = {"instructions": "Be exact.", "tools": [ADD_FUNCTION], **extra}
    first = ask_gpt(gpt, stream, input=items, **settings)
    assert [item.type for item in first.output] == ["reasoning", "message", "function_call", "function_call"]
    assert first.output_text.strip() == "Let me add."
    assert (first.status, first.model) == ("completed", "any-name")
    assert first.usage.output_tokens == len(gateway.records()[0]["response"]["choices"][0]["token_ids"])
    results = [{"type": "function_call_output", "call_id": item.call_id, "output": "5"} for item in first.output[2:]]
    if chained:
        final = ask_gpt(gpt, stream, input=results, previous_response_id=first.id, **settings)
    else:
        final = ask_gpt(gpt, stream, input=[*items, *(item.to_dict() for item in first.output), *results], **settings)
    assert final.output_text == "5 and 50: grüße 你好"
    check_tokens(gateway, engine, "responses")
    one, two = gateway.records()
    assert [record["response_id"] for record in (one, two)] == [first.id, final.id]
    assert [record["stream_mode"] for record in (one, two)] == [mode] * 2
    assert len(two.get("input_items", ())) == (7 if chained else 0)
    tokens = extract_tokens(one["response"], 0, "chat")
    before = [*tokens.prompt_ids, *tokens.response_ids]
    assert extract_tokens(two["response"], 0, "chat").prompt_ids[: len(before)] == before


def test_earlier_answers_outlive_the_process(gateway, process, gpt, stopping):
    ask_gpt(gpt, False, input="before", store=False)
    first = ask_gpt(gpt, False, input="one")
    second = ask_gpt(gpt, False, input="two", previous_response_id=first.id)
    gateway.journal.close()
    again = Gateway(gateway.directory)
    again.engines.add("scripted", process.base_url)
    with again.sdk() as client:
        third = ask_gpt(client, False, input="three", previous_response_id=second.id)
        assert client.responses.retrieve(first.id).to_dict() == first.to_dict()
        assert client.responses.retrieve(third.id).to_dict() == third.to_dict()
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve("resp_unknown")
    contents = [item["content"] for item in again.records()[-1]["input_items"]]
    texts = [content if isinstance(content, str) else content[0]["text"] for content in contents]
    assert texts == ["one", "plain answer", "two", "plain answer", "three"]
    stopping(again.stop)


@every_mode
def test_what_was_streamed_is_what_is_found_again(gateway, gpt, mode):
    tools = [ADD_FUNCTION]
    for text in ("What is 2 + 3, and 20 + 30?", "no tools"):
        body = {"model": "m", "input": text, "tools": tools if "2" in text else []}
        given = gpt.responses.create(**body, stream=mode != "none")
        if mode != "none":
            given = list(given)[-1].response
        assert gpt.responses.retrieve(given.id).to_dict() == given.to_dict()
    assert {record["stream_mode"] for record in gateway.records()} == {mode}


@pytest.mark.parametrize("previous", ["resp_1", "resp_" + "a" * 32 + "-w0.1.8", "resp_x-../../etc.1.0", 3])
def test_an_unknown_earlier_answer_is_told(gateway, previous):
    answer = gateway.http.post("/v1/responses", json={"model": "m", "input": "x", "previous_response_id": previous})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("previous_response_not_found", "previous_response_id")
    assert gateway.records() == []


def test_answers_that_were_not_stored_or_failed_are_no_place_to_go_on_from(gateway, gpt):
    unstored = ask_gpt(gpt, False, input="x", store=False)
    with pytest.raises(openai.APIStatusError):
        ask_gpt(gpt, False, input="fault status:503.")
    failed = gateway.records()[1]["response_id"]
    for previous in (unstored.id, failed):
        with pytest.raises(openai.BadRequestError) as caught:
            ask_gpt(gpt, False, input="y", previous_response_id=previous)
        assert caught.value.code == "previous_response_not_found"


def test_a_session_key_finds_its_own_trajectorys_answers_only(make_gateway, process, engine):
    gateway = make_gateway(api_key="the-gateways-own-key")
    gateway.engines.add("scripted", process.base_url)
    mine, theirs = (gateway.keys.mint(trajectory_uid=uid)[0] for uid in ("mine", "theirs"))
    first = ask_gpt(gateway.sdk(mine), False, input="one")
    for key in (mine, "the-gateways-own-key"):
        assert gateway.sdk(key).responses.retrieve(first.id).id == first.id
        ask_gpt(gateway.sdk(key), False, input="two", previous_response_id=first.id)
    with pytest.raises(openai.NotFoundError):
        gateway.sdk(theirs).responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError):
        ask_gpt(gateway.sdk(theirs), False, input="two", previous_response_id=first.id)
    with pytest.raises(openai.BadRequestError):
        ask_gpt(gateway.sdk(theirs), False, input=[{"type": "item_reference", "id": first.output[0].id}])


def test_items_can_be_named_instead_of_sent(gateway, gpt):
    first = ask_gpt(gpt, False, input="one")
    reference: Any = {"type": "item_reference", "id": first.output[0].id}
    ask_gpt(gpt, False, input=[{"role": "user", "content": "one"}, reference, {"role": "user", "content": "two"}])
    assert gateway.records()[1]["input_items"][1]["content"][0]["text"] == "plain answer"
    with pytest.raises(openai.BadRequestError):
        ask_gpt(gpt, False, input=[{**reference, "id": first.output[0].id + "7"}])


def test_too_few_tokens_make_an_incomplete_response(gateway, gpt):
    whole = gpt.responses.create(model="m", input="x", max_output_tokens=1)
    assert (whole.status, whole.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    events = list(gpt.responses.create(model="m", input="x", max_output_tokens=1, stream=True))
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output_text == whole.output_text


class Point(BaseModel):
    x: int
    y: int


def test_structured_answers_are_asked_for_and_parsed(make_gateway, upstream):
    gateway = make_gateway(upstream)
    upstream.reply = chat_answer('{"x": 1, "y": 2}')
    parsed = gateway.sdk().responses.parse(model="m", input="a point", text_format=Point)
    assert parsed.output_parsed == Point(x=1, y=2)
    response_format = upstream.last.body["response_format"]
    assert response_format["type"] == "json_schema"
    assert set(response_format["json_schema"]["schema"]["properties"]) == {"x", "y"}
    claude = anthropic.Anthropic(base_url=gateway.root, api_key="x", max_retries=0)
    answer = claude.messages.parse(model="m", max_tokens=9, messages=user_message("a point"), output_format=Point)
    assert answer.parsed_output == Point(x=1, y=2)
    assert set(upstream.last.body["response_format"]["json_schema"]["schema"]["properties"]) == {"x", "y"}


def test_custom_tools_and_images_reach_the_engine_and_calls_come_back(make_gateway, upstream):
    gateway = make_gateway(upstream)
    patch = '{"input": "*** Begin Patch\\n*** End Patch"}'
    upstream.reply = chat_answer(
        None, tool_calls=[{"id": "call_1", "type": "function", "function": {"name": "apply_patch", "arguments": patch}}]
    )
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"}
    body: dict[str, Any] = {
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "edit"}, image]}],
        "tools": [{"type": "custom", "name": "apply_patch", "description": "Edits."}, {"type": "web_search"}],
    }
    for stream in (False, True):
        (item,) = ask_gpt(gateway.sdk(), stream, **body).output
        assert (item.type, item.name, item.call_id) == ("custom_tool_call", "apply_patch", "call_1")
        assert item.input == "*** Begin Patch\n*** End Patch"
    assert upstream.last.body["messages"][0]["content"][1]["image_url"]["url"].startswith("data:image/png")
    assert gateway.records()[0]["dropped_fields"] == ["tools.web_search"]


@pytest.mark.parametrize("path", ["messages", "responses"])
def test_the_agents_engine_fields_pass_and_what_it_did_not_ask_for_stays_hidden(make_gateway, upstream, path):
    gateway = make_gateway(upstream)
    prompt = {"messages": user_message("x"), "max_tokens": 9} if path == "messages" else {"input": "x"}
    body = {"model": "m", **prompt, "min_p": 0.1, "chat_template_kwargs": {"enable_thinking": False}}
    answer = gateway.http.post(f"/v1/{path}", json=body)
    assert upstream.last.body["min_p"] == 0.1
    assert upstream.last.body["chat_template_kwargs"] == {"enable_thinking": False}
    assert "token_ids" not in answer.text
    assert 'logprob"' not in answer.text
    assert gateway.records()[0]["request"] == body


def test_unauthorized_in_each_shape(make_gateway, upstream):
    gateway = make_gateway(upstream, api_key="secret-key-of-the-gateway")
    with pytest.raises(anthropic.AuthenticationError):
        anthropic.Anthropic(base_url=gateway.root, api_key="no", max_retries=0).messages.create(
            model="m", max_tokens=9, messages=user_message("x")
        )
    with pytest.raises(openai.AuthenticationError):
        gateway.sdk("no").responses.create(model="m", input="x")
    assert gateway.records() == []
