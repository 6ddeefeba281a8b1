"""The demo's tasks and what its script does on them, replayed against the real tools and checks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from core.rewards import score
from core.tasks.demo import demo_script_path
from core.tasks.demo_agent import TOOLS, Workspace
from core.tasks.demo_policy import MAX_TURNS, SUCCESSFUL, WAYS, plans, policy_script
from core.tasks.demo_tasks import demo_tasks
from core.tasks.task import Task

TASKS = demo_tasks()


def attempt(root: Path, task: Task, replies: list[dict]) -> list[str]:
    """Play the tool calls of one way in ``root``; the tools' answers."""
    task.write_inputs(root)
    files = Workspace(root)
    calls = [call for reply in replies for call in reply.get("tool_calls", ())]
    return [files.call(call["name"], json.dumps(call["arguments"])) for call in calls]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.task_uid)
def test_an_untouched_workspace_scores_zero(task: Task, tmp_path: Path) -> None:
    task.write_inputs(tmp_path)
    assert score(tmp_path, task.check).value == 0.0


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.task_uid)
def test_every_way_earns_what_it_should(task: Task, tmp_path: Path) -> None:
    rewards = {}
    for name, replies in zip(WAYS, plans(task), strict=True):
        root = tmp_path / name
        root.mkdir()
        answers = attempt(root, task, replies)
        failed = [answer for answer in answers if answer.startswith("error:")]
        rewards[name] = score(root, task.check).value
        assert len(failed) == (name in {"wrong_path", "wrong_arguments"}), (name, failed)
        assert len(replies) <= MAX_TURNS
    easy = task.task_uid == "demo-write-greeting"
    for name, reward in rewards.items():
        assert reward is not None
        assert (reward == 1.0) == (easy or name in SUCCESSFUL), (name, reward)


def test_seed_draws_other_numbers() -> None:
    assert demo_tasks(0) == demo_tasks(0)
    assert demo_tasks(1) != demo_tasks(0)


def test_inputs_stay_in_the_workspace(tmp_path: Path) -> None:
    task = Task("t", "p", {"../out.txt": "x"}, {})
    root = tmp_path / "workspace"
    root.mkdir()
    with pytest.raises(Exception, match="outside the workspace"):
        task.write_inputs(root)
    assert not (tmp_path / "out.txt").exists()


def test_the_shipped_script_is_what_the_policy_makes() -> None:
    shipped = json.loads(demo_script_path().read_text(encoding="utf-8"))
    assert shipped == json.loads(json.dumps(policy_script(TASKS)))
    called = {
        call["name"]
        for task in TASKS
        for replies in plans(task)
        for reply in replies
        for call in reply.get("tool_calls", ())
    }
    assert called == {tool["function"]["name"] for tool in TOOLS}
