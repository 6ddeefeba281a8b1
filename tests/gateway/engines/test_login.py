"""An engine behind HTTP's basic login: it is asked with it everywhere, and the password shows nowhere.

The engine is a server of Python's own library that compares the header with what RFC 7617 says; canaries are looked for
in every file and in all that the studio says.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

from tests.conftest import ServeProcess, eventually
from tests.gateway.upstream import chat_answer, completions_answer

USER, PASSWORD = "proxy-user", "p@ss:w0rd/canary-of-the-login"
QUOTED = "p%40ss%3Aw0rd%2Fcanary-of-the-login"
GIVEN = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
CANARIES = [PASSWORD, QUOTED, "canary-of-the-login", GIVEN.removeprefix("Basic ")]
HI = [{"role": "user", "content": "hi"}]


class Guarded(BaseHTTPRequestHandler):
    """401 without the login; what was asked is remembered, and the header is repeated in a failure, as proxies do."""

    protocol_version = "HTTP/1.1"
    seen: ClassVar[list[tuple[str, bool]]] = []

    def _say(self, status: int, body: Any) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="engine"')
        self.end_headers()
        self.wfile.write(raw)

    def _answer(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        came_in = self.headers.get("Authorization") == GIVEN
        self.seen.append((self.path, came_in))
        if not came_in:
            return self._say(401, {"error": {"message": "who are you?"}})
        answers = {
            "/v1/models": {"object": "list", "data": [{"id": "policy", "object": "model", "owned_by": "vllm"}]},
            "/version": {"version": f"1 for {GIVEN}"},
            "/health": {},
            "/v1/chat/completions": chat_answer(),
            "/v1/completions": completions_answer(),
            "/v1/embeddings": {"object": "list", "data": [{"index": 0, "embedding": [0.5]}]},
            "/tokenize": {"tokens": [1, 2], "count": 2},
            "/detokenize": {"prompt": "hello"},
        }
        if body.get("messages", [{}])[0].get("content") == "fail":
            return self._say(500, {"error": {"message": f"no luck with {GIVEN}, {PASSWORD}"}})
        return self._say(200 if self.path in answers else 404, answers.get(self.path, {"detail": "Not Found"}))

    do_GET = do_POST = _answer

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the test's output is no place for it."""


@pytest.fixture
def engine() -> Iterator[str]:
    Guarded.seen = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Guarded)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://{USER}:{QUOTED}@127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    server.server_close()


def without(text: str | bytes, where: str) -> None:
    raw = text.encode() if isinstance(text, str) else text
    for canary in CANARIES:
        assert canary.encode() not in raw, (where, canary)


@pytest.mark.parametrize("gateways", ["0", "1", "2"])
def test_calls_work_and_the_password_shows_nowhere(
    serve: Callable[..., ServeProcess], engine: str, tmp_path: Path, gateways: str
) -> None:
    log = tmp_path / "log"
    env = {"CLAW_STUDIO_GATEWAYS": gateways, "CLAW_STUDIO_LOG_FORMAT": "json"}
    with log.open("wb") as stderr:
        studio = serve(engine, env=env, stderr=stderr)
    call = {"model": "policy", "messages": HI}
    answers = {
        "chat": studio.http.post("/v1/chat/completions", json=call),
        "messages": studio.http.post("/v1/messages", json={**call, "max_tokens": 5}),
        "completions": studio.http.post("/v1/completions", json={"model": "policy", "prompt": "x"}),
        "embeddings": studio.http.post("/v1/embeddings", json={"model": "policy", "input": "x"}),
        "tokenize": studio.http.post("/tokenize", json={"model": "policy", "prompt": "x"}),
        "detokenize": studio.http.post("/detokenize", json={"model": "policy", "tokens": [1]}),
        "count": studio.http.post("/v1/messages/count_tokens", json=call),
        "models": studio.http.get("/v1/models"),
        "reward": studio.http.post(
            "/compute_reward",
            json={"prompt_ids": [1], "response_ids": [2], "dataset_fields": {"reward_model": {"ground_truth": "a"}}},
        ),
    }
    assert {name: got.status_code for name, got in answers.items() if name != "reward"} == dict.fromkeys(
        [name for name in answers if name != "reward"], 200
    ), {name: got.text[:200] for name, got in answers.items()}
    failed = studio.http.post(
        "/v1/chat/completions", json={"model": "policy", "messages": [{"role": "user", "content": "fail"}]}
    )
    assert failed.status_code == 502
    assert Guarded.seen and all(came_in for _, came_in in Guarded.seen), Guarded.seen
    assert {"/v1/models", "/v1/chat/completions", "/v1/embeddings"} <= {path for path, _ in Guarded.seen}
    for name, got in [*answers.items(), ("failed", failed)]:
        without(got.content + repr(got.headers).encode(), name)
    eventually(lambda: studio.http.get("/api/v1/steps").json()["steps"])
    for path in ("/api/v1/stats", "/metrics", "/healthz", "/api/v1/steps", "/openapi.json", "/readyz"):
        without(studio.http.get(path).content, path)
    shown = json.loads(studio.http.get("/api/v1/stats").content)["engines"][0]["base_url"]
    assert shown == engine.replace(f"{USER}:{QUOTED}@", "")
    known = {**os.environ, **env, "CLAW_STUDIO_DATA_DIR": studio.ready["data"], "CLAW_STUDIO_ENGINE": engine}
    for words in (["engines"], ["doctor"], ["doctor", "--json"]):
        completed = subprocess.run(
            [sys.executable, "-m", "core.cli", *words], env=known, capture_output=True, timeout=120, check=False
        )
        assert b"127.0.0.1" in completed.stdout, completed
        without(completed.stdout + completed.stderr, " ".join(words))
    data = Path(studio.ready["data"])
    assert studio.stop() == 0
    files = [path for path in [log, *data.rglob("*")] if path.is_file()]
    assert any("journal" in path.parts for path in files)
    for path in files:
        without(path.read_bytes(), str(path))


def test_without_the_login_the_engine_refuses(serve: Callable[..., ServeProcess], engine: str) -> None:
    """Else the test above would prove nothing."""
    studio = serve(engine.replace(f"{USER}:{QUOTED}@", ""))
    got = studio.http.post("/v1/chat/completions", json={"model": "policy", "messages": HI})
    assert got.status_code == 401
    assert httpx.get(engine.replace(f"{USER}:{QUOTED}@", "") + "/models", timeout=120).status_code == 401


def test_the_settings_page_shows_the_address_alone(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from core.config import Settings
    from studio.widgets.settings.provenance import setting_rows

    more = [{"name": "b", "base_url": engine}]
    monkeypatch.setenv("CLAW_STUDIO_ENGINE", f"{engine},{engine}")
    rows = setting_rows(Settings(data_dir=tmp_path, engines=more), os.environ)
    without(repr(rows), "settings")
    assert engine.rpartition("@")[2] in repr(rows)
