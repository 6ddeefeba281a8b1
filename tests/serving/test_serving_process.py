from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from core.errors import EngineError, EngineTimeout
from core.serving.process import EngineProcess


def wait_until(condition, timeout_s: float = 60.0) -> bool:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def test_starts_without_blocking_serves_and_stops():
    process = EngineProcess.start("scripted")
    assert not process.ready
    process.wait_ready()
    assert process.ready and process.alive and process.model == "scripted-1"
    assert httpx.get(f"{process.base_url}/models", timeout=120).status_code == 200
    process.stop()
    process.stop()
    assert not process.alive and gone(process.pid)


def test_a_failed_start_says_why(tmp_path: Path):
    script = tmp_path / "bad.json"
    script.write_text(json.dumps({"rules": [{"fault": "explode"}]}))
    process = EngineProcess.start("scripted", args=["--script", script])
    with pytest.raises(EngineError, match="no fault 'explode'"):
        process.wait_ready()
    process.stop()
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    process = EngineProcess.start("local", args=["--model-dir", tmp_path])
    with pytest.raises(EngineError, match="llama"):
        process.wait_ready()
    assert process.error is not None and "code 2" in process.error
    process.stop()
    with pytest.raises(EngineError, match="no engine kind"):
        EngineProcess.start("vllm")


def test_a_slow_start_is_a_timeout(tmp_path: Path):
    process = EngineProcess.start("local", args=["--model-dir", tmp_path / "m"], startup_timeout_s=0.01)
    with pytest.raises(EngineTimeout, match="not ready"):
        process.wait_ready()
    process.wait_ready(timeout_s=60)
    process.stop()
    assert not process.alive


def test_it_dies_with_its_owner_however_that_ends():
    code = (
        "import sys, time; from core.serving.process import EngineProcess;"
        "p = EngineProcess.start('scripted').wait_ready(); print(p.pid, p.base_url, flush=True); time.sleep(600)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid, base_url = owner.stdout.readline().split()
    assert httpx.get(f"{base_url}/models", timeout=120).status_code == 200
    owner.kill()
    owner.wait()
    owner.stdout.close()
    assert wait_until(lambda: gone(int(pid)))


def test_sigterm_ends_it_even_while_a_request_hangs(tmp_path: Path):
    script = tmp_path / "hang.json"
    script.write_text(json.dumps({"rules": [{"fault": "hang"}]}))
    process = EngineProcess.start("scripted", args=["--script", script]).wait_ready()
    ended: list[type] = []

    def ask() -> None:
        try:
            httpx.post(f"{process.base_url}/chat/completions", json={"messages": []}, timeout=30)
        except httpx.HTTPError as error:
            ended.append(type(error))

    thread = threading.Thread(target=ask)
    thread.start()
    root = str(process.base_url).removesuffix("/v1")
    assert wait_until(lambda: httpx.get(f"{root}/__log", timeout=120).json()["n_requests"] == 1)
    os.kill(process.pid, signal.SIGTERM)
    assert wait_until(lambda: not process.alive)
    thread.join(timeout=60)
    assert ended
    process.stop()
