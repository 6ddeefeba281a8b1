"""Engines' own streams on their way to agents: words at once, the end when the call is on disk."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from starlette.responses import JSONResponse, StreamingResponse

from core.dialects import CHAT, ResponseIds
from core.dialects.assembly import Assembly
from core.gateway.calls.outbox import MAX_WAITING, Outbox
from core.gateway.engines.capabilities import streaming_line
from core.ingest.drafts import drafts_of_call
from core.journal import Journal
from core.serving.process import EngineProcess
from core.tokens import extract_tokens
from tests.conftest import eventually
from tests.gateway.upstream import Upstream, chat_answer

HI = [{"role": "user", "content": "hi"}]
WORDS = "one two three four five six"
SCRIPT = {
    "model": "scripted-1",
    "rules": [
        {"when": {"contains": "slowly"}, "reply": {"content": WORDS}, "chunk_delay_s": 0.04},
        {"when": {"contains": "long"}, "reply": {"n_tokens": 6000}},
        *(
            {"when": {"contains": f"fault {fault}."}, "reply": {"content": WORDS, **more}, "fault": fault}
            for fault, more in (
                ("disconnect_stream:3", {}),
                ("error_in_stream", {}),
                ("no_done", {}),
                ("garbage", {}),
                ("empty_choices", {}),
                ("stream_lost_ids", {"tool_calls": [{"name": "add", "arguments": {"a": 1}}]}),
            )
        ),
    ],
    "default": {"content": "plain answer"},
}
PATHS = {
    "chat": ("chat/completions", lambda text: {"messages": [{"role": "user", "content": text}]}),
    "completions": ("completions", lambda text: {"prompt": text, "max_tokens": 10_000}),
    "responses": ("responses", lambda text: {"input": text}),
    "messages": ("messages", lambda text: {"max_tokens": 10_000, "messages": [{"role": "user", "content": text}]}),
}
LAST = {"chat": '"finish_reason":"stop"', "completions": '"finish_reason":"stop"',
        "responses": "response.completed", "messages": "message_stop"}  # fmt: skip
every_dialect = pytest.mark.parametrize("dialect", PATHS)


@pytest.fixture(scope="module")
def process() -> Iterator[EngineProcess]:
    with EngineProcess.start("scripted") as process:
        with httpx.Client(base_url=str(process.base_url).removesuffix("/v1"), timeout=120) as http:
            http.put("/__script", json=SCRIPT).raise_for_status()
        yield process


@pytest.fixture
def gateway(make_gateway, process):
    gateway = make_gateway(timeout_s=10.0)
    gateway.engines.add("scripted", process.base_url)
    return gateway


def body_of(dialect: str, text: str, **more: Any) -> tuple[str, dict[str, Any]]:
    path, make = PATHS[dialect]
    return f"/v1/{path}", {"model": "m", "stream": True, **make(text), **more}


def timed_events(gateway: Any, dialect: str, text: str, **more: Any) -> list[tuple[float, str]]:
    """(when, data) of each event, seconds since the request."""
    path, body = body_of(dialect, text, **more)
    start = time.monotonic()
    with gateway.http.stream("POST", path, json=body) as response:
        assert response.status_code == 200, response.read()
        return [(time.monotonic() - start, line[6:]) for line in response.iter_lines() if line.startswith("data: ")]


def stop_reason(dialect: str, events: list[tuple[float, str]]) -> list[str]:
    return [data for _, data in events if LAST[dialect] in data]


@every_dialect
def test_words_come_as_they_are_sampled_and_the_record_is_exact(gateway, dialect):
    events = timed_events(gateway, dialect, "slowly")
    first, last = events[0][0], events[-1][0]
    # Tokens are 0.04 s apart: who waits for all of them sees nothing until the end.
    assert last - first > 0.2
    assert len({round(at, 2) for at, _ in events}) >= 4
    assert len(stop_reason(dialect, events)) == 1
    (record,) = gateway.records()
    assert (record["stream_mode"], record["http_status"], record["aborted"]) == ("relay", 200, False)
    wire = "completions" if dialect == "completions" else "chat"
    tokens = extract_tokens(record["response"], 0, wire)
    assert (tokens.token_source, tokens.mismatch) == ("engine", None)
    assert tokens.prompt_ids
    assert len(tokens.response_ids or ()) == len(tokens.response_logprobs or ()) > 5
    choice = record["response"]["choices"][0]
    assert (choice["text"] if wire == "completions" else choice["message"]["content"]).startswith(WORDS)
    # The agent did not ask for ids or log-probs.
    assert not any("token_ids" in data or '"logprob"' in data for _, data in events)


def test_the_record_is_the_answer_in_one_piece(gateway, process):
    body = {"model": "scripted-1", "messages": HI, "return_token_ids": True, "logprobs": True}
    whole = httpx.post(f"{process.base_url}/chat/completions", json=body, timeout=120).json()
    timed_events(gateway, "chat", "hi")
    streamed = gateway.records()[0]["response"]
    for answer in (whole, streamed):
        del answer["id"], answer["created"]
    assert streamed == whole


class SlowJournal(Journal):
    """A disk that takes its time."""

    delay_s = 0.5

    async def append_async(self, payload: bytes) -> Any:
        await asyncio.sleep(self.delay_s)
        return await super().append_async(payload)


@every_dialect
def test_the_end_of_an_answer_waits_for_the_disk(make_gateway, process, dialect):
    gateway = make_gateway(journal=SlowJournal)
    gateway.engines.add("scripted", process.base_url)
    path, body = body_of(dialect, "hi")
    with gateway.http.stream("POST", path, json=body) as response:
        before: int | None = None
        for line in response.iter_lines():
            if "plain" in line and before is None:
                before = len(gateway.records())
            if LAST[dialect] in line:
                break
        else:
            pytest.fail("the answer has no end")
        assert (before, len(gateway.records())) == (0, 1)


def last_event(gateway: Any, dialect: str, text: str) -> tuple[list[Any], Any]:
    """The events that came, parsed, and the last one of them."""
    events = [json.loads(data) for _, data in timed_events(gateway, dialect, text) if data != "[DONE]"]
    return events, events[-1]


def message_of(dialect: str, event: Any) -> str:
    """The words of an error event in the dialect's shape."""
    if dialect == "responses":
        assert event["type"] == "response.failed"
        assert event["response"]["status"] == "failed"
        return event["response"]["error"]["message"]
    if dialect == "messages":
        assert event["type"] == "error"
    return event["error"]["message"]


@every_dialect
def test_what_can_not_be_stored_ends_with_an_error(gateway, dialect):
    gateway.journal.close()
    _, last = last_event(gateway, dialect, "slowly")
    assert "journal" in message_of(dialect, last)
    assert gateway.stats.snapshot()["n_dropped"] == 0


def test_best_effort_goes_on_and_counts(make_gateway, process):
    gateway = make_gateway(capture="best_effort")
    gateway.engines.add("scripted", process.base_url)
    gateway.journal.close()
    assert stop_reason("chat", timed_events(gateway, "chat", "slowly"))
    assert gateway.stats.snapshot()["n_dropped"] == 1


@every_dialect
@pytest.mark.parametrize("fault", ["disconnect_stream:3", "error_in_stream"])
def test_an_engine_that_breaks_off_is_told_and_what_came_is_kept(gateway, dialect, fault):
    events, last = last_event(gateway, dialect, f"fault {fault}.")
    assert message_of(dialect, last)
    assert not any(LAST[dialect] in json.dumps(event) for event in events)
    (record,) = gateway.records()
    assert (record["http_status"], record["error"]["type"]) == (502, "engine_error")
    (choice,) = record["response"]["choices"]
    assert choice["finish_reason"] is None
    text = choice["text"] if dialect == "completions" else choice["message"]["content"]
    assert WORDS.startswith(text)
    assert text
    (step,) = drafts_of_call(record, "s", 0)
    assert (step.status, step.response_ids) == ("error", None)
    assert gateway.policy.n_in_flight == 0
    assert gateway.chat().status_code == 200


@pytest.mark.parametrize("fault", ["garbage", "empty_choices"])
def test_an_engine_that_begins_with_nonsense_keeps_its_status(gateway, fault):
    with pytest.raises(openai.APIStatusError) as caught:
        list(gateway.sdk().chat.completions.create(
            model="m", messages=[{"role": "user", "content": f"fault {fault}."}], stream=True
        ))  # fmt: skip
    assert caught.value.status_code == 502
    (record,) = gateway.records()
    assert (record["response"], record["stream_mode"]) == (None, "relay")


def test_a_stream_without_its_end_mark_is_whole_when_the_answer_is(gateway):
    events = timed_events(gateway, "chat", "fault no_done.")
    assert events[-1][1] == "[DONE]"
    assert gateway.records()[0]["error"] is None


def test_official_clients_see_errors_in_the_middle(gateway):
    messages = [{"role": "user", "content": "fault error_in_stream."}]
    with pytest.raises(openai.APIError, match="scripted failure"):
        list(gateway.sdk().chat.completions.create(model="m", messages=messages, stream=True))
    claude = anthropic.Anthropic(base_url=gateway.root, api_key="x", max_retries=0)
    with (
        pytest.raises(anthropic.APIStatusError, match="scripted failure"),
        claude.messages.stream(model="m", max_tokens=99, messages=messages) as stream,
    ):
        stream.get_final_message()
    (failed,) = [e for e in gateway.sdk().responses.create(model="m", input="fault error_in_stream.", stream=True)
                 if e.type == "response.failed"]  # fmt: skip
    assert "scripted failure" in failed.response.error.message


def test_several_choices_and_log_probs(gateway):
    texts, entries, ids = {0: "", 1: ""}, {0: [], 1: []}, {0: [], 1: []}
    stream = gateway.sdk().chat.completions.create(
        model="m", messages=HI, n=2, stream=True, logprobs=True, extra_body={"return_token_ids": True},
        stream_options={"include_usage": True},
    )  # fmt: skip
    usages = []
    for chunk in stream:
        usages += [chunk.usage] if chunk.usage else []
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            entries[choice.index] += choice.logprobs.content if choice.logprobs else []
            ids[choice.index] += getattr(choice, "token_ids", None) or []
    record = gateway.records()[0]
    assert record["engine_added"] == []
    assert texts == {0: "plain answer", 1: "plain answer"}
    for index in (0, 1):
        tokens = extract_tokens(record["response"], index, "chat")
        assert ids[index] == tokens.response_ids
        assert [entry.logprob for entry in entries[index]] == tokens.response_logprobs
    assert len(usages) == 1


def test_an_agent_that_leaves_in_the_middle_loses_nothing(gateway):
    path, body = body_of("chat", "slowly")
    raw = json.dumps(body).encode()
    with socket.create_connection(("127.0.0.1", gateway.server.port)) as sock:
        sock.sendall(f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(raw)}\r\n\r\n".encode() + raw)
        assert b"200 OK" in sock.recv(200)
    (record,) = gateway.wait_records(1)
    assert (record["aborted"], record["stream_mode"], record["error"]) == (True, "relay", None)
    assert record["response"]["choices"][0]["message"]["content"] == WORDS
    (step,) = drafts_of_call(record, "s", 0)
    assert step.status == "aborted"
    eventually(lambda: gateway.stats.snapshot()["n_aborted"] == 1)


def test_a_stop_without_patience_keeps_what_came(make_gateway, upstream):
    gateway = make_gateway(upstream)
    upstream.reply = lambda seen: sse(CHUNKS[:3], then="hang")
    body = {"model": "m", "stream": True, "messages": HI}
    seen = threading.Event()

    def call() -> None:
        with pytest.raises(httpx.HTTPError), gateway.http.stream("POST", "/v1/chat/completions", json=body) as response:
            for _ in response.iter_lines():
                seen.set()

    worker = threading.Thread(target=call)
    worker.start()
    assert seen.wait(30)
    gateway.server.stop(0.2)
    worker.join()
    (record,) = gateway.wait_records(1)
    assert record["aborted"] is True
    assert record["response"]["choices"][0]["message"]["content"] == "hel"
    assert "stopped" in record["error"]["message"]


def test_a_slow_agent_gets_all_of_it_and_holds_nobody_up(gateway):
    path, body = body_of("chat", "long", logprobs=True)
    raw = json.dumps(body).encode()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", gateway.server.port))
        sock.sendall(f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(raw)}\r\n\r\n".encode() + raw)
        assert sock.recv(1)
        # The call is over and on disk while its agent has read one byte.
        (record,) = gateway.wait_records(1)
        assert (record["aborted"], record["http_status"]) == (False, 200)
        assert gateway.chat().status_code == 200
        got = b""
        while not got.endswith(b"0\r\n\r\n"):
            piece = sock.recv(1 << 16)
            assert piece
            got += piece
    text, entries = "", 0
    for line in got.split(b"\n"):
        if line.startswith(b"data: {"):
            (choice,) = json.loads(line[6:])["choices"]
            text += choice["delta"].get("content") or ""
            entries += len((choice["logprobs"] or {}).get("content", ()))
    assert text == record["response"]["choices"][0]["message"]["content"]
    assert entries == record["response"]["usage"]["completion_tokens"] == 6000
    # What waited was put together: 6,000 chunks with their envelopes would be far more.
    assert got.count(b"data: ") < 5000


def test_what_waits_takes_no_more_than_the_answer():
    translation = CHAT.open({"messages": []}, ResponseIds("s"), ())
    outbox = Outbox(translation.relay())
    words = [f"w{number} " for number in range(20_000)]
    for word in words:
        outbox.put([{"id": "c", "choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}]}])
    assert len(outbox._waiting) <= MAX_WAITING
    assembly = Assembly()
    raw = outbox.take()
    assert len(raw) < sum(map(len, words)) + 300
    assembly.feed(json.loads(raw[6:]))
    assert assembly.full_answer()["choices"][0]["message"]["content"] == "".join(words)


def chunk(delta: dict[str, Any], ids: list[int], finish: str | None = None) -> dict[str, Any]:
    entries = [{"token": f"t{one}", "logprob": -0.5, "bytes": None, "top_logprobs": []} for one in ids]
    choice = {"index": 0, "delta": delta, "logprobs": {"content": entries}, "token_ids": ids, "finish_reason": finish}
    return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "policy", "choices": [choice]}


CHUNKS = [
    {**chunk({"role": "assistant", "content": ""}, []), "prompt_token_ids": [1, 2, 3, 4]},
    chunk({"content": "h"}, [7]),
    chunk({"content": "el"}, [8]),
    chunk({"content": "lo"}, [9], "stop"),
    {**chunk({}, []), "choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7}},
]


def sse(chunks: list[dict[str, Any]], *, then: str = "done", delay_s: float = 0.0) -> StreamingResponse:
    async def events() -> AsyncIterator[bytes]:
        for one in chunks:
            yield b"data: " + json.dumps(one).encode() + b"\r\n\r\n"
            await asyncio.sleep(delay_s)
        if then == "hang":
            await asyncio.sleep(30)
        if then == "garbage":
            yield b"data: \xff\xfe\x00 no json\n\n"
        if then == "html":
            yield b"data: <html>\n\n"
        if then == "done":
            yield b"data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


def streams_now(gateway: Any) -> dict[str, str]:
    return gateway.engines.status()[0]["streaming"]


def content_of(gateway: Any, **more: Any) -> str:
    chunks = gateway.sdk().chat.completions.create(model="policy", messages=HI, stream=True, **more)
    return "".join(one.choices[0].delta.content or "" for one in chunks)


def replies(stream: list[dict[str, Any]], **how: Any) -> Any:
    """An engine that streams when asked to."""
    return lambda seen: sse(stream, **how) if seen.body.get("stream") else chat_answer()


def test_an_engine_asked_for_a_stream_is_asked_for_all_of_it(make_gateway, upstream):
    gateway = make_gateway(upstream)
    upstream.reply = replies(CHUNKS)
    assert content_of(gateway) == "hello"
    body = upstream.last.body
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})
    assert (body["return_token_ids"], body["logprobs"]) == (True, True)
    record = gateway.records()[0]
    assert record["engine_added"] == ["return_token_ids", "logprobs"]
    assert extract_tokens(record["response"], 0, "chat") == extract_tokens(chat_answer(), 0, "chat")
    assert streams_now(gateway)["chat"] == "relay"


@pytest.mark.parametrize("then", ["hang", "garbage", "html", "nothing"])
def test_an_engine_that_does_not_go_on(make_gateway, upstream, then):
    gateway = make_gateway(upstream, timeout_s=1.0, limits={"keepalive_s": 0.2})
    upstream.reply = replies(CHUNKS[:3], then=then)
    with pytest.raises(openai.APIError) as caught:
        content_of(gateway)
    assert "engine" in str(caught.value)
    (record,) = gateway.records()
    assert record["error"]["type"] == ("engine_timeout" if then == "hang" else "engine_error")
    assert record["response"]["choices"][0]["message"]["content"] == "hel"
    assert gateway.engines.status()[0]["ok"] is False
    upstream.reply = replies(CHUNKS)
    assert content_of(gateway) == "hello"


@pytest.mark.parametrize("function", [7, [None], {"name": [None], "arguments": 7}, {"name": {"x": 1}}])
@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
def test_a_tool_call_of_odd_shape_ends_the_call_and_is_recorded(make_gateway, upstream, dialect, function):
    gateway = make_gateway(upstream)
    odd = chunk({"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": function}]}, [8])
    upstream.reply = replies([*CHUNKS[:2], odd, *CHUNKS[3:]])
    path, body = body_of(dialect, "hi", stream=True)
    with gateway.http.stream("POST", path, json=body) as answer:
        events = "".join(answer.iter_text()).replace('"error":null', "")
    assert answer.status_code == 200 or "error" in events
    (record,) = gateway.records()
    assert (record["error"] is None) == ("error" not in events)
    assert gateway.stats.snapshot()["n_in_flight"] == 0


def test_an_answer_in_one_piece_is_taken_as_it_is(make_gateway, upstream):
    gateway = make_gateway(upstream)
    assert content_of(gateway) == "hello"
    (record,) = gateway.records()
    assert (record["stream_mode"], record["response"]) == ("whole", chat_answer())


def test_a_stream_that_lost_tokens_was_the_last_one(make_gateway, upstream):
    gateway = make_gateway(upstream)
    lossy = [{**CHUNKS[0]}, CHUNKS[1], chunk({"content": "el"}, []), *CHUNKS[3:]]
    upstream.reply = replies(lossy)
    assert [content_of(gateway), content_of(gateway)] == ["hello", "hello"]
    first, second = gateway.records()
    assert [record["stream_mode"] for record in (first, second)] == ["relay", "whole"]
    assert "usage says 3" in extract_tokens(first["response"], 0, "chat").mismatch
    assert extract_tokens(second["response"], 0, "chat").mismatch is None
    assert streams_now(gateway)["chat"] == "whole: its stream has 2 ids for 3 tokens"


def test_the_scripted_engine_loses_ids_of_tool_calls_once(gateway):
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    for _ in range(2):
        timed_events(gateway, "chat", "fault stream_lost_ids.", tools=tools)
    first, second = gateway.records()
    assert extract_tokens(first["response"], 0, "chat").mismatch
    assert extract_tokens(second["response"], 0, "chat").mismatch is None
    assert streams_now(gateway) == {
        "mode": "auto", "chat": "relay", "completions": "relay",
        "chat with tools": streams_now(gateway)["chat with tools"],
    }  # fmt: skip
    assert streams_now(gateway)["chat with tools"].startswith("whole: its stream has")


def test_how_streams_are_made_in_a_line():
    own = {"mode": "auto", "chat": "relay", "chat with tools": "relay", "completions": "relay"}
    assert streaming_line(own) == "streams: its own"
    assert streaming_line({**own, "chat": "whole: lost"}) == "streams: its own; chat: whole: lost"
    assert streaming_line({"mode": "whole"}) == "streams: made from the whole answer"


def test_a_stream_that_is_refused_with_ids_is_taken_whole(make_gateway, upstream):
    gateway = make_gateway(upstream)

    def reply(seen):
        if seen.body.get("stream") and "return_token_ids" in seen.body:
            return JSONResponse({"error": {"message": "return_token_ids is not supported with streaming"}}, 400)
        return chat_answer()

    upstream.reply = reply
    assert content_of(gateway) == "hello"
    assert [seen.body.get("stream") for seen in upstream.seen] == [True, None]
    assert gateway.records()[0]["stream_mode"] == "whole"


def test_engines_whose_streams_lose_ids_are_asked_for_whole_answers_unless_told_otherwise(make_gateway, stopping):
    class SGLang(Upstream):
        async def _models(self, request: Any) -> Any:
            return JSONResponse({"data": [{"id": "policy", "owned_by": "sglang"}]})

    engine = SGLang().start()
    engine.reply = replies(CHUNKS)
    gateway = make_gateway()
    gateway.engines.add("auto", engine.base_url, models=["a"])
    gateway.engines.add("forced", engine.base_url, models=["b"], streaming="relay")
    for model in ("a", "b"):
        list(gateway.sdk().chat.completions.create(model=model, messages=HI, stream=True))
    assert [record["stream_mode"] for record in gateway.records()] == ["whole", "relay"]
    auto, forced = (status["streaming"] for status in gateway.engines.status())
    assert (auto["chat"], auto["completions"], forced["chat"]) == ("whole", "relay", "relay")
    stopping(engine.stop)


def test_clawr1s_tools_in_text_are_made_from_the_whole_answer(make_gateway, process):
    gateway = make_gateway()
    gateway.engines.add("scripted", process.base_url)
    path, body = body_of("chat", "hi")
    gateway.http.post(f"/clawr1-x/p{path}", json=body).raise_for_status()
    assert gateway.records()[0]["stream_mode"] == "whole"
