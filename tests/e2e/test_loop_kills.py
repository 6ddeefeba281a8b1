"""The closed loop under kills: trainer, embedded engine, gateway worker and studio are killed at random moments.

Afterwards no batch is leased, what was acknowledged is exactly what was trained on, no step was trained on twice, and
the log-probs of every version's steps are those of that version's weights. ``CLAW_LOOP_KILLS`` is the number of kills.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import httpx
import pytest

from core.client import StudioClient
from core.errors import StudioError
from core.serving.model import make_model
from tests.browser.conftest import free_port
from tests.conftest import ServeProcess, eventually
from tests.examples.test_train_policy import TrainerProcess
from tests.left_out import only_in_ci
from tests.processes import gateway_workers

N_KILLS = int(os.environ.get("CLAW_LOOP_KILLS", "4"))
ROLES = ("trainer", "engine", "worker", "studio")
N_GROUPS, N_ROLLOUTS = 2, 3
LOGPROB_LIMIT = 1e-3
"""Nats between the engine's log-prob and a plain forward pass in float32."""


class Rollouts(threading.Thread):
    """Makes groups of trajectories until stopped; an attempt that fails is repeated as another trajectory."""

    def __init__(self, base_url: str) -> None:
        super().__init__(name="rollouts", daemon=True)
        self.client = StudioClient(base_url, n_retries=40)
        self.stopping = threading.Event()
        self.n_failed = 0
        self.n_groups = 0

    def run(self) -> None:
        while not self.stopping.is_set():
            if self._waiting() >= 2 * N_GROUPS:
                self.stopping.wait(0.2)
                continue
            rewards = {}
            while len(rewards) < N_ROLLOUTS and not self.stopping.is_set():
                with contextlib.suppress(StudioError, httpx.HTTPError):
                    rewards |= self._attempt(f"group-{self.n_groups}")
                    continue
                self.n_failed += 1
                time.sleep(0.2)
            with contextlib.suppress(StudioError):
                self.client.complete_many(rewards)
            self.n_groups += 1

    def _waiting(self) -> int:
        """Complete groups of the version in force that nobody has leased yet."""
        with contextlib.suppress(StudioError):
            plan = self.client.call("POST", "/api/v1/plans", {"recipe": {"n_rollouts": N_ROLLOUTS, "max_staleness": 0}})
            return int(plan["totals"]["n_groups"])
        return 0

    def _attempt(self, group: str) -> dict[str, float]:
        session = self.client.session(prompt_uid=group)
        messages = [{"role": "user", "content": f"{group}: say something."}]
        n_tokens = 0
        for _ in range(2):
            body = {"model": "policy", "messages": messages, "max_tokens": 5, "temperature": 1.0}
            headers = {"Authorization": f"Bearer {session.api_key}"}
            url = f"{session.base_url}/chat/completions"
            answer = httpx.post(url, headers=headers, json=body, timeout=60).raise_for_status().json()
            n_tokens += answer["usage"]["completion_tokens"]
            messages += [answer["choices"][0]["message"], {"role": "user", "content": "More."}]
        return {session.trajectory_uid: float(n_tokens % 3)}


def engine_pids(studio: int) -> list[int]:
    """Embedded engines of a studio."""
    pids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            if parent == studio and b"core.serving.local" in (stat.parent / "cmdline").read_bytes():
                pids.append(int(stat.parent.name))
    return pids


class Loop:
    """Studio with one gateway worker, and a trainer with these options. Rollouts are made elsewhere."""

    def __init__(self, folder: Path, model: Path, port: int, *options: str) -> None:
        self.folder, self.model, self.port, self.options = folder, model, port, options
        self.errors = (folder / "errors").open("w")
        self.studio = self.start_studio()
        self.trainer = self.start_trainer()
        self.killed: Counter[str] = Counter()

    def start_studio(self) -> ServeProcess:
        env = {
            "CLAW_STUDIO_LOCAL_MODEL_DIR": str(self.model),
            "CLAW_STUDIO_LOCAL_THREADS": "1",
            "CLAW_STUDIO_GATEWAYS": "1",
            "CLAW_STUDIO_POLICY_SYNC_TIMEOUT_S": "900",
        }
        return ServeProcess(self.folder / "data", "local", env=env, port=self.port, stderr=self.errors)

    def start_trainer(self) -> TrainerProcess:
        options = ["--updates", "100000", "--keep", "100000", "--lease", "600", "--patience", "600"]
        return TrainerProcess(self.studio.base_url, self.model, self.folder / "run", *options, *self.options)

    def state(self) -> dict[str, Any]:
        """What the trainer has saved."""
        path = self.folder / "run" / "state.json"
        state: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"update": 0, "batches": []}
        return state

    def await_update(self, number: int) -> None:
        """Wait for the trainer's update; it must not end by itself meanwhile."""

        def made() -> bool:
            assert self.trainer.popen.poll() is None, f"the trainer ended: {self.trainer.popen.communicate()[1]}"
            return bool(self.state()["update"] >= number)

        eventually(made, timeout_s=600)

    def kill(self, role: str) -> None:
        """SIGKILL one process; trainer and studio are started again by hand."""
        if role == "trainer":
            self.trainer.popen.kill()
            self.trainer.popen.communicate(timeout=30)
            self.trainer = self.start_trainer()
        elif role == "studio":
            self.studio.kill()
            self.studio = self.start_studio()
        else:
            pid = self.studio.process.pid
            found = eventually(lambda: (gateway_workers if role == "worker" else engine_pids)(pid))
            os.kill(found[0], signal.SIGKILL)
        self.killed[role] += 1

    def stop_trainer(self) -> None:
        """SIGKILL after an update, then one more start, which settles and releases what is left, and its end."""
        self.trainer.popen.kill()
        self.trainer.popen.communicate(timeout=30)
        self.trainer = self.start_trainer()
        self.trainer.line()
        self.trainer.popen.kill()
        self.trainer.popen.communicate(timeout=30)


@only_in_ci("kills and restarts trainer, engine, worker and studio: a minute on a quiet machine")
@pytest.mark.timeout(7200)
def test_nothing_is_lost_or_trained_twice(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    loop = Loop(tmp_path, model, free_port(), "--lr", "1e-3")
    draw = random.Random(N_KILLS)
    rollouts = Rollouts(loop.studio.base_url)
    loop.trainer.line()
    rollouts.start()
    began = time.monotonic()
    try:
        for number in range(N_KILLS):
            loop.await_update(loop.state()["update"] + 1)
            time.sleep(draw.uniform(0, 3.0))
            loop.kill(ROLES[number % len(ROLES)])
        loop.await_update(loop.state()["update"] + 2)
        seconds = time.monotonic() - began
        rollouts.stopping.set()
        rollouts.join(120)
        loop.stop_trainer()
        trained = loop.state()["batches"]
        report = {"kills": dict(loop.killed), "updates": len(trained), "seconds": round(seconds, 1)}
        print(json.dumps({**report, "failed_attempts": rollouts.n_failed}))
        check_batches(loop.studio, trained)
        check_versions(loop, loop.state())
    finally:
        rollouts.stopping.set()
        loop.trainer.popen.kill()
        loop.trainer.popen.communicate(timeout=30)
        loop.studio.stop()
        loop.errors.close()
    assert rollouts.n_groups > len(trained)


def check_batches(studio: ServeProcess, trained: list[str]) -> None:
    batches = studio.http.get("/api/v1/batches", params={"limit": 1000}).json()["batches"]
    states = {one["batch_uid"]: one["state"] for one in batches}
    assert "leased" not in states.values() and "expired" not in states.values()
    assert sorted(uid for uid, state in states.items() if state == "acked") == sorted(trained)
    uses = Counter(
        step["step_uid"] for uid in trained for step in studio.http.get(f"/api/v1/batches/{uid}").json()["steps"]
    )
    assert uses and set(uses.values()) == {1}
    updates = {one["batch_uid"]: one["update_index"] for one in batches}
    assert [updates[uid] for uid in trained] == list(range(1, len(trained) + 1))


def check_versions(loop: Loop, state: dict[str, Any]) -> None:
    """Each step's captured log-probs are those of its version's weights, by a plain forward pass.

    A call that took longer than the sync waits for it was sampled by two versions, and is recorded with both.
    """
    import torch
    from transformers import AutoModelForCausalLM

    client = StudioClient(loop.studio.base_url)
    assert client.policy_state()["version"] == state["version"] == len(state["batches"])
    of_version: dict[int, list[str]] = defaultdict(list)
    for step in client.steps("policy_version = policy_version_end"):
        if step["token_source"] == "engine" and step["n_response_tokens"]:
            of_version[step["policy_version"]].append(step["step_uid"])
    assert len(of_version) > len(ROLES) and None not in of_version
    for version, uids in of_version.items():
        folder = loop.folder / "run" / f"version-{version:06d}" if version else loop.model
        weights = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        for uid in uids[:6] + uids[-6:]:
            step = client.step(uid)
            ids = torch.tensor([step["prompt_ids"] + step["response_ids"]])
            with torch.no_grad():
                logp = torch.log_softmax(weights(ids).logits[0, :-1], -1).gather(1, ids[0, 1:, None])[:, 0]
            captured = torch.tensor(step["response_logprobs"])
            difference = float((logp[-len(captured) :] - captured).abs().max())
            assert difference < LOGPROB_LIMIT, f"step {uid} of version {version} differs by {difference}: {step}"
