"""``examples/white_box.py`` as a person runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from core.serving.process import EngineProcess
from tests.conftest import ServeProcess

ROOT = Path(__file__).resolve().parents[2]
# Right for the first sum of seed 0, 26 + 28, and for none after it.
SCRIPT = {"model": "scripted-1", "default": {"reply": {"content": "It is 54."}}}


def test_episodes_become_trajectories(serve: Callable[..., ServeProcess], tmp_path: Path) -> None:
    (tmp_path / "script.json").write_text(json.dumps(SCRIPT))
    with EngineProcess.start("scripted", args=["--script", tmp_path / "script.json"]) as engine:
        studio = serve(str(engine.base_url))
        done = subprocess.run(
            [sys.executable, str(ROOT / "examples" / "white_box.py"), "--studio", studio.base_url, "--episodes", "3"],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert done.returncode == 0, done.stderr
        episodes = json.loads(done.stdout)
        assert [episode["reward"] for episode in episodes] == [1.0, 0.0, 0.0]
        for episode in episodes:
            trajectory = studio.http.get(f"/api/v1/trajectories/{episode['trajectory_uid']}").json()
            assert (trajectory["complete"], trajectory["outcome"], trajectory["reward"]) == (
                True,
                "terminated",
                episode["reward"],
            )
            *before, last = trajectory["steps"]
            assert [step["reward"] for step in before] == ([] if episode["reward"] else [None])
            assert (last["token_source"], last["is_last"]) == ("whitebox", True)
            assert len(last["response_ids"]) == len(last["response_logprobs"])
        assert last["transition"] == "extends"
        (feedback,) = trajectory["feedback"]
        assert (feedback["value"], feedback["step_uid"]) == ("down", last["step_uid"])
