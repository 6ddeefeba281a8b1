"""Compressed bodies, offers of HTTP/2, UTF-8 headers and doubled versions in paths, as real clients send them."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import os
import socket
import time
import zlib
from collections.abc import Callable
from typing import Any

import openai
import orjson
import pytest
from starlette.applications import Starlette

from core.gateway.app import create_gateway
from core.gateway.http.asgi import MAX_MEMBERS, plain_body
from core.gateway.http.fast_router import FastRouter
from core.gateway.served_dialects import BadRequest
from tests.gateway.upstream import Upstream

CHAT = {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(("name", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_a_compressed_body_is_read(gateway, name: str, pack: Callable[[bytes], bytes]) -> None:
    body = orjson.dumps(CHAT)
    headers = {"Content-Encoding": name, "Content-Type": "application/json"}
    assert gateway.http.post("/v1/chat/completions", content=pack(body), headers=headers).status_code == 200
    assert gateway.records()[0]["request"] == CHAT
    assert gateway.http.post("/v1/messages/count_tokens", content=pack(body), headers=headers).status_code == 200


def test_two_gzip_members_are_one_body(gateway) -> None:
    body = orjson.dumps(CHAT)
    sent = gzip.compress(body[:9]) + gzip.compress(body[9:])
    answer = gateway.http.post("/v1/chat/completions", content=sent, headers={"Content-Encoding": "gzip"})
    assert answer.status_code == 200


def test_many_gzip_members_take_no_more_time_than_their_bytes() -> None:
    """The reference is Python's own gzip, which reads on behind a member without copying what follows."""
    members = [gzip.compress(b"%d " % n) for n in range(MAX_MEMBERS)]
    body = b"".join([*members[:-1], gzip.compress(os.urandom(4 << 20))])
    started = time.process_time()
    expected = gzip.decompress(body)
    theirs_s = time.process_time() - started
    started = time.process_time()
    assert plain_body(body, "gzip", 8 << 20) == expected
    assert time.process_time() - started < 20 * theirs_s + 1.0
    with pytest.raises(BadRequest, match="members"):
        plain_body(body + members[0], "gzip", 8 << 20)


def test_a_megabyte_of_empty_gzip_members_is_refused_at_once(gateway) -> None:
    bomb = gzip.compress(b"") * 1_000_000
    started = time.process_time()
    answer = gateway.http.post("/v1/chat/completions", content=bomb, headers={"Content-Encoding": "gzip"})
    assert answer.status_code == 400 and "members" in answer.text
    assert time.process_time() - started < 10.0
    assert gateway.records() == []


@pytest.mark.parametrize(
    ("encoding", "body", "status"),
    [
        ("gzip", b"not gzip", 400),
        ("gzip", gzip.compress(orjson.dumps(CHAT))[:-6], 400),
        ("gzip", gzip.compress(b" " * (8 << 20)), 413),
        ("br", b"x", 415),
    ],
    # The compressed bytes hold the time: as ids they would differ between the processes that share the tests.
    ids=["plain", "torn", "bomb", "unknown"],
)
def test_a_body_that_is_no_sound_compression_is_refused(gateway, encoding: str, body: bytes, status: int) -> None:
    answer = gateway.http.post("/v1/chat/completions", content=body, headers={"Content-Encoding": encoding})
    assert answer.status_code == status, answer.text
    assert gateway.records() == []


def test_a_decompressed_body_is_held_to_the_same_size(make_gateway, upstream: Upstream) -> None:
    gateway = make_gateway(upstream, limits={"max_body_bytes": 1000})
    sent = gzip.compress(orjson.dumps({**CHAT, "user": "x" * 2000}))
    answer = gateway.http.post("/v1/chat/completions", content=sent, headers={"Content-Encoding": "gzip"})
    assert answer.status_code == 413


H2C = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"


def answer_status(connection: socket.socket) -> int:
    """Read one whole answer, which may come in parts."""
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    answer.read()
    return answer.status


@pytest.mark.parametrize("cut", [0, 1, 20, 200, 260])
def test_an_offer_of_http_2_is_not_taken_up(gateway, cut: int) -> None:
    """As Java's client sends it with every first request; ``cut`` bytes come later than the rest."""
    body = json.dumps(CHAT).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n{H2C}Content-Length: {len(body)}\r\n\r\n"
    sent = head.encode() + body
    with socket.create_connection(("127.0.0.1", gateway.server.port)) as connection:
        connection.settimeout(20)
        for _ in range(2):
            connection.sendall(sent[: len(sent) - cut])
            if cut:
                connection.sendall(sent[len(sent) - cut :])
            assert answer_status(connection) == 200
        connection.sendall(f"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n{H2C}\r\n".encode())
        assert answer_status(connection) == 200
    assert [record["request"] for record in gateway.records()] == [CHAT, CHAT]


def test_headers_may_be_utf_8(gateway) -> None:
    headers = {"X-Agent": "агент".encode(), "X-Trajectory-Uid": "путь-1".encode(), "X-Prompt-Uid": "日本".encode()}
    answer = gateway.chat(headers=headers)
    assert answer.status_code == 200
    identity = gateway.records()[0]["identity"]
    assert (identity["agent"], identity["trajectory_uid"], identity["prompt_uid"]) == ("агент", "путь-1", "日本")
    assert gateway.chat(headers={"X-Agent": "caf\xe9".encode("latin-1")}).status_code == 200
    assert gateway.records()[1]["identity"]["agent"] == "café"


def test_a_doubled_version_in_the_path_is_one(make_gateway, upstream: Upstream) -> None:
    gateway = make_gateway(upstream)
    from core.gateway.http.server import GatewayServer

    routes = create_gateway(gateway.deps)
    server = GatewayServer(FastRouter(Starlette(routes=routes), routes))
    root = f"http://127.0.0.1:{server.start()}"
    try:
        for prefix in ("", "/t/p"):
            client = openai.OpenAI(base_url=f"{root}{prefix}/v1/v1", api_key="x", max_retries=0)
            assert client.chat.completions.create(**CHAT).choices[0].message.content == "hello"
            assert client.models.list().data[0].id == "policy"
            assert client.models.retrieve("policy").id == "policy"
    finally:
        server.stop(1.0)
    assert [record["identity"]["trajectory_uid"] for record in gateway.records()] == [None, "t"]


def test_a_doubled_version_opens_nothing_but_model_calls() -> None:
    reached = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])

    front = FastRouter(app, [])
    for path in ("/v1/v1/chat/completions", "/t/p/v1/v1/models", "/t/p/v1/v1/register_trajectory", "/a/v1/v1/models"):
        asyncio.run(front({"type": "http", "method": "GET", "path": path, "raw_path": path.encode()}, None, None))
    assert reached == [
        "/v1/chat/completions",
        "/t/p/v1/models",
        "/t/p/v1/v1/register_trajectory",
        "/a/v1/v1/models",
    ]
