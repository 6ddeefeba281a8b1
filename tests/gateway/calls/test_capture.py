from __future__ import annotations

import json
import os
import socket
import threading
import time

import httpx
import openai
import pytest
from starlette.responses import PlainTextResponse, Response

from core.journal import read_records
from core.tokens import extract_tokens
from tests.conftest import eventually
from tests.gateway.upstream import chat_answer, completions_answer

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Looks a word up",
            "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
        },
    }
]
CALLS = [
    {"id": "call_a", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "one"}'}},
    {"id": "call_b", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "two"}'}},
]
HI = [{"role": "user", "content": "hi"}]


def test_an_answer_is_on_disk_when_it_arrives(gateway, upstream):
    answer = gateway.sdk().chat.completions.create(model="policy", messages=HI, temperature=0.7)
    assert answer.choices[0].message.content == "hello"
    (record,) = gateway.records()
    assert record["kind"] == "call"
    assert record["request"] == {"model": "policy", "messages": HI, "temperature": 0.7}
    assert record["response"] == chat_answer()
    assert record["engine_added"] == ["return_token_ids", "logprobs"]
    assert (record["http_status"], record["error"], record["aborted"]) == (200, None, False)
    assert (record["stream"], record["stream_mode"], record["dialect"]) == (False, "none", "chat")
    assert record["started_at"] <= record["finished_at"] <= time.time()
    assert upstream.last.body["return_token_ids"] is True
    assert upstream.last.body["logprobs"] is True
    assert upstream.last.body["temperature"] == 0.7
    tokens = extract_tokens(record["response"], 0, "chat")
    assert tokens.prompt_ids == [1, 2, 3, 4]
    assert tokens.response_ids == [7, 8, 9]
    assert tokens.token_source == "engine"
    assert tokens.mismatch is None


def test_the_agent_sees_nothing_it_did_not_ask_for(gateway):
    plain = gateway.chat().json()
    assert "prompt_token_ids" not in plain
    assert "token_ids" not in plain["choices"][0]
    assert plain["choices"][0]["logprobs"] is None
    answer = gateway.chat(logprobs=True, return_token_ids=True).json()
    assert answer == chat_answer()
    assert [record["engine_added"] for record in gateway.records()][1] == []


def test_answers_name_their_step_and_trajectory(gateway):
    response = gateway.chat(prefix="/t1/p1")
    (record,) = gateway.records()
    assert response.headers["x-step-uid"] == record["step_uid"]
    assert response.headers["x-trajectory-uid"] == "t1"


def test_unknown_fields_travel_both_ways_and_are_kept(gateway, upstream):
    upstream.reply = {**chat_answer(), "engine_note": {"kept": True}}
    answer = gateway.chat(chat_template_kwargs={"thinking": False}, min_p=0.1).json()
    assert answer["engine_note"] == {"kept": True}
    assert upstream.last.body["chat_template_kwargs"] == {"thinking": False}
    assert gateway.records()[0]["request"]["min_p"] == 0.1


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_thinking_that_is_sent_back_has_both_names(gateway, upstream, name):
    thought = {"role": "assistant", "content": "a", name: "because"}
    gateway.chat(messages=[*HI, thought, *HI])
    assert upstream.last.body["messages"][1] == {**thought, "reasoning": "because", "reasoning_content": "because"}
    assert gateway.records()[0]["request"]["messages"][1] == thought


def test_a_developer_is_asked_as_system(gateway, upstream):
    gateway.chat(messages=[{"role": "developer", "content": "d"}, *HI])
    assert upstream.last.body["messages"] == [{"role": "system", "content": "d"}, *HI]
    assert gateway.records()[0]["request"]["messages"][0]["role"] == "developer"


def test_several_choices_pass(gateway, upstream):
    upstream.reply = chat_answer(n=3)
    answer = gateway.sdk().chat.completions.create(model="policy", messages=HI, n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    (record,) = gateway.records()
    assert len(record["response"]["choices"]) == 3
    assert extract_tokens(record["response"], 2, "chat").mismatch is None


def test_tools_whole(gateway, upstream):
    upstream.reply = chat_answer(None, tool_calls=CALLS)
    answer = gateway.sdk().chat.completions.create(model="policy", messages=HI, tools=TOOLS)
    assert [call.function.arguments for call in answer.choices[0].message.tool_calls] == [
        '{"word": "one"}',
        '{"word": "two"}',
    ]
    assert gateway.records()[0]["request"]["tools"] == TOOLS


def test_a_stream_is_made_from_the_whole_answer(make_gateway, upstream):
    gateway = make_gateway(upstream, streaming="whole")
    upstream.reply = chat_answer("grüße 你好", reasoning_content="let me think")
    chunks = list(gateway.sdk().chat.completions.create(model="policy", messages=HI, stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == "grüße 你好"
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "let me think"
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "stop"
    assert {chunk.id for chunk in chunks} == {"chatcmpl-1"}
    assert all(chunk.usage is None for chunk in chunks)
    assert "stream" not in upstream.last.body
    (record,) = gateway.records()
    assert (record["stream"], record["stream_mode"]) == (True, "whole")
    assert record["response"] == upstream.reply


def test_a_stream_with_tools_and_usage(gateway, upstream):
    upstream.reply = chat_answer(None, tool_calls=CALLS)
    with gateway.sdk().chat.completions.stream(
        model="policy", messages=HI, tools=TOOLS, stream_options={"include_usage": True}
    ) as stream:
        final = stream.get_final_completion()
    calls = final.choices[0].message.tool_calls
    assert [(call.id, call.function.name, call.function.arguments) for call in calls] == [
        ("call_a", "look_up", '{"word": "one"}'),
        ("call_b", "look_up", '{"word": "two"}'),
    ]
    assert final.choices[0].finish_reason == "tool_calls"
    assert final.usage.completion_tokens == 3


def test_a_stream_of_several_choices_and_log_probs(gateway, upstream):
    upstream.reply = chat_answer(n=2)
    texts = {0: "", 1: ""}
    logprobs = {0: [], 1: []}
    for chunk in gateway.sdk().chat.completions.create(model="policy", messages=HI, n=2, stream=True, logprobs=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            logprobs[choice.index] += choice.logprobs.content if choice.logprobs else []
    assert texts == {0: "hello", 1: "hello"}
    assert {index: len(entries) for index, entries in logprobs.items()} == {0: 3, 1: 3}


def test_a_stream_is_kept_alive_while_the_engine_works(make_gateway, upstream):
    gateway = make_gateway(upstream, limits={"keepalive_s": 0.1})
    upstream.delay_s = 1.0
    body = {"model": "policy", "messages": HI, "stream": True}
    with gateway.http.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = [(time.monotonic(), line) for line in response.iter_lines() if line]
    comments = [at for at, line in lines if line.startswith(":")]
    data = [(at, line) for at, line in lines if line.startswith("data:")]
    assert len(comments) >= 3
    assert comments[-1] - comments[0] > 0.2
    assert data[-1][1] == "data: [DONE]"
    assert response.headers["content-type"].startswith("text/event-stream")
    upstream.delay_s = 0.2
    chunks = list(gateway.sdk().chat.completions.create(**body))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "hello"


def test_text_completions_whole_and_streamed(gateway, upstream):
    upstream.reply = completions_answer()
    sdk = gateway.sdk()
    whole = sdk.completions.create(model="policy", prompt="say")
    assert whole.choices[0].text == "hello"
    assert whole.choices[0].logprobs is None
    streamed = list(sdk.completions.create(model="policy", prompt="say", stream=True))
    assert "".join(chunk.choices[0].text for chunk in streamed) == "hello"
    assert streamed[-1].choices[0].finish_reason == "stop"
    first, second = gateway.records()
    assert first["dialect"] == "completions"
    tokens = extract_tokens(first["response"], 0, "completions")
    assert (tokens.prompt_ids, tokens.response_ids) == ([1, 2], [7, 8])
    assert tokens.response_logprobs == [-0.1, -0.1]
    assert second["stream_mode"] == "whole"
    assert upstream.last.body["logprobs"] == 1


def test_models_are_listed(gateway, upstream):
    upstream.models = ["policy", "policy-lora"]
    assert [model.id for model in gateway.sdk().models.list()] == ["policy", "policy-lora"]
    assert gateway.http.get("/t/p/v1/models").json()["data"][0]["id"] == "policy"
    assert gateway.records() == []


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"\xff\xfe", b'{"model": 3}', b'"text"'])
def test_a_body_that_is_no_request_gets_400(gateway, upstream, raw):
    response = gateway.http.post("/v1/chat/completions", content=raw)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert upstream.seen == []
    assert gateway.records() == []


def test_sixty_four_megabytes_pass(gateway, upstream):
    text = "x" * (64 << 20)
    answer = gateway.sdk().chat.completions.create(model="policy", messages=[{"role": "user", "content": text}])
    assert answer.choices[0].message.content == "hello"
    assert len(upstream.last.body["messages"][0]["content"]) == 64 << 20
    (record,) = read_records(gateway.directory, {})
    assert len(record.payload) > 64 << 20


def test_a_body_over_the_limit_gets_413(make_gateway, upstream):
    gateway = make_gateway(upstream, limits={"max_body_bytes": 100_000})
    response = gateway.chat(messages=[{"role": "user", "content": "x" * 300_000}])
    assert response.status_code == 413


def test_an_engines_refusal_passes_as_it_is_and_is_recorded(gateway, upstream):
    refusal = {
        "error": {"message": "context too long", "type": "invalid_request_error", "code": "context_length_exceeded"}
    }
    upstream.reply = Response(json.dumps(refusal), status_code=400, media_type="application/json")
    with pytest.raises(openai.BadRequestError) as caught:
        gateway.sdk().chat.completions.create(model="policy", messages=HI)
    assert caught.value.code == "context_length_exceeded"
    (record,) = gateway.records()
    assert record["http_status"] == 400
    assert record["response"] == refusal
    assert record["error"]["message"] == "context too long"


def test_too_many_requests_keeps_its_status_and_retry_after(gateway, upstream):
    upstream.reply = Response('{"error": {"message": "slow down"}}', status_code=429, headers={"Retry-After": "7"})
    response = gateway.chat(stream=True)
    assert (response.status_code, response.headers["retry-after"]) == (429, "7")


@pytest.mark.parametrize(
    "reply",
    [
        PlainTextResponse("boom", status_code=500),
        PlainTextResponse("not json at all"),
        Response('{"choices": [', media_type="application/json"),
        Response('{"choices": []}', media_type="application/json"),
        Response("[1, 2]", media_type="application/json"),
        Response('{"choices": [3]}', media_type="application/json"),
        Response(b"\xff\xfe\x00", media_type="application/json"),
        Response('{"error": "inner"}', status_code=500),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_broken_engine_gives_502_and_a_record(gateway, upstream, reply, stream):
    upstream.reply = reply
    response = gateway.chat(stream=stream)
    assert response.status_code == 502
    assert response.json()["error"]["type"] == "engine_error"
    (record,) = gateway.records()
    assert record["response"] is None
    assert record["error"]["type"] == "engine_error"
    upstream.reply = chat_answer()
    assert gateway.chat().status_code == 200
    assert gateway.engines.status()[0]["ok"] is True


def test_an_engine_that_is_not_there(make_gateway):
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    gateway = make_gateway()
    gateway.engines.add("gone", f"http://127.0.0.1:{port}/v1")
    response = gateway.chat()
    assert response.status_code == 502
    assert "gone" in response.json()["error"]["message"]
    assert gateway.records()[0]["error"]
    assert gateway.engines.status()[0]["ok"] is False


def test_an_engine_that_hangs(make_gateway, upstream):
    gateway = make_gateway(upstream, timeout_s=0.4)
    upstream.delay_s = 1.5
    response = gateway.chat()
    assert response.status_code == 504
    assert gateway.records()[0]["error"]["type"] == "engine_timeout"


def test_an_error_after_the_stream_began_is_an_event(make_gateway, upstream):
    gateway = make_gateway(upstream, limits={"keepalive_s": 0.05})
    upstream.delay_s = 0.3
    upstream.reply = PlainTextResponse("boom", status_code=500)
    with pytest.raises(openai.APIError, match="status 500"):
        list(gateway.sdk().chat.completions.create(model="policy", messages=HI, stream=True))
    assert gateway.records()[0]["error"]


def test_no_engine_at_all(make_gateway):
    response = make_gateway().chat()
    assert response.status_code == 502
    assert "no engine" in response.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_that_leaves_loses_nothing(gateway, upstream, stream):
    upstream.delay_s = 1.0
    body = json.dumps({"model": "policy", "messages": HI, "stream": stream}).encode()
    with socket.create_connection(("127.0.0.1", gateway.server.port)) as sock:
        sock.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
        eventually(lambda: upstream.seen)
    (record,) = gateway.wait_records(1)
    assert record["aborted"] is True
    assert record["response"] == chat_answer()
    assert gateway.policy.n_in_flight == 0
    eventually(lambda: gateway.stats.snapshot()["n_aborted"] == 1)


def test_stopping_lets_calls_finish(make_gateway, upstream):
    gateway = make_gateway(upstream)
    upstream.delay_s = 0.8
    answers: list[httpx.Response] = []
    worker = threading.Thread(target=lambda: answers.append(gateway.chat()))
    worker.start()
    eventually(lambda: upstream.seen)
    gateway.server.stop(10.0)
    worker.join()
    assert answers[0].status_code == 200
    assert len(gateway.records()) == 1


def test_stopping_without_patience_still_records(make_gateway, upstream):
    gateway = make_gateway(upstream)
    upstream.delay_s = 5.0

    def call() -> None:
        with pytest.raises(httpx.HTTPError):
            gateway.chat().raise_for_status()

    worker = threading.Thread(target=call)
    worker.start()
    eventually(lambda: upstream.seen)
    gateway.server.stop(0.2)
    worker.join()
    (record,) = gateway.wait_records(1)
    assert record["aborted"] is True
    assert record["response"] is None


def test_a_journal_that_can_not_write_fails_the_call(make_gateway, upstream):
    gateway = make_gateway(upstream)
    gateway.journal.close()
    response = gateway.chat()
    assert response.status_code == 507
    assert response.json()["error"]["code"] == "capture_not_durable"
    assert gateway.stats.snapshot()["n_dropped"] == 0


def test_best_effort_passes_and_counts(make_gateway, upstream):
    gateway = make_gateway(upstream, capture="best_effort")
    gateway.journal.close()
    assert gateway.chat().status_code == 200
    assert gateway.stats.snapshot()["n_dropped"] == 1


def test_counters(gateway, upstream):
    for _ in range(3):
        gateway.chat(headers={"X-Agent": "a"})
    upstream.reply = PlainTextResponse("boom", status_code=500)
    gateway.chat()
    data = gateway.stats.snapshot()
    assert (data["n_calls"], data["n_errors"], data["n_in_flight"]) == (4, 1, 0)
    assert data["n_response_tokens"] == 9
    assert data["by"]["agent"] == {"a": 3, "unknown": 1}
    assert data["recent"][0]["error"]
    assert [entry["step_uid"] for entry in reversed(data["recent"])] == [
        record["step_uid"] for record in gateway.records()
    ]
    latency = data["latency"]
    assert latency["count"] == 4 and 0 <= latency["buckets"][0][1] <= latency["buckets"][-1][1] == 4
    assert latency["sum"] == pytest.approx(sum(entry["latency_s"] for entry in data["recent"]))


def test_many_at_once_lose_nothing(gateway, upstream):
    upstream.delay_s = 0.02

    def agent(number: int) -> None:
        with httpx.Client(base_url=gateway.root, timeout=120) as http:
            for turn in range(10):
                http.post(
                    f"/t{number}/p/v1/chat/completions",
                    json={"model": "policy", "messages": [{"role": "user", "content": f"{number}:{turn}"}]},
                ).raise_for_status()

    workers = [threading.Thread(target=agent, args=(number,)) for number in range(12)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    sources = {
        (record["identity"]["trajectory_uid"], record["request"]["messages"][0]["content"])
        for record in gateway.records()
    }
    assert sources == {(f"t{number}", f"{number}:{turn}") for number in range(12) for turn in range(10)}


def test_an_engine_on_this_machine_is_asked_without_a_proxy(gateway, upstream, monkeypatch):
    monkeypatch.setitem(os.environ, "HTTP_PROXY", "http://127.0.0.1:9")
    assert gateway.chat().status_code == 200
