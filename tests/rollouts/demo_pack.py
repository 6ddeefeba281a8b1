"""The demo's eight tasks as ClawGym folders, and a bare loop that attempts them without sandbox and studio."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from core.tasks import demo_agent
from core.tasks.demo_policy import MODEL, WAYS, plans
from core.tasks.demo_tasks import demo_tasks
from core.tasks.task import Task

# One value per file that the task asks for. Blank space at the ends of lines does not count.
CHECK = """
import json, sys
from pathlib import Path
RIGHT = {right}
def lines(text):
    return [line.rstrip() for line in text.strip().splitlines()]
values = {{}}
for name, text in RIGHT.items():
    path = Path(sys.argv[1], name)
    values[name] = float(path.is_file() and lines(path.read_text()) == lines(text))
print(json.dumps(values))
"""
REWARD = """#!/usr/bin/env bash
set -e
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
python3 "$HERE/check.py" "${1:-$(dirname "$HERE")}" | python3 -c '
import json, sys
values = json.load(sys.stdin)
print(sum(values.values()) / len(values))'
"""


def write_pack(folder: Path, n_tasks: int = 8) -> Path:
    """The pack's folder."""
    for task in demo_tasks()[:n_tasks]:
        place = folder / task.task_uid
        for name, text in task.input_files.items():
            path = place / "input_files" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (place / "reward").mkdir(parents=True)
        (place / "data_entry.json").write_text(json.dumps({"task_id": task.task_uid, "user_query": task.prompt}))
        (place / "reward" / "check.py").write_text(CHECK.format(right=repr(right_files(task))))
        (place / "reward" / "reward.sh").write_text(REWARD)
    return folder


def right_files(task: Task) -> dict[str, str]:
    """The files that a successful attempt writes."""
    replies = plans(task)[list(WAYS).index("direct")]
    calls = [call["arguments"] for reply in replies for call in reply.get("tool_calls", ())]
    return {one["path"]: one["content"] for one in calls if "content" in one}


def bare_attempt(base_url: str, task: Path, seed: int, max_turns: int) -> float:
    """Score of one attempt: the agent as a plain process beside the engine, then ``reward.sh`` by bash.

    ``python3`` of the check is this Python, as in a run of the studio.
    """
    entry = json.loads((task / "data_entry.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder)
        for path in sorted((task / "input_files").rglob("*")):
            target = workspace / path.relative_to(task / "input_files")
            target.mkdir() if path.is_dir() else target.write_bytes(path.read_bytes())
        settings = {"base_url": base_url, "api_key": "none", "model": MODEL, "prompt": entry["user_query"]}
        settings |= {"seed": seed, "max_turns": max_turns}
        _run([sys.executable, "-I", "-S", demo_agent.__file__], workspace, json.dumps(settings))
        return float(_run(["bash", str(task / "reward" / "reward.sh"), str(workspace)], workspace, "").split()[-1])


def _run(command: Sequence[str], folder: Path, given: str) -> str:
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    ended = subprocess.run(command, cwd=folder, input=given, capture_output=True, text=True, check=True, env=env)
    return ended.stdout
