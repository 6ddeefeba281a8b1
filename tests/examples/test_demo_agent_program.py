"""``examples/demo_agent.py`` as a person runs it: against a bare engine, and through a studio."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from core.serving.process import EngineProcess
from core.tasks.demo import demo_script_path
from tests.conftest import ServeProcess, eventually

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineProcess]:
    with EngineProcess.start("scripted", args=["--script", demo_script_path()]) as running:
        yield running


def program(*arguments: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo_agent.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_against_a_bare_server(engine: EngineProcess) -> None:
    code, report = program("--base-url", str(engine.base_url), "--model", "demo-1", "--task", "demo-fix-typos")
    assert code == 0
    assert report == {"outcome": "finished", "n_turns": 4, "reward": 1.0, "error": None}


def test_through_a_studio(engine: EngineProcess, serve: Callable[..., ServeProcess]) -> None:
    studio = serve(str(engine.base_url))
    code, report = program(
        "--studio", studio.base_url, "--model", "demo-1", "--task", "demo-merge-stock", "--seed", "1"
    )
    assert code == 0
    assert (report["outcome"], report["reward"]) == ("finished", 0.5)

    def complete() -> dict[str, Any] | None:
        answer = studio.http.get(f"/api/v1/trajectories/{report['trajectory_uid']}")
        trajectory = answer.json() if answer.status_code == 200 else {}
        return trajectory if trajectory.get("complete") else None

    trajectory = eventually(complete)
    assert trajectory["prompt_uid"] == "demo-merge-stock"
    assert trajectory["reward"] == 0.5
    assert len(trajectory["steps"]) == report["n_turns"]
    assert {step["agent"] for step in trajectory["steps"]} == {"demo-agent"}


def test_an_engine_that_is_gone_is_no_zero(serve: Callable[..., ServeProcess]) -> None:
    studio = serve("http://127.0.0.1:9/v1")  # the discard port: nobody answers
    code, report = program("--studio", studio.base_url, "--model", "demo-1")
    assert code == 1
    assert report["outcome"] == "error"
    assert report["reward"] is None
    assert report["error"]
