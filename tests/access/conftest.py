"""Services behind one process and behind several, with what an attacker would want to change or read."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.conftest import ServeProcess, eventually, scripted_engine

SCRIPT = {"model": "scripted-1", "default": {"reply": {"content": "The answer is forty-two."}}}
SECRET = "the-planted-secret"
"""Stands in a captured call: whoever reads it has read the pool."""


@pytest.fixture(scope="package")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A scripted engine that always knows the answer."""
    with scripted_engine(tmp_path_factory.mktemp("access-engine"), SCRIPT) as running:
        assert running.base_url
        yield running.base_url


@pytest.fixture(scope="package", params=["1", "2"], ids=["one process", "workers"])
def service(request: pytest.FixtureRequest, engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """On loopback, no key, one captured call."""
    folder = tmp_path_factory.mktemp("access") / "data"
    process = ServeProcess(folder, engine, env={"CLAW_STUDIO_GATEWAYS": request.param})
    chat = {"model": "scripted-1", "messages": [{"role": "user", "content": SECRET}]}
    process.http.post("/planted/group/v1/chat/completions", json=chat).raise_for_status()
    process.http.post("/api/v1/sessions", json={"trajectory_uid": "planted"}).raise_for_status()
    eventually(lambda: process.http.get("/api/v1/stats").json()["n_steps"] == 1)
    yield process
    assert process.stop() == 0


def state_of(service: ServeProcess) -> dict[str, Any]:
    """All that an attack may not change."""
    stats = service.http.get("/api/v1/stats").json()
    paths = ("/api/v1/policy", "/api/v1/sessions", "/api/v1/views", "/api/v1/datasets", "/api/v1/feedback")
    kept = {path: service.http.get(path).json() for path in paths}
    return {**kept, "n_calls": stats["n_calls"], "n_steps": stats["n_steps"], "journal": stats["journal_bytes"]}


def raw(base_url: str, head: str, body: bytes = b"") -> tuple[int, bytes]:
    """Status and body of a request as it is written here, of a client that corrects nothing."""
    parts = urlsplit(base_url)
    assert parts.hostname and parts.port
    with socket.create_connection((parts.hostname, parts.port), timeout=30) as connection:
        connection.sendall(head.replace("\n", "\r\n").encode("latin-1") + b"\r\n\r\n" + body)
        received = b""
        while b"\r\n\r\n" not in received:
            piece = connection.recv(65536)
            if not piece:
                break
            received += piece
        answer, _, rest = received.partition(b"\r\n\r\n")
        length = next(
            (int(line.split(b":")[1]) for line in answer.split(b"\r\n") if line.lower().startswith(b"content-length")),
            0,
        )
        while len(rest) < length and (piece := connection.recv(65536)):
            rest += piece
        return int(answer.split()[1]), rest


def fresh(base_url: str, method: str, path: str, **fields: Any) -> httpx.Response:
    """Over a connection of its own, so that any of several processes may get it."""
    return httpx.request(method, base_url + path, timeout=30, **fields)
