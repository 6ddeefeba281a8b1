"""The closed loop with TRL's real ``GRPOTrainer``: rollouts, its update, weights, the next version; over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from core.client import StudioClient
from core.tasks.learn import POLICY
from core.tasks.line_agent import run_line_agent
from core.tasks.pack import read_pack
from tests.conftest import ServeProcess
from tests.examples.test_train_policy import EXAMPLES, TrainerProcess

pytestmark = [pytest.mark.beyond, pytest.mark.timeout(1200)]
N_GROUPS, N_ROLLOUTS = 2, 3


def rollouts(studio: ServeProcess, name: str, folder: Path) -> None:
    """Attempts of two tasks of several turns; the rewards differ in each group."""
    client = StudioClient(studio.base_url)
    rewards = {}
    for number, task in enumerate(read_pack(POLICY / "tasks" / "train")[:N_GROUPS]):
        for attempt in range(N_ROLLOUTS):
            workspace = folder / f"{name}-{number}-{attempt}"
            workspace.mkdir()
            task.write_inputs(workspace)
            session = client.session(prompt_uid=f"{name}-{number}")
            agent = StudioClient(studio.base_url, api_key=session.api_key)
            run_line_agent(agent, model="policy", prompt=task.prompt, workspace=workspace, temperature=1.0)
            rewards[session.trajectory_uid] = float(attempt == number)
    client.complete_many(rewards)


def test_trl_trains_through_the_studio(serve: Callable[..., ServeProcess], tmp_path: Path) -> None:
    model = POLICY / "model"
    env = {
        "CLAW_STUDIO_LOCAL_MODEL_DIR": str(model),
        "CLAW_STUDIO_LOCAL_THREADS": "1",
        "CLAW_STUDIO_POLICY_SYNC_TIMEOUT_S": "900",
    }
    studio = serve("local", env=env)
    trainer = TrainerProcess(
        studio.base_url, model, tmp_path / "run", "--updates", "3", program=EXAMPLES / "train_trl.py"
    )
    assert trainer.line() == {"update": 0, "version": 0}
    for update in (1, 2, 3):
        rollouts(studio, f"u{update}", tmp_path)
        line = trainer.line()
        assert (line["update"], line["version"]) == (update, update)
        # TRL's own forward pass gives the log-probs that the engine sampled with.
        assert line["logprob_difference_max"] < 1e-3
    assert trainer.end()[0] == 0
    assert [one["state"] for one in studio.http.get("/api/v1/batches").json()["batches"]] == ["acked"] * 3
    steps = studio.http.get("/api/v1/steps?limit=500").json()["steps"]
    assert {(one["prompt_uid"][:2], one["policy_version"]) for one in steps} == {("u1", 0), ("u2", 1), ("u3", 2)}
    # Several turns, so the rows that TRL trained on have tokens of the environment between those of the policy.
    assert len(steps) > 3 * N_GROUPS * N_ROLLOUTS
