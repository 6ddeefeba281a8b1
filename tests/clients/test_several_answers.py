"""Several answers to one request (``n=2``), from libraries that really send it.

Both answers were sampled, so both train: as branches of one trajectory, each of which goes on where the client went on
from it. The reference is the engine's own log.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import pytest

from core.serving.process import EngineProcess
from tests.batch.keeping_all import SFT_ALL
from tests.conftest import ServeProcess, eventually

from .installed import PROGRAMS, python_of

pytestmark = pytest.mark.agents

TASK = "Count the lions, two and three and four."
SAID = ["There are 9 lions.", "Nine of them."]
SURE = "I am sure."
SCRIPT = {
    "model": "policy",
    "rules": [
        {"when": {"contains": TASK, "turn": 0}, "variants": [{"content": text} for text in SAID]},
        {"when": {"last_contains": "Are you sure?"}, "reply": {"content": SURE}},
    ],
    "default": {"content": SURE},
}


@dataclass(frozen=True)
class Run:
    """What a client printed, the engine's log, the steps in order, and the plan of GRPO over them."""

    how: str
    printed: dict[str, Any]
    log: list[dict[str, Any]]
    steps: list[dict[str, Any]]
    plan: dict[str, Any]


@pytest.fixture(scope="module", params=["sdk", "sdk_stream", "sdk_ids", "langchain"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    python = python_of("python", "langchain_openai")
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "script.json").write_text(json.dumps(SCRIPT))
    with EngineProcess.start("scripted", args=["--script", folder / "script.json"]) as engine:
        serve = ServeProcess(folder / "data", str(engine.base_url))
        try:
            # Calls of token ids say nothing that is compared, so they have a session key.
            named = request.param == "sdk_ids"
            key = serve.http.post("/api/v1/sessions", json={}).json()["api_key"] if named else "unused"
            done = subprocess.run(
                [python, str(PROGRAMS / "with_n.py"), request.param, serve.base_url, key, TASK],
                cwd=folder,
                env={"PATH": os.environ["PATH"], "HOME": str(folder)},
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
            log = httpx.get(str(engine.base_url).removesuffix("/v1") + "/__log", timeout=120).json()["requests"]
            eventually(lambda: serve.http.get("/api/v1/stats").json()["n_steps"] == 4)
            listed = serve.http.get("/api/v1/steps", params={"order": "created_at asc"}).json()["steps"]
            steps = [serve.http.get(f"/api/v1/steps/{step['step_uid']}").json() for step in listed]
            (uid,) = {step["trajectory_uid"] for step in steps}
            serve.http.post(f"/api/v1/trajectories/{uid}/complete", json={"reward": 1.0}).raise_for_status()
            recipe = {**SFT_ALL, "n_rollouts": 1}
            plan = serve.http.post("/api/v1/plans", json={"recipe": recipe}).raise_for_status().json()
            yield Run(request.param, json.loads(done.stdout), log, steps, plan)
        finally:
            serve.stop()


def test_the_client_got_both_answers_of_one_request(run: Run) -> None:
    assert [row["body"].get("n") for row in run.log] == [2, None, None]
    assert sorted(run.printed["answers"]) == sorted(SAID)
    assert run.printed["further"] == [SURE, SURE]


def test_both_are_kept_as_they_were_sampled(run: Run) -> None:
    sampled = [choice for row in run.log for choice in row["choices"]]
    kept = sorted(run.steps, key=lambda step: step["step_index"])
    assert [step["response_ids"] for step in kept] == [choice["response_ids"] for choice in sampled]
    assert [step["prompt_ids"] for step in kept] == [choice["prompt_ids"] for choice in sampled]
    for step, choice in zip(kept, sampled, strict=True):
        assert np.array_equal(np.float32(step["response_logprobs"]), np.float32(choice["logprobs"]))
    assert [step["response_message"]["content"] for step in kept][:2] == run.printed["answers"]


def test_both_train_in_one_group_as_branches_of_their_own(run: Run) -> None:
    first, second, on_second, on_first = sorted(run.steps, key=lambda step: step["step_index"])
    assert len({step["prompt_uid"] for step in run.steps}) == 1
    assert {step["call_kind"] for step in run.steps} == {"main"}
    assert all(step["trainable"] for step in run.steps)
    assert second["transition"] == "forked"
    for step, earlier in ((on_second, second), (on_first, first)):
        assert step["transition"] == "extends"
        assert step["parent_step_uid"] == earlier["step_uid"]
        before = [*earlier["prompt_ids"], *earlier["response_ids"]]
        assert step["prompt_ids"][: len(before)] == before
        assert step["n_shared_tokens"] == len(before)
    (group,) = run.plan["groups"]
    (trajectory,) = group["trajectories"]
    assert sorted(trajectory["step_uids"]) == sorted(step["step_uid"] for step in run.steps)
