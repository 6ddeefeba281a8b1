"""No two readers take the same bytes for different requests: held against h11, a parser of other makers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from core.gateway.http.asgi import Receive, Scope, Send
from core.gateway.transport.http1 import HttpClient
from core.workers.forward import Forwarder
from tests.effort import settings
from tests.gateway.http.wire import Asked, Served, by_h11, exchange

HEAD = b"POST /first HTTP/1.1\r\nHost: 127.0.0.1\r\n"
CHUNKS = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
NEXT = b"GET /smuggled HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"

REFUSED = {
    "CL and TE": (400, HEAD + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "TE and CL": (400, HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n"),
    "two lengths": (400, HEAD + b"Content-Length: 0\r\nContent-Length: 5\r\n\r\nabcde"),
    "the same length twice": (400, HEAD + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nabcde"),
    "a list of lengths": (400, HEAD + b"Content-Length: 5, 5\r\n\r\nabcde"),
    "a signed length": (400, HEAD + b"Content-Length: +5\r\n\r\nabcde"),
    "a hexadecimal length": (400, HEAD + b"Content-Length: 0x5\r\n\r\nabcde"),
    "a length with a space in it": (400, HEAD + b"Content-Length: 5 5\r\n\r\nabcde"),
    "a length beyond 64 bits": (400, HEAD + b"Content-Length: 18446744073709551621\r\n\r\nabcde"),
    "a folded header": (400, HEAD + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n"),
    "a folded unknown header": (400, HEAD + b"X-A: 1\r\n Content-Length: 5\r\n\r\nabcde"),
    "bare line feeds": (400, b"POST /first HTTP/1.1\nHost: 127.0.0.1\nContent-Length: 5\n\nabcde"),
    "a bare line feed in the head": (400, HEAD + b"X-A: 1\nContent-Length: 5\r\n\r\nabcde"),
    "a bare carriage return": (400, HEAD + b"X-A: 1\rContent-Length: 5\r\n\r\nabcde"),
    "a name with a space behind it": (400, HEAD + b"Content-Length : 5\r\n\r\nabcde"),
    "a name with a space in it": (400, HEAD + b"Content Length: 5\r\n\r\nabcde"),
    "a space before the first name": (400, b"POST /first HTTP/1.1\r\n Host: 127.0.0.1\r\n\r\n"),
    "no name": (400, HEAD + b": 5\r\n\r\n"),
    "a NUL in a value": (400, HEAD + b"X-A: a\0b\r\n\r\n"),
    "chunk size in hexadecimal notation": (400, CHUNKS + b"0x5\r\nabcde\r\n0\r\n\r\n"),
    "a negative chunk size": (400, CHUNKS + b"-5\r\nabcde\r\n0\r\n\r\n"),
    "a chunk size with a space": (400, CHUNKS + b"5 \r\nabcde\r\n0\r\n\r\n"),
    "a chunk size beyond 64 bits": (
        400,
        CHUNKS + b"10000000000000005\r\nabcde\r\n0\r\n\r\n",
    ),
    "a chunk longer than its size": (400, CHUNKS + b"3\r\nabcde\r\n0\r\n\r\n"),
    "chunks parted by bare line feeds": (400, CHUNKS + b"5\nabcde\n0\n\n"),
    "another coding before chunked": (501, HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    "another coding behind chunked": (400, HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"),
    "another coding": (501, HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
    "two codings": (400, HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n"),
    "chunked in HTTP/1.0": (
        501,
        CHUNKS.replace(b"1.1", b"1.0").replace(b"\r\n\r\n", b"\r\nConnection: keep-alive\r\n\r\n") + b"0\r\n\r\n",
    ),
    "no version": (505, b"GET /first\r\n\r\n"),
    "HTTP/0.9 with headers": (505, b"GET /first HTTP/0.9\r\nHost: 127.0.0.1\r\n\r\n"),
    "HTTP/2.0 in words": (505, b"GET /first HTTP/2.0\r\nHost: 127.0.0.1\r\n\r\n"),
    "HTTP/2's own beginning": (400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "another protocol's method": (501, b"DESCRIBE /first RTSP/1.0\r\nHost: 127.0.0.1\r\n\r\n"),
    "a tunnel": (400, b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: 127.0.0.1:22\r\n\r\n"),
    "a target of another host": (400, b"GET http://10.0.0.1/first HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"),
    "a target without path": (400, b"GET http://10.0.0.1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"),
    "a target that is no path": (400, b"GET first HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"),
}
SERVED = {
    "a length": (HEAD + b"Content-Length: 5\r\n\r\nabcde", b"abcde"),
    "chunks with extensions": (CHUNKS + b"5;a=b\r\nabcde\r\n0;x\r\n\r\n", b"abcde"),
    "chunks with a trailer": (
        CHUNKS + b"5\r\nabcde\r\n0\r\nAuthorization: Bearer x\r\nHost: b\r\n\r\n",
        b"abcde",
    ),
    "an absolute target": (
        b"POST http://127.0.0.1/first HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\n\r\na",
        b"a",
    ),
    "an offer of HTTP/2": (
        HEAD + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
        b"Content-Length: 5\r\n\r\nabcde",
        b"abcde",
    ),
    "empty lines before it": (b"\r\n\r\n" + HEAD + b"Content-Length: 5\r\n\r\nabcde", b"abcde"),
}


class _Handing:
    """What gateway processes do with what is no model call: a real ``Forwarder`` in front of another server."""

    def __init__(self, port: int) -> None:
        self._address = f"http://127.0.0.1:{port}"
        self._app: Forwarder | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await Asked()(scope, receive, send)
            return
        if self._app is None:
            self._app = Forwarder(self._address, HttpClient(), token="token")
        await self._app(scope, receive, send)


@pytest.fixture(scope="module", params=["alone", "behind a worker"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Served, Asked]]:
    """The server that is spoken to, and who is asked in the end."""
    with Served() as last:
        if request.param == "alone":
            yield last, last.asked
            return
        with Served(_Handing(last.port)) as first:
            yield first, last.asked


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_two_readings_has_none(pair: tuple[Served, Asked], name: str) -> None:
    served, requests = pair
    status, sent = REFUSED[name]
    requests.requests.clear()
    responses = served.send(sent + NEXT)
    assert [answer[0] for answer in responses] == [status], name
    assert "(closed)" in responses[0][1] and responses[0][1]["connection"] == "close"
    assert responses[0][1]["content-type"] == "application/json"
    assert requests.requests == []


@pytest.mark.parametrize("name", SERVED)
def test_what_has_one_reading_is_served_and_what_follows_is_another_request(
    pair: tuple[Served, Asked], name: str
) -> None:
    served, requests = pair
    sent, body = SERVED[name]
    requests.requests.clear()
    requests.headers.clear()
    responses = served.send(sent + NEXT)
    assert [answer[0] for answer in responses] == [200, 200]
    assert requests.requests == [("POST", "/first", body), ("GET", "/smuggled", b"")]
    names = [name for name, _ in requests.headers[0]]
    # A header that came behind the body was seen by nobody who let the request in.
    assert b"authorization" not in names and names.count(b"host") == 1


def test_every_pipelined_request_has_its_answer_in_its_turn(pair: tuple[Served, Asked]) -> None:
    served, requests = pair
    requests.requests.clear()
    sent = [b"POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n%02d" % (n, n) for n in range(40)]
    responses = served.send(b"".join(sent))
    assert [answer[2] for answer in responses] == [b"/%d" % n for n in range(40)]
    assert requests.requests == [("POST", f"/{n}", b"%02d" % n) for n in range(40)]


def test_a_refusal_waits_for_the_answers_before_it(pair: tuple[Served, Asked]) -> None:
    served, _ = pair
    responses = served.send(
        b"GET /a HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\nGET /c HTTP/1.1\r\nX : y\r\n\r\n"
    )
    assert [answer[0] for answer in responses] == [200, 200, 400]


def test_very_many_pipelined_requests_are_not_queued_without_end() -> None:
    with Served() as served:
        responses = served.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 3000)
    statuses = [answer[0] for answer in responses]
    assert statuses[-1] == 503 and responses[-1][1]["retry-after"] == "1"
    assert set(statuses[:-1]) == {200} and len(statuses) < 200
    assert served.refused == ["overloaded"]


def test_very_many_offers_of_another_protocol_are_declined_one_by_one() -> None:
    offer = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    with Served() as served:
        # Each of them is read again, and none of them inside of another one.
        responses = served.send(offer * 90)
    assert {answer[0] for answer in responses} == {200}


PARTS = [
    *(
        b"GET /a HTTP/1.1\r\n",
        b"POST /b HTTP/1.1\r\n",
        b"POST /c HTTP/1.0\r\n",
        b"Host: a\r\n",
        b"\r\n",
        b"\n",
        b"\r",
        b" ",
    ),
    *(b"Content-Length: 3\r\n", b"Content-Length: 0\r\n", b"Content-Length: 5, 5\r\n", b"content-length:3\r\n", b"abc"),
    *(b"Transfer-Encoding: chunked\r\n", b"transfer-encoding : chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n"),
    *(
        b"Transfer-Encoding: identity\r\n",
        b"3\r\nabc\r\n",
        b"0\r\n\r\n",
        b"3;x=y\r\n",
        b"0\r\nX: y\r\n\r\n",
        b"\0",
        b"\xff",
    ),
    *(
        b"Connection: close\r\n",
        b"Connection: keep-alive\r\n",
        b"Expect: 100-continue\r\n",
        b"X: \r\n y\r\n",
        b"\t",
        b":",
    ),
]
GOOD = [
    b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
    b"POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
]


@st.composite
def mutated(draw: Any) -> bytes:
    """Requests with pieces of other requests in them, or bytes that are missing."""
    sent = bytearray(b"".join(draw(st.lists(st.sampled_from(GOOD), min_size=1, max_size=3))))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(sent)))
        gone = draw(st.integers(0, 6))
        sent[at : at + gone] = draw(st.sampled_from([b"", *PARTS]))
    return bytes(sent)


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[Served]:
    with Served(header_timeout_s=60, body_timeout_s=60) as served:
        yield served


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(sent=mutated())
@example(sent=b"".join(GOOD))
@example(sent=GOOD[1].replace(b"3\r\n\r\n", b"3\r\n\r\r\n"))
def test_our_requests_are_the_ones_that_h11_reads(fuzzed: Served, sent: bytes) -> None:
    """As many, and the same; or we have refused and closed, before or where h11 does."""
    theirs, refused = by_h11(sent)
    with fuzzed.connect() as sock:
        port = sock.getsockname()[1]
        responses = exchange(sock, sent, quiet_s=0.1, n=0)
        deadline = time.monotonic() + 10
        while len(fuzzed.asked_by(port)) < len(theirs) and not (responses and responses[-1][0] >= 400):
            # Busy, or of another opinion.
            assert time.monotonic() < deadline, (sent, responses, theirs)
            responses += exchange(sock, quiet_s=0.2, n=0)
    ours = fuzzed.asked_by(port)
    if "Host" in refused:
        # Requests for no host or for two are whole ones; who answers for which is the border's matter (421).
        ours = ours[: len(theirs)]
    closed_by_us = bool(responses) and responses[-1][0] >= 400
    assert ours == theirs[: len(ours)], (sent, responses)
    assert len(ours) == len(theirs) or closed_by_us
    if refused and "Host" not in refused and len(ours) == len(theirs):
        # What h11 refuses is no request here either: refused as well, or waited for.
        assert len([answer for answer in responses if answer[0] == 200]) == len(ours)
