"""The data folder's disk is lost; the journal's target has every answered call."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx

from core.serving.process import EngineProcess
from core.tasks.demo import demo_script_path
from tests.conftest import ServeProcess, eventually


def test_answered_calls_survive_the_loss_of_the_data_folder(serve: Callable[..., ServeProcess], tmp_path: Path) -> None:
    engine = EngineProcess.start("scripted", args=["--script", str(demo_script_path())]).wait_ready()
    shared, data = tmp_path / "shared", tmp_path / "data"
    shared.mkdir()
    env = {"CLAW_STUDIO_JOURNAL_TARGET": str(shared), "CLAW_STUDIO_GATEWAYS": "1"}
    service = serve(engine.base_url, data, env=env)
    body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}
    for _ in range(4):
        answer = httpx.post(f"{service.base_url}/v1/chat/completions", json=body, timeout=60)
        assert answer.status_code == 200
    step = {"trajectory_uid": "white", "step_index": 0, "response_ids": [1, 2]}
    assert service.http.post("/api/v1/steps", json={"steps": [step]}).status_code == 200
    stats = eventually(lambda: (now := service.http.get("/api/v1/stats").json())["n_steps"] == 5 and now)
    assert (stats["journal_target"], stats["unshipped_bytes"], stats["unshipped_s"]) == (str(shared), 0, 0.0)
    metrics = service.http.get("/metrics").text
    assert "claw_journal_unshipped_bytes 0.0" in metrics
    assert "claw_journal_unshipped_seconds 0.0" in metrics
    # Each process writes under a name that no other process ever has.
    names = {path.name.rpartition("-")[0] for path in shared.glob("*.seg")}
    assert sorted(name.partition(".")[0] for name in names) == ["g1", "w0"]
    assert all(len(name.partition(".")[2]) == 10 for name in names)
    service.kill()
    # The gateway process notices that its owner is gone, and ends.
    eventually(lambda: shutil.rmtree(data, ignore_errors=True) or not data.exists())

    environment = ServeProcess.environment({**env, "CLAW_STUDIO_DATA_DIR": str(data), "CLAW_STUDIO_PORT": "0"})
    refused = subprocess.run(
        [sys.executable, "-m", "core.cli", "serve"], env=environment, capture_output=True, text=True, timeout=120
    )
    assert refused.returncode != 0
    assert "doctor --rebuild" in refused.stderr
    subprocess.run([sys.executable, "-m", "core.cli", "doctor", "--rebuild"], env=environment, check=True, timeout=120)
    service = serve(engine.base_url, data, env=env)
    assert service.http.get("/api/v1/stats").json()["n_steps"] == 5
    assert httpx.post(f"{service.base_url}/v1/chat/completions", json=body, timeout=60).status_code == 200
    eventually(lambda: service.http.get("/api/v1/stats").json()["n_steps"] == 6)
    assert service.stop() == 0
    engine.stop()
