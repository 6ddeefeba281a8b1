"""Several engines for one model, and engines that come and go: real servers that fail in each way."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import JSONResponse, Response, StreamingResponse

from core.config import EngineConfig, Settings
from core.engine_host import LocalEngineHost, add_configured_engines
from core.gateway.engines.concurrency import ConcurrencyLimit, EngineBusy
from core.gateway.engines.health import FIRST_PAUSE_S, LONGEST_PAUSE_S, N_FAILURES, EngineHealth
from core.gateway.engines.registry import EngineSet
from core.gateway.engines.routing import Retries, affinity, ranked
from core.gateway.transport.connection_pool import Timeouts
from core.ingest.drafts import drafts_of_call
from tests.gateway.upstream import Upstream, chat_answer

HI = [{"role": "user", "content": "hi"}]
QUICK = {"retries": Retries(backoff_s=0.02)}


@pytest.fixture
def servers(stopping: Callable[[Callable[[], None]], None]) -> Iterator[list[Upstream]]:
    started = [Upstream().start() for _ in range(3)]
    yield started
    for server in started:
        stopping(server.stop)


@pytest.fixture
def gateway(make_gateway, servers):
    gateway = make_gateway(limits=QUICK)
    gateway.engines.add("a", servers[0].base_url)
    gateway.engines.add("b", servers[1].base_url, replica_of="a")
    gateway.engines.add("c", servers[2].base_url, replica_of="a")
    return gateway


def answered_by(gateway: Any) -> dict[str, set[str]]:
    engines: dict[str, set[str]] = {}
    for record in gateway.records():
        engines.setdefault(record["identity"]["trajectory_uid"], set()).add(record["engine"])
    return engines


def test_a_trajectory_stays_with_one_engine_and_all_engines_work(gateway, servers):
    for turn in range(3):
        for number in range(15):
            assert gateway.chat(prefix=f"/t{number}/p", stream=turn == 2).status_code == 200
    by_group = answered_by(gateway)
    assert all(len(engines) == 1 for engines in by_group.values())
    assert set.union(*by_group.values()) == {"a", "b", "c"}
    assert sum(len(server.seen) for server in servers) == 45


def test_calls_of_one_conversation_that_nobody_named_stay_together(gateway):
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "one"}]
    for turn in range(4):
        assert gateway.chat(messages=messages).status_code == 200
        messages += [{"role": "assistant", "content": "x"}, {"role": "user", "content": str(turn)}]
    assert len({record["engine"] for record in gateway.records()}) == 1


def test_when_an_engine_goes_only_its_own_trajectories_move(gateway, servers):
    for number in range(15):
        gateway.chat(prefix=f"/t{number}/p")
    before = {uid: engines.pop() for uid, engines in answered_by(gateway).items()}
    servers[1].stop()
    for number in range(15):
        assert gateway.chat(prefix=f"/t{number}/p").status_code == 200
    after = {record["identity"]["trajectory_uid"]: record for record in gateway.records()[15:]}
    moved = [uid for uid in before if before[uid] == "b"]
    assert moved
    for uid, record in after.items():
        assert record["error"] is None
        assert record["engine"] != "b"
        assert uid in moved or record["engine"] == before[uid]
    # The first of them found out, the others were not sent there any more.
    facts = [after[uid]["engine_facts"] for uid in moved]
    assert facts[0]["failed_engines"] == ["b"]
    assert facts[0]["attempts"] == 2
    assert sum("attempts" in one for one in facts) < len(facts) or len(facts) == 1
    status = {one["name"]: one for one in gateway.engines.status()}
    assert (status["a"]["healthy"], status["b"]["healthy"], status["b"]["ok"]) == (True, False, False)


def test_an_engine_that_comes_back_is_found_by_asking_after_it(servers):
    engines = EngineSet(check_every_s=0.1)
    first = engines.add("a", servers[0].base_url)
    other = engines.add("b", servers[1].base_url, replica_of="a")

    async def watched() -> None:
        assert await engines.candidates(None) == [first, other]
        for _ in range(6):
            other.health.failed(gone=True)
        assert not other.health.usable
        for _ in range(200):
            await asyncio.sleep(0.05)
            if other.health.usable and first.health.checked_at is not None:
                return
        pytest.fail("nobody asked")

    asyncio.run(watched())


def test_one_that_is_gone_is_found_before_a_call_is(servers):
    engines = EngineSet(check_every_s=0.1)
    engines.add("a", servers[0].base_url)
    other = engines.add("b", servers[1].base_url, replica_of="a")
    servers[1].stop()

    async def watched() -> None:
        await engines.candidates(None)
        for _ in range(200):
            await asyncio.sleep(0.05)
            if not other.health.usable:
                return
        pytest.fail("nobody asked")

    asyncio.run(watched())


def test_engines_that_name_a_model_alike_share_it(make_gateway, servers):
    gateway = make_gateway()
    gateway.engines.add("default", servers[0].base_url)
    gateway.engines.add("b", servers[1].base_url, models=["policy-*"])
    gateway.engines.add("c", servers[2].base_url, models=["policy-*", "other"])
    for number in range(12):
        gateway.chat(model="policy-x", prefix=f"/t{number}/p")
    gateway.chat(model="other")
    gateway.chat(model="anything")
    assert Counter(record["engine"] for record in gateway.records()).keys() == {"b", "c", "default"}
    assert [record["engine"] for record in gateway.records()[12:]] == ["c", "default"]


def test_an_engine_that_is_just_starting_again_is_tried_again(make_gateway, stopping):
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    gateway = make_gateway(limits={"retries": Retries(n_attempts=8, backoff_s=0.2, max_wait_s=0.3)})
    gateway.engines.add("engine", f"http://127.0.0.1:{port}/v1")
    late = Upstream(port=port)
    timer = threading.Timer(0.4, late.start)
    timer.start()
    assert gateway.chat().status_code == 200
    timer.join()
    (record,) = gateway.records()
    (step,) = drafts_of_call(record, "s", 0)
    assert step.metadata["attempts"] == record["engine_facts"]["attempts"] > 1
    stopping(late.stop)


def refusing(n: int, status: int, **headers: str) -> Callable[[Any], Any]:
    left = [n]

    def reply(seen: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            return chat_answer()
        return JSONResponse({"error": {"message": "busy"}}, status, headers=headers)

    return reply


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_asks_to_wait_is_asked_again(make_gateway, upstream, status, stream):
    gateway = make_gateway(upstream, limits=QUICK)
    upstream.reply = refusing(2, status, **{"Retry-After": "0.1"})
    start = time.monotonic()
    assert gateway.chat(stream=stream).status_code == 200
    assert time.monotonic() - start > 0.15
    (record,) = gateway.records()
    assert record["engine_facts"]["attempts"] == 3
    upstream.reply = refusing(9, status, **{"Retry-After": "0"})
    refused = gateway.chat(stream=stream)
    assert (refused.status_code, refused.headers["retry-after"]) == (status, "0")
    assert len(upstream.seen) == 6


def test_an_engine_that_says_no_more_than_that_it_is_busy_is_asked_once(make_gateway, upstream):
    gateway = make_gateway(upstream, limits=QUICK)
    upstream.reply = refusing(1, 503)
    assert gateway.chat().status_code == 503
    assert len(upstream.seen) == 1


def test_of_several_engines_the_next_one_is_asked(gateway, servers):
    for server in servers[:2]:
        server.reply = refusing(99, 503)
    for number in range(6):
        assert gateway.chat(prefix=f"/t{number}/p").status_code == 200
    assert {record["engine"] for record in gateway.records()} == {"c"}


@pytest.mark.parametrize("stream", [False, True])
def test_what_has_begun_to_answer_is_not_asked_again(make_gateway, upstream, stream):
    """Half an answer is an answer that somebody may have seen."""
    gateway = make_gateway(upstream, limits=QUICK)

    async def torn() -> Any:
        yield b'data: {"choices": [{"index": 0, "delta": {"content": "x"}}]}\n\n' if stream else b'{"choices": ['
        raise ConnectionResetError

    kind = "text/event-stream" if stream else "application/json"
    upstream.reply = lambda seen: StreamingResponse(torn(), media_type=kind)
    answer = gateway.chat(stream=stream)
    assert "error" in answer.text
    assert len(upstream.seen) == 1
    assert "attempts" not in gateway.records()[0].get("engine_facts", {})


def test_other_refusals_are_final(gateway, servers):
    for server in servers:
        server.reply = Response('{"error": {"message": "no"}}', status_code=404)
    assert gateway.chat().status_code == 404
    assert sum(len(server.seen) for server in servers) == 1


PATHS = {
    "chat/completions": {"messages": HI},
    "completions": {"prompt": "x"},
    "responses": {"input": "x"},
    "messages": {"max_tokens": 9, "messages": HI},
}


def test_a_full_line_is_told_in_each_dialect_and_moves_on(make_gateway, upstream):
    gateway = make_gateway()
    engine = gateway.engines.add("engine", upstream.base_url, concurrency=2)
    engine.concurrency = ConcurrencyLimit("engine", 2, max_waiting=1)
    gateway.chat()
    go_on = threading.Event()

    original = upstream._answer

    async def slow(request: Any) -> Any:
        await asyncio.to_thread(go_on.wait, 20)
        return await original(request)

    blocked = Upstream(answer=slow).start()
    engine.endpoint.base_url = blocked.base_url
    answers: list[int] = []
    workers = [threading.Thread(target=lambda: answers.append(gateway.chat().status_code)) for _ in range(3)]
    for worker in workers:
        worker.start()
    deadline = time.monotonic() + 60
    while not engine.concurrency.full and time.monotonic() < deadline:
        time.sleep(0.01)
    status = gateway.engines.status()[0]
    assert (status["in_flight"], status["waiting"], status["concurrency"]) == (2, 1, 2)
    for path, body in PATHS.items():
        for stream in (False, True):
            refused = gateway.http.post(f"/v1/{path}", json={"model": "m", "stream": stream, **body})
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            error = refused.json()["error"]
            assert error["type"] == ("overloaded_error" if path == "messages" else "engine_busy")
    go_on.set()
    for worker in workers:
        worker.join(60)
    assert answers == [200] * 3
    assert engine.concurrency.n_inside == engine.concurrency.n_waiting == 0
    # Turned away is recorded as well: it is what happened to the agent.
    assert Counter(record["http_status"] for record in gateway.records()) == {200: 4, 503: 8}
    blocked.stop()


def test_a_stream_holds_its_place_until_the_engine_is_done(make_gateway, upstream):
    gateway = make_gateway()
    engine = gateway.engines.add("engine", upstream.base_url, concurrency=1)

    async def two() -> Any:
        chunk = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "x"}}]}
        yield b"data: " + json.dumps(chunk).encode() + b"\n\n"
        await asyncio.sleep(0.4)
        chunk["choices"][0] |= {"delta": {}, "finish_reason": "stop"}
        yield b"data: " + json.dumps(chunk).encode() + b"\n\ndata: [DONE]\n\n"

    upstream.reply = lambda seen: (
        StreamingResponse(two(), media_type="text/event-stream") if seen.body.get("stream") else chat_answer()
    )
    with gateway.http.stream("POST", "/v1/chat/completions", json={"stream": True, "messages": HI}) as response:
        lines = response.iter_lines()
        assert "data" in next(lines)
        assert engine.concurrency.n_inside == 1
        assert "[DONE]" in "".join(lines)
    assert engine.concurrency.n_inside == 0


def test_waits_for_an_engine_are_bounded(make_gateway, upstream):
    """Connect, first word, silence in between: each has its limit."""
    gateway = make_gateway(limits=QUICK, timeouts=Timeouts(total=20, connect=0.3, first_byte=0.3, idle=0.3))
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = full.getsockname()
        # A line that nobody serves: connections are not taken any more once it is full.
        line = [socket.socket() for _ in range(4)]
        for sock in line:
            sock.setblocking(False)
            sock.connect_ex(address)
        engine = gateway.engines.add("unreachable", f"http://127.0.0.1:{address[1]}/v1")
        engine._probe._again_at = time.time() + 60
        start = time.monotonic()
        assert gateway.chat(model="m").status_code == 502
        assert time.monotonic() - start < 15
        for sock in line:
            sock.close()
    gateway.engines.remove("unreachable")
    gateway.engines.add("engine", upstream.base_url)

    async def silent(n_chunks: int) -> Any:
        for _ in range(n_chunks):
            yield b'data: {"choices": [{"index": 0, "delta": {"content": "x"}}]}\n\n'
        await asyncio.sleep(10)

    for n_chunks in (0, 2):
        upstream.reply = lambda seen, n_chunks=n_chunks: StreamingResponse(
            silent(n_chunks), media_type="text/event-stream"
        )
        answer = gateway.chat(stream=True)
        assert answer.status_code == (200 if n_chunks else 504)
        assert "silent for 0.3 s" in answer.text
    assert [record["error"]["type"] for record in gateway.records()] == ["engine_error", *["engine_timeout"] * 2]


@pytest.mark.parametrize("stream", [False, True])
def test_a_weight_sync_that_takes_too_long_is_told_in_each_dialect(make_gateway, upstream, stream):
    gateway = make_gateway(upstream, limits={"sync_wait_s": 0.05})
    gateway.policy.apply("sync_started", 1, at=0.0)
    for path, body in PATHS.items():
        refused = gateway.http.post(f"/v1/{path}", json={"model": "m", "stream": stream, **body})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    with pytest.raises(openai.InternalServerError):
        gateway.sdk().chat.completions.create(model="m", messages=HI)
    with pytest.raises(anthropic.APIStatusError) as caught:
        anthropic.Anthropic(base_url=gateway.root, api_key="x", max_retries=0).messages.create(
            model="m", max_tokens=9, messages=HI
        )
    assert caught.value.status_code == 503
    gateway.policy.apply("sync_finished", 1, at=0.0)
    assert gateway.chat(stream=stream).status_code == 200
    assert gateway.records()[0]["policy_version"] == 1


class Named:
    def __init__(self, name: str) -> None:
        self.name = name


@given(st.lists(st.text(max_size=5), min_size=2, max_size=6, unique=True), st.lists(st.text(max_size=5)))
def test_who_leaves_moves_only_its_own(names: list[str], keys: list[str]) -> None:
    engines: list[Any] = [Named(name) for name in names]
    for key in keys:
        order = [engine.name for engine in ranked(engines, key)]
        assert order == [engine.name for engine in ranked(engines[::-1], key)]
        left = [engine.name for engine in ranked(engines[1:], key)]
        assert left == [name for name in order if name != names[0]]


def test_affinity_is_the_trajectory_or_how_the_prompt_begins():
    turn = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert affinity("t", {"messages": turn}) == "t"
    assert affinity(None, {"messages": turn}) == affinity(None, {"messages": [*turn, {"role": "user"}]})
    assert affinity(None, {"messages": turn}) != affinity(None, {"messages": turn[:1]})
    assert affinity(None, {"prompt": "x" * 256 + "y"}) == affinity(None, {"prompt": "x" * 300})
    assert affinity(None, {})


def test_pauses_double_and_end():
    now = [0.0]
    health = EngineHealth(lambda: now[0])
    for _ in range(N_FAILURES - 1):
        health.failed(gone=False)
        assert health.usable
    pauses = []
    for _ in range(8):
        health.failed(gone=False)
        start = now[0]
        while not health.usable:
            now[0] += 0.5
        pauses.append(now[0] - start)
    assert pauses == [min(FIRST_PAUSE_S * 2**n, LONGEST_PAUSE_S) for n in range(8)]
    health.succeeded()
    health.failed(gone=False)
    assert health.usable
    health.checked(False)
    assert not health.usable
    health.checked(True)
    assert health.usable


@given(st.integers(1, 3), st.lists(st.sampled_from(["stay", "leave", "cancel"]), min_size=1, max_size=12))
def test_a_gate_lets_in_no_more_than_it_may_and_loses_no_place(limit: int, callers: list[str]) -> None:
    async def play() -> None:
        gate, peak = ConcurrencyLimit("g", limit), 0

        async def call(kind: str) -> None:
            nonlocal peak
            await gate.enter()
            peak = max(peak, gate.n_inside)
            try:
                await asyncio.sleep(0.001 if kind == "stay" else 0)
            finally:
                gate.leave()

        tasks = [asyncio.create_task(call(kind)) for kind in callers]
        await asyncio.sleep(0)
        for task, kind in zip(tasks, callers, strict=True):
            if kind == "cancel":
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert peak <= limit
        assert (gate.n_inside, gate.n_waiting) == (0, 0)

    asyncio.run(play())


def test_a_line_that_does_not_move():
    async def play() -> None:
        gate = ConcurrencyLimit("g", 1, max_wait_s=0.05)
        await gate.enter()
        with pytest.raises(EngineBusy, match="no room within"):
            await gate.enter()
        assert gate.n_waiting == 0
        gate.leave()
        await gate.enter()
        assert gate.n_inside == 1

    asyncio.run(play())


def test_engines_of_the_settings(tmp_path):
    settings = Settings(
        data_dir=tmp_path,
        engine="http://a:1/v1, http://b:2/v1/",
        engine_streaming="whole",
        engine_concurrency=4,
        engines=(EngineConfig(name="judge", base_url="litellm:openai/x", models=("judge-*",)),),
    )
    engines = EngineSet()
    add_configured_engines(engines, settings, LocalEngineHost(settings))
    listed = [(one["name"], one["base_url"], one["replica_of"], one["concurrency"]) for one in engines.status()]
    assert listed == [
        ("engine", "http://a:1/v1", None, 4),
        ("engine-2", "http://b:2/v1", "engine", 4),
        ("judge", "openai/x", None, None),
    ]
    assert engines.status()[0]["streaming"]["mode"] == "whole"
    assert engines.resolve("judge-1").name == "judge"
    assert engines.resolve("x").name == "engine"
