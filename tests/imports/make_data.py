"""Makes the files in ``data/`` with the programs that write such files for a living, against our scripted engine.

    python -m venv .cache/peers-rllm && .cache/peers-rllm/bin/pip install rllm-model-gateway==0.1.0
    python -m venv .cache/peers-litellm && .cache/peers-litellm/bin/pip install 'litellm[proxy]==1.106.2'
    .venv/bin/python -m tests.imports.make_data

rLLM's gateway writes ``rllm.db``; as of commit 9beb6e0f, its sources below ``CLAW_UPSTREAM``, ``rllm_choices.db``
as well, beside ``rllm_choices.json``, the engine's own log of the same calls. LiteLLM's logging callback writes
``litellm.jsonl`` (with the proxy's extras, which its asynchronous calls with tools import).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from core.serving.process import EngineProcess

DATA = Path(__file__).parent / "data"
CACHE = Path(__file__).parents[2] / ".cache"
RLLM = CACHE / "peers-rllm" / "bin" / "rllm-model-gateway"
LITELLM = CACHE / "peers-litellm" / "bin" / "python"
TOOLS = [
    {
        "type": "function",
        "function": {"name": "read_file", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}},
    }
]
SCRIPT = {
    "model": "scripted-1",
    "rules": [
        {"when": {"contains": "two, please"}, "variants": [{"content": "The first one."}, {"content": "Another."}]},
        {"when": {"contains": "break"}, "reply": {"content": "-"}, "fault": "status:400"},
        {
            "when": {"turn": 0, "has_tools": True},
            "reply": {"content": "", "tool_calls": [{"name": "read_file", "arguments": {"path": "a.txt"}}]},
        },
    ],
    "default": {"reply": {"content": "It says hello."}},
}


def second(messages: list[Any], message: dict[str, Any]) -> list[Any]:
    call = message["tool_calls"][0]
    return [*messages, message, {"role": "tool", "tool_call_id": call["id"], "content": "hello"}]


@contextlib.contextmanager
def rllm(engine: str, path: Path, **env: str) -> Iterator[httpx.Client]:
    """rLLM's gateway in front of the engine, and a client of it; its traces are in the file when it ends."""
    path.unlink(missing_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        RLLM.with_name("python"),
        "-m",
        "rllm_model_gateway",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--worker",
        engine.removesuffix("/v1"),
        "--db-path",
        path,
        "--store",
        "sqlite",
    ]
    process = subprocess.Popen([*command, "--log-level", "WARNING"], env={**os.environ, **env})
    http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)
    try:
        for _ in range(200):
            try:
                http.get("/health").raise_for_status()
                break
            except httpx.HTTPError:
                time.sleep(0.1)
        yield http
        time.sleep(1.0)
    finally:
        process.terminate()
        process.wait(20)


def make_rllm(engine: str) -> None:
    with rllm(engine, DATA / "rllm.db") as http:
        for session in ("rollout-0", "rollout-1"):
            messages: list[Any] = [{"role": "user", "content": f"What does a.txt say? ({session})"}]
            body = {"model": "scripted-1", "tools": TOOLS, "temperature": 0.7}
            url = f"/sessions/{session}/v1/chat/completions"
            first = http.post(url, json={**body, "messages": messages}).raise_for_status().json()
            messages = second(messages, first["choices"][0]["message"])
            http.post(url, json={**body, "messages": messages}).raise_for_status()


def make_rllm_choices(engine: str) -> None:
    """Several answers to one request: of a chat, of a streamed one, and of two prompts of completions at once."""
    log = f"{engine.removesuffix('/v1')}/__log"
    httpx.delete(log, timeout=120)
    sources = Path(os.environ["CLAW_UPSTREAM"]) / "rllm" / "rllm-model-gateway" / "src"
    with rllm(engine, DATA / "rllm_choices.db", PYTHONPATH=str(sources)) as http:
        http.post("/admin/weight_version", json={"weight_version": 7}).raise_for_status()
        ask: dict[str, Any] = {"model": "scripted-1", "n": 2, "temperature": 0.7, "logprobs": True}
        ask["messages"] = [{"role": "user", "content": "two, please"}]
        http.post("/sessions/chat/v1/chat/completions", json=ask).raise_for_status()
        http.post("/sessions/stream/v1/chat/completions", json={**ask, "stream": True}).raise_for_status()
        ask = {"model": "scripted-1", "n": 2, "prompt": ["One, two, please", "Three, two, please"], "logprobs": 1}
        http.post("/sessions/completions/v1/completions", json=ask).raise_for_status()
    with contextlib.closing(sqlite3.connect(DATA / "rllm_choices.db")) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")  # else whoever reads it leaves files beside it
    rows = httpx.get(log, timeout=120).json()["requests"]
    (DATA / "rllm_choices.json").write_text(json.dumps([row["choices"] for row in rows]) + "\n")


def make_litellm(engine: str) -> None:
    done = subprocess.run(
        [LITELLM, Path(__file__).with_name("litellm_calls.py"), engine, DATA / "litellm.jsonl", json.dumps(TOOLS)],
        env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    )
    done.check_returncode()


def main() -> None:
    DATA.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.json"
        script.write_text(json.dumps(SCRIPT))
        with EngineProcess.start("scripted", args=["--script", script]) as engine:
            assert engine.base_url
            make_rllm(engine.base_url)
            make_rllm_choices(engine.base_url)
            make_litellm(engine.base_url)


if __name__ == "__main__":
    main()
