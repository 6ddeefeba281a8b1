"""The order in which a learning run produces rollouts, waits for updates and evaluates."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from core.client import StudioClient
from core.rewards import Score
from core.tasks import learn
from core.tasks.learn import POLICY, LearnRun, LearnSettings
from core.tasks.pack import read_pack
from core.tasks.task import Task


class Order(LearnRun):
    """A run without studio and trainer, which notes what it would do."""

    def __init__(self, settings: LearnSettings) -> None:
        super().__init__(StudioClient("http://127.0.0.1:9"), settings, name="run")
        self.acts: list[str] = []

    def evaluate(self, version: int, *, end: bool) -> None:
        self.acts.append(f"evaluate {version}")

    def attempt_all(self, attempts: Any) -> list[float | None]:
        assert len(attempts) == self.settings.n_tasks * self.settings.n_rollouts
        self.acts.append("rollouts")
        return [1.0]

    def _wait_for(self, version: int, trainer: Any) -> None:
        self.acts.append(f"wait {version}")


def order(**settings: Any) -> list[str]:
    run = Order(LearnSettings(**settings))
    run.run(7, None)  # type: ignore[arg-type]
    return run.acts


def test_without_staleness_rollouts_wait_for_each_update() -> None:
    assert order(updates=3, evaluate_every=2) == [
        "evaluate 7", "rollouts", "wait 8", "rollouts", "wait 9", "evaluate 9", "rollouts", "wait 10", "evaluate 10",
    ]  # fmt: skip


@pytest.mark.parametrize("ahead", [1, 2, 9])
def test_rollouts_are_as_many_updates_ahead_as_staleness_allows(ahead: int) -> None:
    acts = order(updates=6, max_staleness=ahead)
    assert acts.count("rollouts") == 6
    assert [act for act in acts if act.startswith("wait")] == [f"wait {7 + n}" for n in range(1, 7)]
    # No evaluation in between: the trainer would change the weights meanwhile.
    assert [act for act in acts if act.startswith("evaluate")] == ["evaluate 7", "evaluate 13"]
    gaps = [
        acts[:n].count("rollouts") - int(act.split()[1]) + 7 for n, act in enumerate(acts) if act.startswith("wait")
    ]
    assert max(gaps) == min(ahead, 5)


def test_equal_ends_of_a_task_are_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = read_pack(POLICY / "tasks" / "train")[:2]
    checked: list[str] = []

    def check(workspace: Path, _check: Any) -> Score:
        checked.append(workspace.name)
        time.sleep(0.05)
        return Score(None, error="it broke", outcome="crashed") if workspace.name.startswith("broken") else Score(1.0)

    monkeypatch.setattr(learn, "score", check)
    run = Order(LearnSettings())

    def judged(name: str, task: Task, extra: str = "") -> Score:
        workspace = tmp_path / name
        workspace.mkdir()
        task.write_inputs(workspace)
        if extra:
            (workspace / "more").write_text(extra)
        return run._judge(task, workspace)

    with ThreadPoolExecutor(8) as threads:
        scores = list(threads.map(lambda n: judged(f"same-{n}", one), range(8)))
    assert [score.value for score in scores] == [1.0] * 8 and len(checked) == 1
    judged("more", one, "x"), judged("other", other)
    assert checked[1:] == ["more", "other"]
    # A check that failed says nothing about the next equal end.
    assert judged("broken", one, "y").error == "it broke"
    assert judged("mended", one, "y").value == 1.0
