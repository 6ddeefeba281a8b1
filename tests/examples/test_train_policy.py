"""``examples/train_policy.py`` as a person runs it, against a studio with the embedded engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from core.client import StudioClient
from core.serving.model import make_model
from tests.conftest import ServeProcess

PROGRAM = Path(__file__).parents[2] / "examples" / "train_policy.py"


def rollouts(studio: ServeProcess, name: str, *, n_groups: int = 2, n_rollouts: int = 3, n_calls: int = 2) -> None:
    """Conversations with the policy; the reward is 1 if the last answer has an even number of tokens."""
    client = StudioClient(studio.base_url)

    def one(number: int) -> tuple[str, float]:
        session = client.session(prompt_uid=f"{name}-{number % n_groups}")
        messages = [{"role": "user", "content": f"Task {number % n_groups}: say something."}]
        for _ in range(n_calls):
            answer = httpx.post(
                f"{session.base_url}/chat/completions",
                headers={"Authorization": f"Bearer {session.api_key}"},
                json={"model": "policy", "messages": messages, "max_tokens": 6, "temperature": 1.0},
                timeout=120,
            ).raise_for_status()
            messages += [answer.json()["choices"][0]["message"], {"role": "user", "content": "More."}]
        return session.trajectory_uid, float(answer.json()["usage"]["completion_tokens"] % 2 + number % 2)

    with ThreadPoolExecutor(8) as pool:
        client.complete_many(dict(pool.map(one, range(n_groups * n_rollouts))))


class TrainerProcess:
    """``train_policy.py`` with small batches; its output is read line by line."""

    def __init__(self, studio: str, model: Path, out: Path, *options: str) -> None:
        command = [sys.executable, str(PROGRAM), "--studio", studio, "--model", str(model), "--out", str(out)]
        command += ["--groups", "2", "--rollouts", "3", "--patience", "60", "--lr", "1e-4", *options]
        environment = {**os.environ, "PYTHONPATH": str(PROGRAM.parents[1]), "OMP_NUM_THREADS": "1"}
        self.popen = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )

    def line(self) -> dict[str, Any]:
        assert self.popen.stdout is not None
        text = self.popen.stdout.readline()
        if not text:
            raise AssertionError(self.popen.communicate(timeout=60)[1])
        return json.loads(text)

    def end(self) -> tuple[int, str]:
        errors = self.popen.communicate(timeout=120)[1]
        return self.popen.returncode, errors


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("policy") / "model")


@pytest.fixture
def studio(serve: Callable[..., ServeProcess], model: Path) -> ServeProcess:
    return serve("local", env={"CLAW_STUDIO_LOCAL_MODEL_DIR": str(model), "CLAW_STUDIO_LOCAL_THREADS": "1"})


def test_two_updates_over_http(studio: ServeProcess, model: Path, tmp_path: Path) -> None:
    trainer = TrainerProcess(studio.base_url, model, tmp_path / "run", "--updates", "2")
    assert trainer.line() == {"update": 0, "version": 0}
    for update in (1, 2):
        rollouts(studio, f"u{update}")
        line = trainer.line()
        assert (line["update"], line["version"]) == (update, update)
        assert line["logprob_difference_max"] < 1e-3 and line["staleness_max"] == 0
    assert trainer.end() == (0, "")
    batches = studio.http.get("/api/v1/batches").json()["batches"]
    assert [(one["state"], one["update_index"]) for one in batches] == [("acked", 2), ("acked", 1)]
    # Each step was sampled by the version that was in force, in the engine and in the studio.
    steps = studio.http.get("/api/v1/steps?limit=500").json()["steps"]
    assert {(one["prompt_uid"][:2], one["policy_version"]) for one in steps} == {("u1", 0), ("u2", 1)}
