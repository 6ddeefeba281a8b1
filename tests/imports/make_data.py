"""Makes the files in ``data/`` with the programs that write such files for a living, against our scripted engine.

    python -m venv .cache/peers-rllm && .cache/peers-rllm/bin/pip install rllm-model-gateway==0.1.0
    python -m venv .cache/peers-litellm && .cache/peers-litellm/bin/pip install 'litellm[proxy]==1.106.2'
    .venv/bin/python -m tests.imports.make_data

rLLM's gateway writes ``rllm.db``; LiteLLM's logging callback writes ``litellm.jsonl`` (with the proxy's extras, which
its asynchronous calls with tools import).
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import time
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


def make_rllm(engine: str) -> None:
    path = DATA / "rllm.db"
    path.unlink(missing_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        RLLM,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--worker",
        engine.removesuffix("/v1"),
        "--db-path",
        path,
    ]
    process = subprocess.Popen([*command, "--log-level", "WARNING"])
    http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)
    try:
        for _ in range(200):
            try:
                http.get("/health").raise_for_status()
                break
            except httpx.HTTPError:
                time.sleep(0.1)
        for session in ("rollout-0", "rollout-1"):
            messages: list[Any] = [{"role": "user", "content": f"What does a.txt say? ({session})"}]
            body = {"model": "scripted-1", "tools": TOOLS, "temperature": 0.7}
            url = f"/sessions/{session}/v1/chat/completions"
            first = http.post(url, json={**body, "messages": messages}).raise_for_status().json()
            messages = second(messages, first["choices"][0]["message"])
            http.post(url, json={**body, "messages": messages}).raise_for_status()
        time.sleep(1.0)
    finally:
        process.terminate()
        process.wait(20)


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
            make_litellm(engine.base_url)


if __name__ == "__main__":
    main()
