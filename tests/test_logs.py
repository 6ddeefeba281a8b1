"""Log lines: one JSON object each, with what an operator looks for and nothing that is secret."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from core.serving.process import EngineProcess
from core.tasks.demo import demo_script_path

KEY = "sk-canary-0123456789abcdef"


@pytest.mark.parametrize("gateways", ["1", "2"])
def test_a_call_is_one_line_with_its_uids_and_no_key(tmp_path: Path, gateways: str) -> None:
    with EngineProcess.start("scripted", args=["--script", str(demo_script_path())]) as engine:
        assert engine.base_url is not None
        command = [sys.executable, "-m", "core.cli", "serve", "--data", str(tmp_path / "data"), "--port", "0"]
        command += ["--engine", engine.base_url, "--log-format", "json", "--verbose", "--gateways", gateways]
        errors = tmp_path / "stderr"
        with errors.open("wb") as stderr:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
        assert process.stdout is not None
        base_url = json.loads(process.stdout.readline())["base_url"]
        body = {"model": "demo", "messages": [{"role": "user", "content": f"a text with {KEY} in it"}]}
        headers = {"Authorization": f"Bearer {KEY}", "X-Trajectory-Uid": "t-log", "X-Agent": "logger"}
        answer = httpx.post(f"{base_url}/v1/chat/completions", json=body, headers=headers, timeout=30)
        process.terminate()
        assert process.wait(30) == 0
        process.stdout.close()
    written = errors.read_text()
    assert KEY not in written and "a text with" not in written
    # Behind the last line a library written in C++ may complain of what Python left behind.
    lines = [json.loads(line) for line in written.partition("nanobind:")[0].splitlines()]
    assert all({"at", "level", "logger", "message"} <= line.keys() for line in lines)
    (call,) = (line for line in lines if line["logger"] == "core.calls")
    assert call["trajectory_uid"] == "t-log" and call["step_uid"] == answer.headers["x-step-uid"]
    assert (call["engine"], call["status"], call["agent"], call["level"]) == ("engine", 200, "logger", "info")
    assert call["latency_ms"] > 0 and call["n_response_tokens"] > 0
