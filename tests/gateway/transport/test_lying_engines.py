"""Engines whose answers have two readings, no end, or another end than they say.

The engine is a raw socket. The reference is h11, a reader of its own: what is told to a caller is what h11 reads too,
and a connection on which h11 finds bytes behind an answer is used for nobody else. Every question holds a word that
only its own answer may hold, so that one caller's answer in another's hands shows.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import socket
import socketserver
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import h11
import pytest

from core.gateway.transport.connection import Bounds
from core.gateway.transport.connection_pool import Timeouts
from core.gateway.transport.http1 import HttpClient

STOLEN = "an answer that was never asked for"
NUMBERS = itertools.count()


def answer(words: str) -> bytes:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": words}}
    completion = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return json.dumps(completion).encode()


def plain(body: bytes, *headers: bytes, status: bytes = b"200 OK", length: bytes | None = None) -> bytes:
    lines = [b"HTTP/1.1 " + status, b"Content-Type: application/json", *headers]
    lines += [b"Content-Length: " + (b"%d" % len(body) if length is None else length)]
    return b"\r\n".join([*lines, b"", body])


def chunked(body: bytes, size: bytes = b"%x", end: bytes = b"0\r\n\r\n", headers: tuple[bytes, ...] = ()) -> bytes:
    coding = () if any(b"transfer" in one.lower() for one in headers) else (b"Transfer-Encoding: chunked",)
    head = b"\r\n".join([b"HTTP/1.1 200 OK", b"Content-Type: application/json", *headers, *coding, b"", b""])
    declared = size % len(body) if b"%" in size else size
    return head + declared + b"\r\n" + body + b"\r\n" + end


def forged() -> bytes:
    return plain(answer(STOLEN))


TE = b"Transfer-Encoding: "
LIES: dict[str, Callable[[bytes], bytes]] = {
    "a length and a coding": lambda b: chunked(b, headers=(b"Content-Length: %d" % len(b), TE + b"chunked")),
    "a coding and a length": lambda b: chunked(b, headers=(TE + b"chunked", b"Content-Length: %d" % len(b))),
    "a coding and no length": lambda b: chunked(b, headers=(TE + b"chunked", b"Content-Length: 0")) + forged(),
    "two lengths": lambda b: plain(b, b"Content-Length: 5"),
    "two lengths, the longer first": lambda b: plain(b, b"Content-Length: 50000") + forged(),
    "the same length twice": lambda b: plain(b, b"Content-Length: %d" % len(b)),
    "a list of lengths": lambda b: plain(b, length=b"%d, 5" % len(b)),
    "a length with a sign": lambda b: plain(b, length=b"+%d" % len(b)),
    "a length below zero": lambda b: plain(b, length=b"-%d" % len(b)),
    "a length in hex": lambda b: plain(b, length=b"0x%x" % len(b)),
    "a length over 64 bits": lambda b: plain(b, length=b"%d" % (2**64 + len(b))),
    "no length at all": lambda b: plain(b, length=b""),
    "a folded length": lambda b: plain(b, length=b"\r\n %d" % len(b)),
    "a length that goes on folded": lambda b: plain(b, length=b"5\r\n %d" % len(b)),
    "a folded header": lambda b: plain(b, b"X-A: b\r\n c"),
    "a folded coding": lambda b: chunked(b, headers=(TE + b"\r\n chunked",)),
    "bare line feeds": lambda b: plain(b).replace(b"\r\n", b"\n"),
    "one bare line feed": lambda b: plain(b, b"X-A: b\nContent-Length: 3"),
    "bare carriage returns": lambda b: plain(b, b"X-A: b\rContent-Length: 3"),
    "a space before the colon": lambda b: plain(b, b"Content-Length : 3"),
    "a NUL in a header": lambda b: plain(b, b"X-A: b\0c"),
    "a header without a name": lambda b: plain(b, b": b"),
    "a first header that is folded": lambda b: plain(b).replace(b"200 OK\r\n", b"200 OK\r\n X-A: b\r\n"),
    "another coding": lambda b: chunked(b, headers=(TE + b"xchunked",)),
    "chunked twice": lambda b: chunked(b, headers=(TE + b"chunked, chunked",)),
    "chunked first": lambda b: chunked(b, headers=(TE + b"chunked, identity",)),
    "a coding with a tab": lambda b: chunked(b, headers=(TE + b"\x0bchunked",)),
    "extensions": lambda b: chunked(b, size=b'%x;a=b;c="d e"'),
    "an extension with a line feed": lambda b: chunked(b, size=b"%x;a\nb"),
    "a size with a blank": lambda b: chunked(b, size=b" %x"),
    "a size with a sign": lambda b: chunked(b, size=b"+%x"),
    "a size in 0x": lambda b: chunked(b, size=b"0x%x"),
    "a size over 64 bits": lambda b: chunked(b, size=b"10000000000000000%x"),
    "a chunk longer than its size": lambda b: chunked(b, size=b"10"),
    "a chunk shorter than its size": lambda b: chunked(b, size=b"%x" % (len(b) + 9)),
    "a chunk's end in bare line feeds": lambda b: chunked(b, end=b"0\n\n"),
    "some trailers": lambda b: chunked(b, end=b"0\r\nContent-Length: 5\r\nX-A: b\r\n\r\n"),
    "an answer behind the last chunk": lambda b: chunked(b) + forged(),
    "a body longer than its length": lambda b: plain(b + forged(), length=b"%d" % len(b)),
    "a body longer by blanks": lambda b: plain(b + b" " * 9, length=b"%d" % len(b)),
    "a body cut by its length": lambda b: plain(b, length=b"%d" % (len(b) - 9)),
    "a body shorter than its length": lambda b: plain(b, length=b"%d" % (len(b) + 9)),
    "two answers": lambda b: plain(b) + forged(),
    "an answer behind one that has none": lambda b: plain(b"", status=b"204 No Content", length=b"9") + forged(),
    "an answer behind an interim one": lambda b: b"HTTP/1.1 100 Continue\r\n\r\n" + plain(b) + forged(),
    "an interim answer with a length": lambda b: plain(b"", status=b"103 Early", length=b"9") + plain(b) + forged(),
    "another protocol": lambda b: b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n" + forged(),
    "HTTP/0.9": lambda b: b,
    "HTTP/2": lambda b: plain(b).replace(b"HTTP/1.1", b"HTTP/2.0"),
    "a status of two digits": lambda b: plain(b, status=b"20 OK"),
    "a status of four digits": lambda b: plain(b, status=b"2000 OK"),
    "a line of somebody else": lambda b: b"SSH-2.0-OpenSSH_9.6\r\n",
    "a compressed body that is none": lambda b: plain(b, b"Content-Encoding: gzip"),
    "a compressed body and more": lambda b: plain(zlib.compress(b) + b"more", b"Content-Encoding: deflate"),
    "nothing": lambda b: b"",
}  # fmt: skip


class Liar(socketserver.ThreadingTCPServer):
    """Answers what it is asked for by the word behind ``lie:``, and everything else honestly, by its own words."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.used_again: list[str] = []
        self.said: dict[str, bytes] = {}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, *_: Any) -> None:
        """Who was lied to may hang up."""


class Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        server: Any = self.server
        last = ""
        # Who waits for more than there is sees the end instead.
        self.connection.settimeout(0.5)
        while line := self.rfile.readline():
            path = line.split()[1].decode()
            length = 0
            while (header := self.rfile.readline().strip().lower()) and header:
                if header.startswith(b"content-length:"):
                    length = int(header.partition(b":")[2])
            request = json.loads(self.rfile.read(length) or b"{}")
            if path != "/v1/chat/completions":
                self.wfile.write(plain(b"{}", status=b"404 Not Found"))
                continue
            if last:
                server.used_again.append(last)
            words = request["messages"][0]["content"]
            name = words.partition("lie:")[2]
            if name in ENDLESS:
                self.go_on(ENDLESS[name](answer(words)))
                return
            last = name
            response = LIES[name](answer(words)) if name in LIES else plain(answer(words))
            server.said[words] = response
            self.wfile.write(response)
            if name == "late":
                time.sleep(0.2)
                self.wfile.write(forged())

    def go_on(self, pieces: Iterator[bytes]) -> None:
        for piece in pieces:
            self.wfile.write(piece)


def ever(begin: bytes, piece: bytes, pause_s: float = 0.0) -> Callable[[bytes], Iterator[bytes]]:
    def pieces(_: bytes) -> Iterator[bytes]:
        yield begin
        while True:
            yield piece
            if pause_s:
                time.sleep(pause_s)

    return pieces


CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
EMPTY_BLOCKS = b"\x00\x00\x00\xff\xff" * 5000
ENDLESS: dict[str, Callable[[bytes], Iterator[bytes]]] = {
    "interim answers": ever(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 500),
    "headers": ever(b"HTTP/1.1 200 OK\r\n", b"X-One-More: of many\r\n" * 500),
    "one header": ever(b"HTTP/1.1 200 OK\r\nX-A: ", b"a" * 65_536),
    "one extension": ever(CHUNKED + b"5;a=", b"a" * 65_536),
    "extensions of small chunks": ever(CHUNKED, b"1;a=" + b"a" * 65_000 + b"\r\n{\r\n"),
    "trailers": ever(CHUNKED + b"2\r\n{}\r\n0\r\n", b"X-One-More: of many\r\n" * 500),
    "one trailer": ever(CHUNKED + b"2\r\n{}\r\n0\r\nX-A: ", b"a" * 65_536),
    "a body": ever(b"HTTP/1.1 200 OK\r\n\r\n[", b"[" * 65_536),
    "empty compressed blocks": ever(
        b"HTTP/1.1 200 OK\r\nContent-Encoding: deflate\r\n\r\n\x78\x9c", EMPTY_BLOCKS
    ),
    "comments": ever(SSE, b": keep-alive\n\n" * 500),
    "one comment": ever(SSE + b": ", b"a" * 65_536),
    "one event": ever(SSE + b"data: ", b"a" * 65_536),
    "lines of one event": ever(SSE, b"data: a\n" * 500),
    "a slow head": ever(b"HTTP/1.1 200 OK\r\n", b"X", 0.05),
    "a slow body": ever(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n", b" ", 0.05),
    "a slow stream": ever(SSE, b":\n\n", 0.05),
}  # fmt: skip


@pytest.fixture(scope="module")
def liar() -> Iterator[Liar]:
    server = Liar()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def lying_gateway(make_gateway: Any, liar: Liar) -> Any:
    """A gateway whose engine lies."""
    gateway = make_gateway(
        timeouts=Timeouts(total=4.0, connect=4.0), bounds=Bounds(answer=1 << 20, head=100_000, aside=1 << 20)
    )
    gateway.engines.add("liar", liar.base_url, models=["m"], streaming="relay")
    liar.used_again.clear()
    return gateway


def ask(gateway: Any, lie: str, *, stream: bool = False) -> tuple[Any, str]:
    """The answer, and the words that were asked with."""
    words = f"word{next(NUMBERS)}w lie:{lie}"
    body = {"model": "m", "stream": stream, "messages": [{"role": "user", "content": words}]}
    return gateway.http.post("/v1/chat/completions", json=body), words


def honest(gateway: Any) -> None:
    got, words = ask(gateway, "")
    assert got.status_code == 200, got.text
    assert got.json()["choices"][0]["message"]["content"] == words


def by_h11(received: bytes, *, closed: bool) -> tuple[bytes | None, bytes]:
    """The body that h11 reads, None where it reads none, and the bytes behind it."""
    reader = h11.Connection(h11.CLIENT)
    reader.send(h11.Request(method="POST", target="/", headers=[("Host", "a"), ("Content-Length", "0")]))
    reader.send(h11.EndOfMessage())
    reader.receive_data(received)
    if closed:
        reader.receive_data(b"")
    body = b""
    try:
        while not isinstance(event := reader.next_event(), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                body += event.data
            elif event in (h11.NEED_DATA, h11.PAUSED) or isinstance(event, h11.ConnectionClosed):
                return None, b""
    except h11.RemoteProtocolError:
        return None, b""
    return body, reader.trailing_data[0]


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_an_error_or_what_another_reader_reads(lying_gateway: Any, liar: Liar, lie: str) -> None:
    got, words = ask(lying_gateway, lie)
    assert STOLEN not in got.text
    body, behind = by_h11(liar.said[words], closed=False)
    if got.status_code == 200:
        content = got.json()["choices"][0]["message"]["content"]
        assert body is not None and json.loads(body)["choices"][0]["message"]["content"] == content == words
    else:
        assert got.status_code in (502, 504), got.text
        assert got.json()["error"]["message"] and got.json()["error"]["type"]
    honest(lying_gateway)
    honest(lying_gateway)
    if got.status_code != 200 or behind:
        assert lie not in liar.used_again


def test_an_answer_that_nobody_asked_for_is_nobodys(lying_gateway: Any, liar: Liar) -> None:
    """It comes on a connection that is kept for the next caller."""
    got, words = ask(lying_gateway, "late")
    assert got.json()["choices"][0]["message"]["content"] == words
    time.sleep(0.4)
    for _ in range(3):
        honest(lying_gateway)
    assert "late" not in liar.used_again
    assert liar.used_again == [], "an engine that has done so is given a connection for each call"


def test_an_answer_that_waits_to_be_received_is_nobodys() -> None:
    """It is in the kernel's buffer when the next request is made: the event loop has not looked."""

    async def two(url: str) -> list[bytes]:
        client = HttpClient()
        try:
            async with await client.request("POST", url, body=b"{}") as first:
                bodies = [await first.read()]
            time.sleep(0.3)  # noqa: ASYNC251
            async with await client.request("POST", url, body=b"{}") as second:
                return [*bodies, await second.read()]
        finally:
            client.close()

    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve(connection: socket.socket) -> None:
            connection.recv(65_536)
            connection.sendall(plain(b"1"))
            time.sleep(0.1)
            connection.sendall(plain(b"stolen"))

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        assert asyncio.run(two(f"http://127.0.0.1:{server.getsockname()[1]}/")) == [b"1", b"1"]


def test_answers_without_end_end_in_typed_errors_beside_callers_who_notice_nothing(lying_gateway: Any) -> None:
    results: dict[tuple[str, bool], Any] = {}

    def suffer(lie: str, stream: bool) -> None:
        results[lie, stream] = ask(lying_gateway, lie, stream=stream)[0]

    lies = [threading.Thread(target=suffer, args=(lie, stream)) for lie in ENDLESS for stream in (False, True)]
    for each in lies:
        each.start()
    n = 0
    while any(each.is_alive() for each in lies):
        honest(lying_gateway)
        n += 1
    assert n > 20
    assert len(results) == 2 * len(ENDLESS)
    for (lie, stream), got in results.items():
        if got.status_code == 200:
            # A stream that has begun can say it in its last event only.
            last = re.findall(r"^data: (\{.*\})$", got.text, re.M)[-1]
            assert stream and json.loads(last)["error"]["message"], (lie, got.text)
        else:
            assert got.status_code in (502, 504), (lie, got.text)
            assert got.json()["error"]["message"], lie


def test_the_words_of_a_connection_that_speaks_first_reach_one_call_at_most(make_gateway: Any) -> None:
    """A whole answer may stand there before anything was asked. What is seen in time is refused.

    Words that come while the call is being sent can't be told from its answer, but no second call gets them.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        opened: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                opened.append(connection)
                connection.sendall(plain(answer(f"{STOLEN} {len(opened)}")))

        threading.Thread(target=serve, daemon=True).start()
        gateway = make_gateway(timeouts=Timeouts(total=2.0))
        gateway.engines.add("eager", f"http://127.0.0.1:{server.getsockname()[1]}/v1", models=["m"])
        given = []
        for _ in range(4):
            got, _ = ask(gateway, "")
            assert got.status_code in (200, 502, 503, 504), got.text
            if got.status_code == 200:
                given.append(got.json()["choices"][0]["message"]["content"])
        assert len(given) == len(set(given))
        for connection in opened:
            connection.close()
