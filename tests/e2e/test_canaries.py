"""Keys planted wherever an agent can put one: none of them is in the journal, the pool, the logs or an export."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from core.journal import read_records
from tests.conftest import ServeProcess, eventually
from tests.gateway.upstream import Upstream, chat_answer
from tests.imports.keyed_logs import KEYS as LOGGED
from tests.imports.keyed_logs import logs_with_keys
from tests.left_out import only_in_ci

pytestmark = only_in_ci("takes ten seconds")

KEYS = {
    where: f"canary-{where}-4f0e8a1b2c3d"
    for where in (
        "gateway", "engine", "bearer", "x-api-key", "cookie", "proxy", "query", "body", "header", "mcp", "metadata",
        "litellm", "extra", "default", "session", "feedback", "register", "submitted", "policy",
    )
}  # fmt: skip
PATHS: dict[str, dict[str, Any]] = {
    "chat/completions": {},
    "completions": {},
    "responses": {"tools": [{"type": "mcp", "server_label": "s", "authorization": KEYS["mcp"], "headers": KEYS}]},
    "messages": {"max_tokens": 99, "mcp_servers": [{"name": "s", "url": "x", "authorization_token": KEYS["mcp"]}]},
}


def chunks(answer: dict[str, Any]) -> bytes:
    """The answer as vLLM streams it, its words one by one: a key comes in pieces."""
    (choice,) = answer["choices"]
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "policy"}
    words = re.findall(".{1,5}", choice["message"]["content"])
    deltas = [{"role": "assistant", "content": ""}, *({"content": word} for word in words)]
    pieces = [{"index": 0, "delta": delta, "token_ids": [], "finish_reason": None} for delta in deltas]
    pieces[-1] |= {"finish_reason": "stop", "token_ids": choice["token_ids"], "logprobs": choice["logprobs"]}
    events = [{**head, "choices": [piece]} for piece in pieces] + [{**head, "choices": [], "usage": answer["usage"]}]
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"


@pytest.fixture
def engine() -> Iterator[Upstream]:
    """Says back every header that it was sent, its own key only where it is asked to, and the conversation."""
    from starlette.responses import JSONResponse, Response

    def reply(seen: Any) -> Any:
        headers = {
            k: v for k, v in seen.headers.items() if k != "authorization" or "tell: KEY" in json.dumps(seen.body)
        }
        text = f"you sent {json.dumps(headers)} and {json.dumps(seen.body)}"
        if "fail" in text:
            return JSONResponse({"error": {"message": text}}, 400)
        if seen.path == "completions":
            return {**chat_answer(), "choices": [{"index": 0, "text": text, "finish_reason": "stop"}]}
        answer = chat_answer(text)
        return Response(chunks(answer), media_type="text/event-stream") if seen.body.get("stream") else answer

    server = Upstream(reply=reply).start()
    yield server
    server.stop()


def calls(studio: ServeProcess, session: str) -> tuple[list[int], str]:
    """Every dialect, whole and streamed, answered and failed, authorised in each way: statuses, and all that came."""
    statuses, came = [], ""
    for own in (
        {"authorization": f"Bearer {KEYS['gateway']}", "x-api-key": KEYS["x-api-key"]},
        {"authorization": f"Bearer {KEYS['bearer']}", "x-api-key": KEYS["gateway"]},
        {"authorization": f"Bearer {KEYS['bearer']}", "x-api-key": session},
        {"authorization": f"Bearer {KEYS['bearer']}", "x-api-key": KEYS["x-api-key"]},
    ):
        headers = {**own, "cookie": f"session={KEYS['cookie']}", "proxy-authorization": f"Basic {KEYS['proxy']}"}
        headers |= {"x-my-token": KEYS["header"], "traceparent": "00-1-1-01"}
        for path, more in PATHS.items():
            for word in ("hello", "fail", "tell"):
                for stream in (False, True):
                    # Agents print their environment into the conversation.
                    text = f"{word}: KEY={KEYS['gateway']} OWN={' and '.join(own.values())}"
                    messages = [{"role": "user", "content": text}]
                    request = {"completions": {"prompt": text}, "responses": {"input": text}}.get(
                        path, {"messages": messages}
                    )
                    body = {"model": "m", "stream": stream, **request, **more}
                    body |= {"api_key": KEYS["body"], "extra_headers": {"authorization": KEYS["body"]}}
                    body |= {
                        "metadata": {"api_key": KEYS["metadata"], "task": "7"},
                        "litellm_params": {"openai_api_key": KEYS["litellm"]},
                        "extra_body": {"deep": [{"x-api-key": KEYS["extra"]}]},
                        "extra_query": {"api-key": KEYS["extra"]},
                        "default_headers": {"x-mine": KEYS["default"]},
                    }
                    # Trajectories of their own: the same words again would be a retry, which nobody trains on.
                    if session not in own.values():
                        headers["x-trajectory-uid"] = f"call-{len(statuses)}"
                    answer = studio.http.post(f"/v1/{path}?api_key={KEYS['query']}", json=body, headers=headers)
                    statuses.append(answer.status_code)
                    came += answer.text + str(answer.headers)
    return statuses, came


def beside_calls(studio: ServeProcess, key: dict[str, str]) -> None:
    """What producers, services and trainers may say, a key in each."""

    def post(path: str, body: dict[str, Any]) -> None:
        studio.http.post(path, json=body, headers=key).raise_for_status()

    note = {name: {"api_key": KEYS[name], "nested": [{"authorization": KEYS[name]}], "said": f"with {KEYS[name]}"}
            for name in ("session", "feedback", "register", "submitted", "policy")}  # fmt: skip
    post("/api/v1/sessions", {"trajectory_uid": "beside", "metadata": note["session"]})
    post("/beside/p/v1/register_trajectory", {"metadata": note["register"]})
    step = {"step_index": 0, "trajectory_uid": "white", "prompt_uid": "p", "prompt_ids": [1], "response_ids": [2]}
    post("/api/v1/steps", {"steps": [{**step, "metadata": note["submitted"]}]})
    post("/api/v1/feedback", {"kind": "event", "value": "e", "trajectory_uid": "white", "metadata": note["feedback"]})
    post("/api/v1/policy", {"version": 0, "event": "registered", "metadata": note["policy"]})


def everything_in(pool: Path) -> str:
    """Every column of every table as text: the file itself is compressed."""
    with duckdb.connect(str(pool), read_only=True) as connection:
        tables = [row[0] for row in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()]
        return "".join(str(connection.execute(f'SELECT * FROM "{name}"').fetchall()) for name in tables)


def exported(data: Path, out: Path, env: dict[str, str]) -> tuple[str, str]:
    """What the exports hold, and what the commands said."""
    output = ""
    for form in ("steps_parquet", "openai_messages"):
        done = subprocess.run(
            [sys.executable, "-m", "core.cli", "export", form, "--data", str(data), "--out", str(out / form),
             "--recipe", '{"algorithm": "sft", "options": {"min_reward": null}}'],
            env=env, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        output += done.stdout + done.stderr
    files = [path for path in out.rglob("*") if path.is_file()]
    held = (str(pq.read_table(path).to_pylist()) if path.suffix == ".parquet" else path.read_text() for path in files)
    return "".join(held), output


def test_no_key_is_written_anywhere(serve, engine, tmp_path):
    log = tmp_path / "log"
    env = {**os.environ, "CLAW_STUDIO_API_KEY": KEYS["gateway"], "CLAW_STUDIO_ENGINE_API_KEY": KEYS["engine"]}
    data = tmp_path / "data"
    with log.open("w") as errors:
        studio = serve(engine.base_url, data, env=env, stderr=errors)
        key = {"authorization": f"Bearer {KEYS['gateway']}"}
        session = studio.http.post("/api/v1/sessions", json={}, headers=key).json()["api_key"]
        statuses, came = calls(studio, session)
        beside_calls(studio, key)
        assert set(statuses) == {200, 400, 401}
        assert statuses.count(200) == 48
        eventually(lambda: studio.http.get("/api/v1/stats", headers=key).json()["n_steps"] == 73)
        steps = studio.http.get("/api/v1/steps?limit=100", headers=key).json()["steps"]
        for uid in {step["trajectory_uid"] for step in steps}:
            studio.http.post(
                f"/api/v1/trajectories/{uid}/complete", json={"reward": 1.0}, headers=key
            ).raise_for_status()
        shown = "".join(
            studio.http.get(path, headers=key).text
            for path in (
                "/api/v1/policy",
                "/api/v1/trajectories/white",
                "/v1/models",
                "/api/v1/stats",
                "/api/v1/sessions",
                "/api/v1/steps?limit=100",
                "/metrics",
                "/healthz",
            )
        )
        assert studio.stop() == 0
    exports, output = exported(data, tmp_path / "out", env)
    shown += output
    places = {
        "journal": b"".join(record.payload for record in read_records(data / "journal", {})).decode(),
        "pool": everything_in(data / "pool.duckdb"),
        "answers about it": shown,
        "log": log.read_text(),
        "exports": exports,
        "files": "".join(path.read_bytes().decode("latin-1") for path in data.rglob("*") if path.is_file()),
    }
    # What is looked for can be found: the conversations are there, and so is the hole where a key was.
    assert "you sent" in places["journal"]
    assert "KEY=[secret]" in places["pool"]
    assert "KEY=[secret]" in places["exports"]
    assert "you sent" in came
    assert KEYS["engine"] not in came, "an engine's key reaches no agent"
    for place, text in places.items():
        for where, canary in {**KEYS, "a session": session}.items():
            assert canary not in text, f"the key in {where} stands in {place}"


def test_no_key_of_an_imported_log_is_written_anywhere(tmp_path):
    """Logs of every format, brought in as a user does."""
    files = logs_with_keys(tmp_path)
    data, env = tmp_path / "data", dict(os.environ)
    done = subprocess.run(
        [sys.executable, "-m", "core.cli", "import", *map(str, files), "--data", str(data)],
        env=env, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    exports, output = exported(data, tmp_path / "out", env)
    places = {
        "journal": b"".join(record.payload for record in read_records(data / "journal", {})).decode(),
        "pool": everything_in(data / "pool.duckdb"),
        "what the commands said": done.stdout + done.stderr + output,
        "exports": exports,
        "files": "".join(path.read_bytes().decode("latin-1") for path in data.rglob("*") if path.is_file()),
    }
    for place in ("journal", "pool", "exports"):
        assert places[place].count("KEY=[secret]") >= 5, place
    for place, text in places.items():
        for where, canary in LOGGED.items():
            assert canary not in text, f"the key of {where} stands in {place}"
