"""What agents, engines and files say reaches no terminal as it came: not through logs, not through any command.

The service and the commands are real processes; what they wrote is read as bytes, from files, pipes and a
pseudo-terminal.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.conftest import ServeProcess, eventually
from tests.left_out import only_in_ci

MARK = "marked"
HOSTILE = (
    f"{MARK}\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202egpj.\u2066x\u2028\r\n2026-01-01 00:00:00,000 ERROR forged line"
)
STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
RAW = b"\x9b31m\x80\xc2\x9b\xe2\x80\xae"
"""What a header may hold: no C0, all else."""


class HostileEngine:
    """Says hostile things in every field, as an answer, as an error and as no HTTP at all, in turn."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.base_url = f"http://127.0.0.1:{self.socket.getsockname()[1]}/v1"
        self.n = 0
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError, IndexError):
                connection.settimeout(30)
                path = connection.recv(1 << 20).split(b" ")[1]
                connection.sendall(self.answer(path.decode("latin-1")))

    def answer(self, path: str) -> bytes:
        def plain(status: bytes, body: Any) -> bytes:
            data = json.dumps(body).encode()
            head = (
                b"HTTP/1.1 " + status + b"\r\nServer: " + RAW + b"\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
            )
            return head % len(data) + data

        if path.endswith("/models"):
            return plain(b"200 OK", {"data": [{"id": HOSTILE, "owned_by": HOSTILE, "max_model_len": HOSTILE}]})
        if path.endswith("/version"):
            return plain(b"200 OK", {"version": HOSTILE})
        if not path.endswith("completions"):
            return plain(b"404 Not Found", {"error": HOSTILE})
        self.n += 1
        message = {"role": "assistant", "content": HOSTILE}
        choice = {"index": 0, "finish_reason": HOSTILE, "message": message}
        return [
            plain(b"500 " + RAW, {"error": {"message": HOSTILE, "type": HOSTILE}}),
            plain(
                b"200 OK", {"id": HOSTILE, "model": HOSTILE, "choices": [choice], "usage": {"prompt_tokens": HOSTILE}}
            ),
            HOSTILE.encode(),
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + HOSTILE.encode(),
            plain(b"400 Bad", {"error": {"message": HOSTILE}}),
        ][self.n % 5]


def clean(written: bytes, *, terminal: bool = False) -> str:
    """The text; fails where anything in it steers."""
    text = written.decode()
    if terminal:
        # A terminal's own line ends, and how progress is drawn.
        text = re.sub(r"\r(?=\n|\d+ records)", "", text)
    match = STEERS.search(text)
    assert match is None, text[max(0, match.start() - 200) : match.end() + 50].encode("unicode_escape")
    return text


def raw_request(base_url: str, request: bytes) -> None:
    with socket.create_connection(("127.0.0.1", int(base_url.rpartition(":")[2])), timeout=10) as sock:
        sock.sendall(request)
        sock.settimeout(1)
        with contextlib.suppress(OSError):
            while sock.recv(65_536):
                pass


def misbehave(studio: ServeProcess) -> None:
    """Hostile text in every place that is logged, shown or kept."""
    studio.http.timeout = 120
    chat = {"model": HOSTILE, "messages": [{"role": "user", "content": HOSTILE}], "user": HOSTILE}
    for number in range(5):
        headers = {b"X-Agent": RAW, b"User-Agent": RAW, b"X-Trajectory-Uid": f"t{number}".encode()}
        studio.http.post("/v1/chat/completions", json=chat, headers=headers)
    studio.http.post("/v1/messages", json={**chat, "max_tokens": 5, "metadata": {"user_id": HOSTILE}})
    studio.http.post(f"/{quote(HOSTILE, safe='')}/p/v1/chat/completions", json=chat)
    studio.http.post("/v1/chat/completions", json={**chat, "stream": True, "tools": [{"type": HOSTILE}]})
    studio.http.post("/v1/chat/completions", content=HOSTILE.encode())
    for path in ("steps/" + quote(HOSTILE, safe=""), "steps?where=" + quote(HOSTILE), "steps?order=" + quote(HOSTILE)):
        studio.http.get(f"/api/v1/{path}")
    step = {"trajectory_uid": f"u-{MARK}", "step_index": 0, "prompt_ids": [1], "response_ids": [2], "reward": 1.0,
            "is_last": True, "error": HOSTILE, "agent": HOSTILE, "model": HOSTILE, "channel": HOSTILE,
            "finish_reason": HOSTILE, "metadata": {HOSTILE: HOSTILE}}  # fmt: skip
    response = studio.http.post("/api/v1/steps", json={"steps": [step]})
    assert response.status_code == 200, response.text
    studio.http.post("/api/v1/sessions", json={"trajectory_uid": "s", "agent": HOSTILE, "metadata": {"a": HOSTILE}})
    studio.http.put(f"/api/v1/views/{quote(MARK)}", json={"where": "reward > 0", "author": HOSTILE})
    studio.http.post("/api/v1/policy", json={"version": 1, "event": "registered", "metadata": {"a": HOSTILE}})
    studio.http.post("/api/v1/batches/fetch", json={"consumer": HOSTILE, "recipe": {"algorithm": HOSTILE}})
    for request in (
        b"GET /" + RAW + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /\x1b]0;owned\x07 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"\x1b[2J / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: " + RAW + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://" + RAW + b"\r\nContent-Length: \x1b[2J\r\n\r\n",
    ):
        raw_request(studio.base_url, request)


@pytest.fixture(scope="module")
def engine() -> Iterator[HostileEngine]:
    hostile = HostileEngine()
    yield hostile
    hostile.socket.close()


@pytest.mark.parametrize(("form", "gateways"), [("text", "0"), ("json", "2")])
def test_no_log_of_a_service_steers_a_terminal(tmp_path: Path, engine: HostileEngine, form: str, gateways: str) -> None:
    env = {"CLAW_STUDIO_GATEWAYS": gateways, "CLAW_STUDIO_LOG_FORMAT": form}
    with (tmp_path / "stderr").open("wb") as stderr:
        # Every call is a line only with --verbose.
        studio = ServeProcess(tmp_path / "data", engine.base_url, env=env, stderr=stderr, verbose=True)
        misbehave(studio)
        assert studio.stop() == 0
    written = (tmp_path / "stderr").read_bytes()
    text = clean(written)
    lines = text.splitlines()
    assert MARK in text and not any(line.startswith("2026-01-01") for line in lines)
    if form == "json":
        assert all(isinstance(json.loads(line), dict) for line in lines)


def in_terminal(command: list[str], env: dict[str, str]) -> bytes:
    """What a command writes to a terminal, errors included."""
    ours, theirs = os.openpty()
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        written = bytearray()
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline:
            if not select.select([ours], [], [], 1.0)[0]:
                continue
            try:
                piece = os.read(ours, 65_536)
            except OSError:
                # The last one who had the other end is gone.
                break
            if not piece:
                break
            written += piece
        process.kill() if process.poll() is None and time.monotonic() >= deadline else None
    os.close(ours)
    return bytes(written)


@pytest.mark.parametrize(
    "terminal", [pytest.param(True, id="terminal", marks=only_in_ci("every command")), pytest.param(False, id="pipe")]
)
def test_no_command_steers_a_terminal(tmp_path: Path, engine: HostileEngine, terminal: bool) -> None:
    data = tmp_path / "data"
    studio = ServeProcess(data, engine.base_url, stderr=subprocess.DEVNULL)
    misbehave(studio)
    eventually(lambda: studio.http.get("/api/v1/stats").json()["n_steps"] >= 2)
    hostile = tmp_path / f"{HOSTILE.replace('/', '|')}.jsonl"
    hostile.write_text(json.dumps({HOSTILE: 1}) + "\n" + '{"trajectory_uid": "x"}\n' + HOSTILE)
    env = {**os.environ, "CLAW_STUDIO_ENGINE": engine.base_url, "NO_COLOR": "1", "TERM": "dumb"}
    sql = "SELECT agent, model, channel, error FROM step_state"
    commands = [
        ["engines"], ["keys", "list"], ["doctor"], ["doctor", "--json"], ["views"], ["versions"], ["trash", "list"],
        ["sql", sql], ["sql", sql, "--json"], ["import", str(hostile)], ["import", str(hostile), "--all-or-nothing"],
        ["export", "steps_parquet", "--where", f"channel = '{MARK}' OR nosuch = 1"], ["export", HOSTILE],
        ["freeze", MARK, "--where", HOSTILE], ["diff", HOSTILE, HOSTILE], ["keys", "revoke", HOSTILE],
        ["trash", "restore", HOSTILE], ["retain", "--older-than-days", "1", "--channel", HOSTILE],
    ]  # fmt: skip
    shown = ""
    for arguments in commands if terminal else commands[:1] + commands[7:11]:
        command = [sys.executable, "-m", "core.cli", *arguments, "--data", str(data)]
        if terminal:
            written = in_terminal(command, env)
        else:
            written = subprocess.run(
                command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=200, check=False
            ).stdout
        assert b"Traceback" not in written, written.decode(errors="replace")
        shown += clean(written, terminal=terminal)
    assert shown.count(MARK) > (10 if terminal else 3)
    assert studio.stop() == 0
    # Without a service the command opens one of its own, whose log is the command's.
    alone = [sys.executable, "-m", "core.cli", "import", str(hostile), "--data", str(data)]
    clean(in_terminal(alone, env), terminal=True)
