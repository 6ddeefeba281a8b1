"""Agents that misbehave: the others don't notice, and nothing that was answered is missing."""

from __future__ import annotations

import asyncio
import json
import resource
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from core.journal import read_records
from core.records import parse
from core.serving.process import EngineProcess
from core.tokens import extract_tokens
from tests.gateway.upstream import chat_answer
from tests.left_out import only_in_ci

SCRIPT = {
    "fast": True,
    "rules": [{"when": {"contains": "long"}, "reply": {"n_tokens": 3000}}],
    "default": {"content": "plain answer"},
}
PATHS = {
    "chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "completions": {"prompt": "hi"},
    "responses": {"input": "hi"},
    "messages": {"max_tokens": 99, "messages": [{"role": "user", "content": "hi"}]},
}
in_ci = only_in_ci("takes long")


@pytest.fixture(scope="module")
def process() -> Iterator[EngineProcess]:
    with EngineProcess.start("scripted") as process:
        with httpx.Client(base_url=str(process.base_url).removesuffix("/v1"), timeout=120) as http:
            http.put("/__script", json=SCRIPT).raise_for_status()
        yield process


@pytest.fixture
def gateway(make_gateway, process):
    gateway = make_gateway()
    gateway.engines.add("scripted", process.base_url)
    return gateway


def raw_call(text: str, *, stream: bool = False, **body: Any) -> bytes:
    data = json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": text}], "stream": stream, **body}
    ).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
    head += f"content-length: {len(data)}\r\n\r\n"
    return head.encode() + data


async def opened(gateway: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", gateway.server.port)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b'{"model": "m", "x": "\xff\xfe"}', id="invalid UTF-8"),
        pytest.param(b'{"model": "m", "x": "\\ud800"}', id="half a surrogate"),
        pytest.param(b'{"model": "m", "messages": [', id="cut"),
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(b'{"model": "m", "x": NaN}', id="NaN"),
        pytest.param(b"\x00", id="a zero"),
    ],
)
def test_bodies_that_are_none_get_400_in_the_dialect(gateway, path, raw):
    refused = gateway.http.post(f"/v1/{path}", content=raw)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert gateway.records() == []


@pytest.mark.parametrize("stream", [False, True])
def test_odd_characters_travel_both_ways(make_gateway, upstream, stream):
    odd = "\x00 \u2028 \ufeff 𝄞 \x7f é e\u0301 \u202e"
    upstream.reply = chat_answer(odd)
    gateway = make_gateway(upstream)
    answer = gateway.chat(messages=[{"role": "user", "content": odd}], stream=stream)
    if stream:
        lines = [line[6:] for line in answer.text.split("\n") if line.startswith("data: {")]
        text = "".join(json.loads(line)["choices"][0]["delta"].get("content") or "" for line in lines)
    else:
        text = answer.json()["choices"][0]["message"]["content"]
    assert text == odd
    assert upstream.last.body["messages"][0]["content"] == odd
    assert gateway.records()[0]["request"]["messages"][0]["content"] == odd


def test_sixty_four_megabytes_of_answer_pass(make_gateway, upstream):
    text = "x" * (64 << 20)
    upstream.reply = chat_answer(text)
    gateway = make_gateway(upstream)
    other = make_gateway(upstream)
    answer = gateway.chat(stream=True)
    assert answer.status_code == 200
    assert len(answer.content) > 64 << 20
    (record,) = read_records(gateway.directory, {})
    assert len(record.payload) > 64 << 20
    upstream.reply = chat_answer()
    assert other.chat().status_code == 200


def test_one_byte_a_time_in_both_directions(gateway):
    async def slow(go_on: asyncio.Event) -> bytes:
        reader, writer = await opened(gateway)
        for byte in raw_call("hi", stream=True):
            writer.write(bytes([byte]))
            await asyncio.sleep(0.001)
        got = await reader.readexactly(1)
        await go_on.wait()
        while piece := await reader.read(1):
            got += piece
        writer.close()
        return got

    async def quick() -> list[float]:
        times = []
        async with httpx.AsyncClient(base_url=gateway.root, timeout=30) as http:
            for _ in range(10):
                start = time.monotonic()
                body = {"model": "m", "messages": [{"role": "user", "content": "quick"}]}
                (await http.post("/v1/chat/completions", json=body)).raise_for_status()
                times.append(time.monotonic() - start)
        return times

    async def both() -> tuple[list[bytes], list[float]]:
        go_on = asyncio.Event()
        slow_ones = [asyncio.create_task(slow(go_on)) for _ in range(5)]
        times = await quick()
        go_on.set()
        return await asyncio.gather(*slow_ones), times

    answers, times = asyncio.run(both())
    assert all(answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n") or b"[DONE]" in answer for answer in answers)
    assert max(times) < 10
    assert len(gateway.records()) == 15


@pytest.mark.parametrize("stream", [False, True])
def test_agents_that_leave_at_any_moment(gateway, stream):
    """Cut off after so many bytes sent, or received: each call is whole on disk or never began."""
    raw = raw_call("long", stream=stream, max_tokens=400)

    async def leave(n_sent: int, n_read: int) -> None:
        reader, writer = await opened(gateway)
        writer.write(raw[:n_sent])
        await writer.drain()
        if n_read:
            await reader.readexactly(n_read)
        writer.transport.abort()

    async def all_of_them() -> None:
        halves = [leave(cut, 0) for cut in range(0, len(raw), 16)]
        wholes = [leave(len(raw), n_read) for n_read in (0, 1, 12, 200, 1000, 2000)]
        await asyncio.gather(*halves, *wholes)

    asyncio.run(all_of_them())
    assert gateway.chat().status_code == 200
    records = gateway.wait_records(7)
    for record in records[:-1]:
        tokens = extract_tokens(record["response"], 0, "chat")
        assert (tokens.mismatch, record["error"]) == (None, None)
    assert gateway.policy.n_in_flight == 0
    assert gateway.stats.snapshot()["n_in_flight"] == 0


@in_ci
def test_two_thousand_connections_at_once(gateway):
    n = 2000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 3 * n:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20_000), hard))

    async def play() -> tuple[list[bytes], list[float]]:
        raw = raw_call("hi")
        lines = [await opened(gateway) for _ in range(n)]
        for _, writer in lines:
            # All but the last byte: the gateway holds two thousand requests that it can't begin.
            writer.write(raw[:-1])
        times = []
        async with httpx.AsyncClient(base_url=gateway.root, timeout=30) as http:
            for number in range(50):
                start = time.monotonic()
                body = {"model": "m", "messages": [{"role": "user", "content": "quick"}], "stream": number % 2 == 1}
                (await http.post("/v1/chat/completions", json=body)).raise_for_status()
                times.append(time.monotonic() - start)

        async def finish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
            writer.write(raw[-1:])
            answer = await reader.read()
            writer.close()
            return answer

        return await asyncio.gather(*(finish(*line) for line in lines)), times

    answers, times = asyncio.run(play())
    assert sorted(times)[len(times) // 2] < 2
    assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)
    step_uids = {answer.split(b"x-step-uid: ")[1].split(b"\r\n")[0].decode() for answer in answers}
    stored = [parse(record.payload)["step_uid"] for record in read_records(gateway.directory, {})]
    assert len(step_uids) == n
    assert step_uids <= set(stored)
    assert len(stored) == len(set(stored)) == n + 50
