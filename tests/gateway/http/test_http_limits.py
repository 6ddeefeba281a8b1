"""What a caller may take: bytes, seconds, places. Each limit has its status, in the caller's dialect."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.http.wire import Answer, Asked, Served, exchange, wait_until

MB = 1 << 20
HOST = b"Host: 127.0.0.1\r\n"
SMALL_BODY: dict[str, Any] = {
    "max_body_bytes": 2 * MB,
    "max_header_bytes": 8 << 10,
    "header_timeout_s": 1.0,
    "body_timeout_s": 1.0,
    "idle_timeout_s": 2.0,
}
DIALECTS = {
    b"/v1/chat/completions": lambda error: error["error"]["code"],
    b"/t/p/v1/completions": lambda error: error["error"]["code"],
    b"/v1/responses": lambda error: error["error"]["code"],
    b"/v1/messages": lambda error: {"request_too_large": "request_too_large"}.get(
        error["error"]["type"], error["type"]
    ),
    b"/api/v1/steps": lambda error: error["type"],
    b"/nothing": lambda error: error["type"],
}


def endless(sock: socket.socket, piece: bytes, most: int) -> int:
    """Send until nobody takes it; bytes that were taken."""
    sent = 0
    try:
        while sent < most:
            sock.sendall(piece)
            sent += len(piece)
    except OSError:
        pass
    return sent


@pytest.mark.parametrize("path", DIALECTS)
def test_a_body_over_the_limit_is_refused_by_what_it_says_of_itself(path: bytes) -> None:
    with Served(**SMALL_BODY) as served:
        responses = served.send(
            b"POST " + path + b" HTTP/1.1\r\n" + HOST + b"Content-Length: 1610612736\r\n\r\n" + b"x" * 9999
        )
    assert [answer[0] for answer in responses] == [413]
    assert DIALECTS[path](json.loads(responses[0][2])) == "request_too_large"
    assert served.refused == ["request_too_large"] and not served.asked.requests


def test_a_body_over_the_limit_is_refused_when_it_says_nothing_of_itself() -> None:
    with Served(**SMALL_BODY) as served, served.connect() as sock:
        sock.sendall(b"POST /api/v1/steps HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n")
        endless(sock, b"10000\r\n" + b"x" * 65536 + b"\r\n", 6 * MB)
        responses = exchange(sock)
        assert [answer[0] for answer in responses] == [413]
        assert json.loads(responses[0][2])["field"] == "body"
        wait_until(lambda: served.asked.n_gone == 1)
        assert not served.asked.requests


@pytest.mark.parametrize(
    "piece",
    [b"X-One-More: of very many\r\n", b"a" * 65536, b"X" * 4000 + b": y\r\n"],
    ids=["many", "one", "long names"],
)
def test_headers_have_an_end(piece: bytes) -> None:
    with Served(**SMALL_BODY) as served, served.connect() as sock:
        sock.sendall(b"GET /v1/models HTTP/1.1\r\n" + HOST + b"X-A: ")
        taken = endless(sock, piece, 3 * MB)
        responses = exchange(sock)
    assert [answer[0] for answer in responses] == [431]
    assert json.loads(responses[0][2])["error"]["code"] == "headers_too_large"
    assert taken and not served.asked.requests


def test_a_target_without_end_is_refused() -> None:
    with Served(**SMALL_BODY) as served:
        responses = served.send(b"GET /" + b"a" * (3 * MB) + b" HTTP/1.1\r\n" + HOST + b"\r\n")
    assert [answer[0] for answer in responses] == [431]


@pytest.mark.parametrize(
    "piece",
    [b"0" * 4096, b"5;" + b"a" * 4096, b"1\r\nx\r\n" + b"1;" + b"e" * 8000 + b"\r\nx\r\n"],
    ids=["size", "ext", "exts"],
)
def test_a_body_of_framing_alone_is_refused(piece: bytes) -> None:
    with Served(**SMALL_BODY) as served, served.connect() as sock:
        sock.sendall(b"POST /x HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n")
        endless(sock, piece, 3 * MB)
        responses = exchange(sock)
    assert [answer[0] for answer in responses] == [400] and not served.asked.requests


def test_a_trailer_without_end_is_refused() -> None:
    with Served(**SMALL_BODY) as served, served.connect() as sock:
        sock.sendall(b"POST /x HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX-T: ")
        endless(sock, b"a" * 65536, 3 * MB)
        responses = exchange(sock)
    assert [answer[0] for answer in responses] == [400] and not served.asked.requests


def dripped(served: Served, first: bytes, drop: bytes) -> tuple[list[Answer], float]:
    """What a sender of a few bytes a second gets, and after how long."""
    started = time.monotonic()
    with served.connect() as sock:
        sock.sendall(first)
        responses: list[Answer] = []
        while not responses and time.monotonic() - started < 20:
            responses = exchange(sock, drop, quiet_s=0.2, n=0)
    return responses, time.monotonic() - started


def test_slow_senders_are_told_and_closed() -> None:
    body = b"POST /v1/messages HTTP/1.1\r\n" + HOST + b"Content-Length: 100000\r\n\r\n"
    with Served(**SMALL_BODY) as served:
        responses, _ = dripped(served, b"POST /v1/messages HTTP/1.1\r\n" + HOST + b"X-A: ", b"a")
        assert [answer[0] for answer in responses] == [408] and "(closed)" in responses[0][1]
        assert json.loads(responses[0][2])["type"] == "error"
        responses, _ = dripped(served, body, b"a")
        assert [answer[0] for answer in responses] == [408]
        assert "body did not come" in json.loads(responses[0][2])["error"]["message"]
        chunked = body.replace(b"Content-Length: 100000", b"Transfer-Encoding: chunked")
        responses, _ = dripped(served, chunked, b"1\r\na\r\n")
        assert [answer[0] for answer in responses] == [408]
        assert served.refused == ["request_timeout"] * 3 and not served.asked.requests
        wait_until(lambda: served.asked.n_gone == 2)


def test_a_slow_body_that_keeps_its_pace_is_waited_for() -> None:
    with Served(**SMALL_BODY) as served, served.connect() as sock:
        sock.sendall(b"POST /x HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % (20 * 4096))
        # Twice the time that a body without a pace gets, at eight times the least pace.
        for _ in range(20):
            sock.sendall(b"x" * 4096)
            time.sleep(0.12)
        assert [answer[0] for answer in exchange(sock)] == [200]


def test_idle_and_silent_connections_are_closed_and_used_ones_are_not() -> None:
    with Served(**SMALL_BODY) as served, served.connect() as silent, served.connect() as kept, served.connect() as used:
        assert [answer[0] for answer in exchange(kept, b"GET /1 HTTP/1.1\r\n" + HOST + b"\r\n", quiet_s=0.1)] == [200]
        for n in range(12):
            (response,) = exchange(used, b"GET /%d HTTP/1.1\r\n" % n + HOST + b"\r\n", quiet_s=0.4)
            assert response[0] == 200
        for sock in (silent, kept):
            sock.settimeout(10)
            assert sock.recv(10) == b""


def test_who_takes_nothing_of_its_answer_is_cut_off() -> None:
    n_sent = 0

    async def pours(scope: Any, receive: Any, send: Any) -> None:
        nonlocal n_sent
        if scope["type"] != "http":
            await Asked()(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(10_000):
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            n_sent += 1
        await send({"type": "http.response.body", "body": b""})

    with Served(pours, **SMALL_BODY) as served, served.connect() as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        # An application that writes to nobody comes to its end at once.
        wait_until(lambda: n_sent == 10_000)


def test_the_longest_idle_connection_makes_room() -> None:
    with Served(max_connections=8) as served:
        idle = [served.connect() for _ in range(8)]
        time.sleep(1.2)
        # The first of them is used, and is the last to go now.
        assert exchange(idle[0], b"GET /kept HTTP/1.1\r\n" + HOST + b"\r\n", quiet_s=0.2)[0][0] == 200
        for n in range(7):
            with served.connect() as fresh:
                assert exchange(fresh, b"GET /%d HTTP/1.1\r\n" % n + HOST + b"\r\n", quiet_s=0.1)[0][0] == 200
                idle[1].settimeout(5)
                assert idle[1].recv(10) == b""
        assert exchange(idle[0], b"GET /kept HTTP/1.1\r\n" + HOST + b"\r\n", quiet_s=0.2)[0][0] == 200
        for sock in idle:
            sock.close()


def test_where_all_places_are_in_use_callers_are_told_to_come_again() -> None:
    with Served(max_connections=8) as served:
        head = b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST
        busy = [served.connect() for _ in range(8)]
        for sock in busy:
            sock.sendall(head + b"Content-Length: 5\r\n\r\nab")
        time.sleep(1.2)
        (response,) = served.send(head + b"Content-Length: 2\r\n\r\n{}")
        assert response[0] == 503 and response[1]["retry-after"] == "1"
        assert json.loads(response[2])["error"]["code"] == "overloaded"
        for sock in busy:
            assert exchange(sock, b"cde", quiet_s=0.3)[0][0] == 200
            sock.close()
        wait_until(lambda: served.send(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")[0][0] == 200)
        assert served.refused.count("overloaded") == 1


def test_bodies_held_at_a_time_are_bounded() -> None:
    with Served(max_body_bytes=2 * MB) as served:
        head = b"POST /x HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n"
        held = [served.connect() for _ in range(5)]
        for sock in held:
            sock.sendall(head % (2 * MB) + b"x" * (2 * MB - 1))
        time.sleep(0.5)
        assert [answer[0] for answer in served.send(head % (2 * MB), b"x" * (2 * MB))] == [503]
        # Ordinary calls go on.
        assert [answer[0] for answer in served.send(head % 9 + b"x" * 9)] == [200]
        statuses = [exchange(sock, b"x", quiet_s=0.5)[0][0] for sock in held]
        assert statuses.count(200) >= 4
        for sock in held:
            sock.close()
        assert [answer[0] for answer in served.send(head % (2 * MB), b"x" * (2 * MB))] == [200]


def test_half_closed_connections_leave_nothing_open() -> None:
    with Served() as served:
        n_before = len(list(Path("/proc/self/fd").iterdir()))
        socks = [served.connect() for _ in range(50)]
        for n, sock in enumerate(socks):
            sock.sendall([b"", b"GET / HT", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nab"][n % 3])
            sock.shutdown(socket.SHUT_WR)
        # Our own ends stay open.
        wait_until(lambda: len(list(Path("/proc/self/fd").iterdir())) <= n_before + 50)
        for sock in socks:
            sock.close()
