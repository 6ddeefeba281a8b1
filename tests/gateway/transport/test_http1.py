"""The client for engines against servers that say exactly these bytes."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from core.gateway.transport.connection import ConnectError, Disconnected, HttpError
from core.gateway.transport.http1 import HttpClient
from core.gateway.transport.request import read_url, request_bytes
from tests.effort import settings

BODY = b'{"a": "\xc3\xa9"}' * 9
CHUNKED = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (BODY[:1], BODY[1:40], BODY[40:])) + b"0\r\n\r\n"

ANSWERS = {
    "length": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY,
    "chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: a/b; charset=x\r\n\r\n" + CHUNKED,
    "interim": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    b"HTTP/1.1 429 Slow down\r\nRetry-After: 7\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY,
    "trailer": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    + CHUNKED[:-2]
    + b"Content-Type: no\r\nX-Sum: 1\r\n\r\n",
}


class Server:
    """Answers the n-th connection by the n-th program; sees what came."""

    def __init__(self, *programs: Callable[[Any, Any], Awaitable[None]]) -> None:
        self.programs = programs
        self.n_connections = 0
        self.requests: list[bytes] = []
        self.ended = asyncio.Event()

    async def __aenter__(self) -> Server:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}/v1/x"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.n_connections += 1
        program = self.programs[min(self.n_connections, len(self.programs)) - 1]
        try:
            await program(self.take(reader), writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.ended.set()
            writer.close()

    def take(self, reader: asyncio.StreamReader) -> Callable[[], Awaitable[None]]:
        async def one() -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next((int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length:")), 0)
            self.requests.append(head + await reader.readexactly(length))

        return one


def says(*answers: bytes, cuts: tuple[int, ...] = (), hang: bool = False) -> Callable[[Any, Any], Awaitable[None]]:
    """A connection that answers its requests with these bytes, cut at these places, and is closed then."""

    async def program(request: Callable[[], Awaitable[None]], writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await request()
            for begin, end in zip((0, *cuts), (*cuts, len(answer)), strict=True):
                writer.write(answer[begin:end])
                await writer.drain()
                if cuts:
                    await asyncio.sleep(0.001)
        if hang:
            await request()

    return program


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(20):
            return await work()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(bounded())


async def post(client: HttpClient, server: Server, body: bytes = b"{}") -> tuple[int, dict[str, str], bytes]:
    async with await client.request("POST", server.url, headers={"X-A": "b"}, body=body) as answer:
        return answer.status, dict(answer.headers), await answer.read()


@pytest.mark.parametrize("name", ANSWERS)
def test_one_connection_serves_one_call_after_the_other(name):
    async def work():
        async with Server(says(*[ANSWERS[name]] * 3)) as server:
            client = HttpClient()
            answers = [await post(client, server, b"body %d" % n) for n in range(3)]
            client.close()
            return server, answers

    server, answers = run(work)
    assert [body for _, _, body in answers] == [BODY] * 3
    assert {status for status, _, _ in answers} == {429 if name == "interim" else 200}
    assert server.n_connections == 1
    assert [request.rpartition(b"\r\n\r\n")[2] for request in server.requests] == [b"body 0", b"body 1", b"body 2"]
    assert server.requests[0].startswith(b"POST /v1/x HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nX-A: b\r\n" in server.requests[0]
    if name == "interim":
        assert answers[0][1]["retry-after"] == "7" and "link" not in answers[0][1]
    if name == "trailer":
        assert "content-type" not in answers[0][1]


@settings(max_examples=25, deadline=None)
@given(name=st.sampled_from(sorted(ANSWERS)), data=st.data())
def test_where_the_bytes_are_cut_makes_no_difference(name, data):
    answer = ANSWERS[name]
    cuts = tuple(sorted(data.draw(st.sets(st.integers(1, len(answer) - 1), max_size=6))))

    async def work():
        async with Server(says(answer, cuts=cuts)) as server:
            return await post(HttpClient(), server)

    assert run(work)[2] == BODY


def test_an_answer_without_a_length_ends_with_its_connection():
    async def work():
        async with Server(says(b"HTTP/1.1 200 OK\r\n\r\n" + BODY)) as server:
            client = HttpClient()
            return await post(client, server), await post(client, server), server.n_connections

    first, second, n_connections = run(work)
    assert first[2] == second[2] == BODY
    assert n_connections == 2


@pytest.mark.parametrize("encoding", ["gzip", "br, gzip"])
def test_a_body_that_is_compressed_all_the_same_is_read(encoding):
    packed = gzip.compress(BODY)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: %b\r\nContent-Length: %d\r\n\r\n"

    async def work():
        async with Server(says(head % (encoding.encode(), len(packed)) + packed)) as server:
            return (await post(HttpClient(), server))[2]

    # An encoding that is none of ours is handed on as it is, and is no JSON.
    assert run(work) == (BODY if encoding == "gzip" else packed)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", Disconnected),
        (b"HTTP/1.1 200", HttpError),
        (ANSWERS["length"][:-3], HttpError),
        (ANSWERS["chunked"][:-5], HttpError),
        (b"SSH-2.0-OpenSSH_9\r\n", HttpError),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n", HttpError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n123456", HttpError),
        (
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + gzip.compress(BODY, mtime=0)[:-12],
            HttpError,
        ),
    ],
)
def test_what_broke_off_is_never_an_answer(answer, error):
    async def work():
        async with Server(says(answer)) as server:
            await post(HttpClient(), server)

    with pytest.raises(error) as raised:
        run(work)
    assert type(raised.value) is error


def test_an_answer_nobody_read_to_its_end_costs_its_connection_and_nothing_else():
    async def work():
        endless = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + BODY
        async with Server(says(endless, hang=True), says(ANSWERS["length"])) as server:
            client = HttpClient()
            async with await client.request("POST", server.url, body=b"1") as answer:
                assert await answer.readany() == BODY
            return await post(client, server), server.n_connections

    (_, _, body), n_connections = run(work)
    assert body == BODY and n_connections == 2


def test_more_than_was_asked_for_is_not_the_next_answer():
    async def work():
        async with Server(says(ANSWERS["length"] * 2, hang=True), says(ANSWERS["chunked"])) as server:
            client = HttpClient()
            return await post(client, server), await post(client, server), server.n_connections

    first, second, n_connections = run(work)
    assert first[2] == second[2] == BODY
    assert "transfer-encoding" in second[1] and n_connections == 2


def test_a_call_that_is_given_up_takes_its_connection_with_it():
    async def work():
        async with Server(says(b"", hang=True), says(ANSWERS["length"])) as server:
            client = HttpClient()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await post(client, server)
            return (await post(client, server))[2], server.n_connections

    assert run(work) == (BODY, 2)


def test_an_idle_connection_is_closed_after_its_time():
    async def work():
        async with Server(says(*[ANSWERS["length"]] * 2)) as server:
            client = HttpClient(keepalive_s=0.05)
            await post(client, server)
            await server.ended.wait()
            return (await post(client, server))[2], server.n_connections

    assert run(work) == (BODY, 2)


def test_a_long_answer_is_received_no_faster_than_it_is_read():
    sent = 0
    piece = b"x" * (1 << 16)

    async def pours(request, writer):
        nonlocal sent
        await request()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(piece) * 640))
        for _ in range(640):
            writer.write(piece)
            await writer.drain()
            sent += len(piece)

    async def work():
        async with Server(pours) as server:
            async with await HttpClient().request("POST", server.url) as answer:
                still = -1
                while still != sent:
                    still = sent
                    await asyncio.sleep(0.3)
                body = await answer.read()
            return still, body

    before_reading, body = run(work)
    assert before_reading < len(piece) * 320
    assert body == piece * 640


def test_nobody_there():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]

    async def work():
        await HttpClient().request("GET", f"http://127.0.0.1:{port}/")

    with pytest.raises(ConnectError):
        run(work)


def test_a_header_can_not_become_two():
    async def work():
        await HttpClient().request("GET", "http://127.0.0.1:9/", headers={"Authorization": "Bearer a\r\nX-B: c"})

    with pytest.raises(ValueError):
        run(work)
    for url in ("ftp://x/", "http:///v1", "http://x/a b"):
        with pytest.raises(ValueError):
            read_url("GET", url)


def test_a_login_in_the_address_is_sent_as_one():
    target = read_url("GET", "http://me:p%40ss@[::1]:81/v1?x=1")
    head = request_bytes(target, {}, b"", "GET")
    assert head.startswith(b"GET /v1?x=1 HTTP/1.1\r\nHost: [::1]:81\r\n")
    assert b"Authorization: Basic bWU6cEBzcw==\r\n" in head
    assert b"Basic" not in request_bytes(target, {"authorization": "Bearer x"}, b"", "GET")


def test_headers_that_are_given_take_the_place_of_its_own():
    target = read_url("POST", "http://there/x")
    sent = request_bytes(target, [("host", "here"), ("X-A", "1"), ("x-a", "2")], b"", "POST").decode()
    assert sent.lower().count("host:") == 1 and "host: here\r\n" in sent
    assert "X-A: 1\r\nx-a: 2\r\n" in sent and sent.endswith("Content-Length: 0\r\n\r\n")
