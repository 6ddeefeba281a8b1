"""``examples/train_policy.py`` as a person runs it, against a studio with the embedded engine."""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import random
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
from core.trainer import Batch, LogprobsDiffer, Trainer
from core.tree.sequences import Sequences
from tests.conftest import ServeProcess
from tests.effort import sampled
from tests.tree.models import gradient, make, relative, separate_logps, separate_loss

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAM = EXAMPLES / "train_policy.py"


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
    """A trainer with small batches; its output is read line by line."""

    def __init__(self, studio: str, model: Path, out: Path, *options: str, program: Path = PROGRAM) -> None:
        command = [sys.executable, str(program), "--studio", studio, "--model", str(model), "--out", str(out)]
        command += ["--groups", "2", "--rollouts", "3", "--lr", "1e-4", *options]
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
    return serve(
        "local",
        env={
            "CLAW_STUDIO_LOCAL_MODEL_DIR": str(model),
            "CLAW_STUDIO_LOCAL_THREADS": "1",
            "CLAW_STUDIO_POLICY_SYNC_TIMEOUT_S": "900",
        },
    )


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


@pytest.fixture(scope="module")
def program() -> Any:
    """The program as a module."""
    spec = importlib.util.spec_from_file_location("train_policy", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["train_policy"] = module
    spec.loader.exec_module(module)
    return module


def steps_of(seed: int) -> tuple[list[dict[str, Any]], Any, list[float]]:
    """Two groups of trajectories: steps that extend, forks, duplicates; with random log-probs and advantages."""
    draw, steps = random.Random(seed), []
    for group in range(2):
        task = [draw.randrange(97) for _ in range(5)]
        for attempt in range(3):
            context = list(task)
            for k in range(3):
                response = [draw.randrange(97) for _ in range(draw.randint(1, 4))]
                steps.append(
                    {
                        "step_uid": f"{group}-{attempt}-{k}",
                        "trajectory_uid": f"{group}-{attempt}",
                        "prompt_uid": f"g{group}",
                        "step_index": k,
                        "prompt_ids": list(context),
                        "response_ids": response,
                        "response_logprobs": [-draw.random() * 6 for _ in response],
                        "advantage": draw.uniform(-2, 2),
                        "trajectory_reward": 0.0,
                        "policy_version": 0,
                    }
                )
                context = (task if draw.random() < 0.3 else context + response) + [draw.randrange(97)]
    sequences = Sequences.from_lists(
        [s["prompt_ids"] for s in steps], [s["response_ids"] for s in steps], [s["response_logprobs"] for s in steps]
    )
    return steps, sequences, [s["advantage"] for s in steps]


@pytest.mark.parametrize("seed", [0, 1])
def test_loss_and_gradients_on_packed_rows_are_those_of_separate_steps(program: Any, seed: int, tmp_path: Path) -> None:
    import torch

    plain = make("Qwen3", torch.float32)
    plain.save_pretrained(tmp_path / "model")
    steps, sequences, advantages = steps_of(seed)
    expected = separate_loss(
        "ppo_clip", [s for s, _ in separate_logps(plain, sequences)], sequences, advantages, "token"
    )
    gradients = gradient(plain, expected)
    arguments = argparse.Namespace(
        algorithm="grpo", critic=False, kl=0.0, lr=0.0, model=tmp_path / "model", token_budget=40, clip=0.2,
        max_grad_norm=1e9,
    )  # fmt: skip
    learner = program.Learner(arguments.model, arguments)
    trainer = Trainer("http://127.0.0.1:9", "unused", guard=None)
    batch = Batch("b", 0, steps, {}, trainer)
    rows = batch.rows()
    assert len(rows) < len(steps)
    metrics = learner.update(batch, rows, 0)
    assert metrics["token_ratio"] < 0.8
    assert metrics["loss"] == pytest.approx(expected.item(), rel=1e-4, abs=1e-6)
    got = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in learner.model.parameters()])
    assert relative(got, gradients) < 1e-4


def test_exchanged_advantages_do_not_follow_the_true_ones(program: Any) -> None:
    """For every seed; drawn at random, the sum below has a standard deviation of 7."""
    for seed in range(20):
        draw = random.Random(seed)
        steps = []
        for group in range(8):
            rewards = [float(draw.random() < 0.35) for _ in range(8)]
            for attempt, reward in enumerate(rewards):
                steps.append(
                    {
                        "step_uid": f"{group}-{attempt}",
                        "trajectory_uid": f"{group}-{attempt}",
                        "prompt_uid": f"g{group}",
                        "prompt_ids": [1, 2],
                        "response_ids": [3, 4],
                        "response_logprobs": [-1.0, -1.0],
                        "advantage": 2 * (reward - sum(rewards) / 8),
                        "policy_version": 0,
                    }
                )
        rows = Batch("b", 0, steps, {}, Trainer("http://127.0.0.1:9", "unused", guard=None)).rows()
        program.shuffled(rows, random.Random(seed))
        true, exchanged = [one["advantage"] for one in steps], [row.advantages[-1] for row in rows]
        for group in range(8):
            members = slice(8 * group, 8 * group + 8)
            assert sorted(true[members]) == sorted(exchanged[members])
        assert true != exchanged
        assert abs(sum(a * b for a, b in zip(true, exchanged, strict=True))) < 3


def test_log_probs_shifted_by_one_token_are_refused(
    serve: Callable[..., ServeProcess], program: Any, tmp_path: Path
) -> None:
    """Over HTTP: the batch goes back with the reason, and the weights stay as they were."""
    import torch

    model = make("Qwen3", torch.float32)
    model.save_pretrained(tmp_path / "model")
    steps, sequences, _ = steps_of(3)
    studio = serve("http://127.0.0.1:9/v1")
    client = StudioClient(studio.base_url)
    client.policy(0)
    for one, (logps, _) in zip(steps, separate_logps(model, sequences), strict=True):
        values = logps.tolist()
        one["response_logprobs"] = [*values[1:], values[0]]
    wire = ("step_uid", "trajectory_uid", "prompt_uid", "step_index", "prompt_ids", "response_ids", "response_logprobs")
    client.submit([{name: one[name] for name in (*wire, "policy_version")} for one in steps])
    uids = dict.fromkeys(one["trajectory_uid"] for one in steps)
    client.complete_many({uid: float(k % 2) for k, uid in enumerate(uids)})
    arguments = argparse.Namespace(
        algorithm="grpo", critic=False, kl=0.0, lr=0.1, model=tmp_path / "model", token_budget=400, clip=0.2,
        max_grad_norm=1.0,
    )  # fmt: skip
    learner = program.Learner(arguments.model, arguments)
    recipe = {"algorithm": "grpo", "n_rollouts": 3, "batch_size": 2, "max_staleness": 0}
    with Trainer(client, "t", channel="train", recipe=recipe) as trainer:
        batch = trainer.fetch(wait_s=30)
        assert batch is not None
        before = [p.clone() for p in learner.model.parameters()]
        with pytest.raises(LogprobsDiffer) as refusal:
            learner.update(batch, batch.rows(), 0)
        assert all(torch.equal(a, b) for a, b in zip(before, learner.model.parameters(), strict=True))
    stored = studio.http.get(f"/api/v1/batches/{batch.uid}").json()
    assert stored["state"] == "released" and stored["events"][-1]["detail"] == {"reason": refusal.value.message}


@pytest.mark.parametrize("algorithm", sampled(["step_gae", "gigpo", "sft"], 3, "two runs of two updates"))
def test_other_algorithms_train_and_resume(studio: ServeProcess, model: Path, tmp_path: Path, algorithm: str) -> None:
    """An interrupted run goes on after its last update, with the version in force and nothing leased."""
    for update in (1, 2):
        # For sft only one group is sure to have an attempt that is good enough.
        options = ["--algorithm", algorithm, "--updates", str(update), "--groups", "1" if algorithm == "sft" else "2"]
        trainer = TrainerProcess(studio.base_url, model, tmp_path / "run", *options)
        assert trainer.line() == {"update": update - 1, "version": update - 1}
        rollouts(studio, f"u{update}")
        line = trainer.line()
        assert (line["update"], line["version"]) == (update, update) and math.isfinite(line["loss"])
        assert trainer.end() == (0, "")
    states = [one["state"] for one in studio.http.get("/api/v1/batches").json()["batches"]]
    assert states.count("acked") == 2 and "leased" not in states
