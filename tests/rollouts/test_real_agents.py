"""opencode, unmodified, in sandboxes: of two tasks it solves the one whose tool call is in the engine's script."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from core.config import Settings
from core.rollouts.planning import Wish
from core.sandbox import choose
from core.service import Service
from tests.agents.installed import cli
from tests.conftest import eventually, scripted_engine

from .demo_pack import CHECK, REWARD

pytestmark = [pytest.mark.agents, pytest.mark.timeout(1200)]

TASKS = {
    "sort": (
        'Write the words of "input.txt"\nin alphabetical order to sorted.txt.',
        {"sorted.txt": "apple\nfig\npear\n"},
    ),
    "count": ("Write the number of words of input.txt to count.txt.", {"count.txt": "3\n"}),
}
WRITE = {"name": "write", "arguments": {"filePath": "sorted.txt", "content": "apple\nfig\npear\n"}}
READ = {"name": "read", "arguments": {"filePath": "input.txt"}}
SCRIPT: dict[str, Any] = {
    "model": "scripted-1",
    "context_length": 200_000,
    "rules": [
        {"when": {"has_tools": False}, "reply": {"content": "A title"}},
        {"when": {"turn": 0, "has_tools": True}, "reply": {"content": "I read it.", "tool_calls": [READ]}},
        {"when": {"turn": 1, "contains": "sorted.txt"}, "reply": {"content": "", "tool_calls": [WRITE]}},
    ],
    "default": {"reply": {"content": "That is all."}},
}


def write_pack(folder: Path) -> Path:
    for task_id, (query, right) in TASKS.items():
        for name in ("input_files", "reward"):
            (folder / task_id / name).mkdir(parents=True)
        (folder / task_id / "data_entry.json").write_text(json.dumps({"task_id": task_id, "user_query": query}))
        (folder / task_id / "input_files" / "input.txt").write_text("pear\napple\nfig\n")
        (folder / task_id / "reward" / "check.py").write_text(CHECK.format(right=repr(right)))
        (folder / task_id / "reward" / "reward.sh").write_text(REWARD)
    return folder


def test_opencode_on_two_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(cli('opencode')).parent}{os.pathsep}{os.environ['PATH']}")
    if choose().isolation.level == "restricted":
        pytest.skip("opencode needs /tmp, which level restricted does not have")
    pack = write_pack(tmp_path / "pack")
    with scripted_engine(tmp_path, SCRIPT) as engine:
        service = Service.open(Settings(data_dir=tmp_path / "data", port=0, engine=str(engine.base_url)))
        try:
            run = service.rollouts.start(str(pack), Wish(agent="opencode", workers=2))
            eventually(lambda: service.rollouts.status(run)["progress"]["state"] != "running", timeout_s=1000)
            assert service.rollouts.status(run)["error"] is None
            attempts = {one.task_id: one for one in run.attempts()}
            logs = {task: (run.read_log(one) or b"").decode()[-2000:] for task, one in attempts.items()}
            ends = {task: (one.outcome, one.score, one.reason) for task, one in attempts.items()}
            assert ends == {"sort": ("solved", 1.0, None), "count": ("failed", 0.0, None)}, logs
            changes = service.rollouts.workspaces.changes(str(attempts["sort"].workspace))
            assert [(one.path, one.kind) for one in changes] == [("sorted.txt", "added")]
            assert service.ingest.catch_up(60)
            for one in attempts.values():
                trajectory = service.pool.trajectories.get(one.trajectory_uid)
                assert trajectory["reward"] == one.score and trajectory["prompt_uid"] == f"{one.task_id}@opencode"
                assert TASKS[one.task_id][0] in asked_by_user(trajectory["steps"])
                kinds = [step["call_kind"] for step in trajectory["steps"]]
                assert kinds.count("main") == (3 if one.task_id == "sort" else 2)
                assert {step["metadata"]["harness"] for step in trajectory["steps"]} == {"opencode"}
                assert one.cpu_s is None or one.cpu_s > 0
        finally:
            service.close()


def asked_by_user(steps: list[dict[str, Any]]) -> set[str]:
    """The texts of the user's messages in the main calls."""
    messages = [
        one for step in steps if step["call_kind"] == "main" for one in step["messages"] if one["role"] == "user"
    ]
    contents = [one["content"] if isinstance(one["content"], list) else [{"text": one["content"]}] for one in messages]
    return {part["text"] for parts in contents for part in parts if "text" in part}
