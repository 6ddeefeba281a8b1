"""Cost of an attempt for each installed harness: ``python bench/rollouts/bench_harnesses.py [NAME ...] [--save]``.

Each agent gets one small task through the studio and makes five model calls of a scripted engine, four of them with its
shell tool. Its processor time and its peak of memory are those of the sandbox's cgroup. The attempt must be solved.
``core/harnesses`` takes the default number of workers from these numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from core.config import Settings
from core.harnesses import REGISTRY, HarnessMissing
from core.rollouts.planning import Wish
from core.sandbox import choose
from core.service import Service
from core.serving.process import EngineProcess
from tests.rollouts.demo_pack import CHECK, REWARD

RESULTS = Path(__file__).resolve().parents[1] / "results" / "harnesses.json"
MODEL = "scripted-1"
COMMANDS = ("cat numbers.txt", "ls", "printf 'eight\\n' > next.txt", "cat next.txt")
SHELLS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "opencode": ("bash", "command", {"description": "run it"}),
    "claude-code": ("Bash", "command", {"description": "run it"}),
    "codex": ("exec_command", "cmd", {}),
    "openclaw": ("exec", "command", {}),
    "mini-swe-agent": ("bash", "command", {}),
    "qwen-code": ("run_shell_command", "command", {"is_background": False}),
}
"""Harness -> its shell tool, the argument with the command, further arguments."""
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""The command by which mini-swe-agent ends."""
LIMIT_S = 1500.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="harnesses; by default all that are installed")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    arguments = parser.parse_args()
    names = [name for name in arguments.names or SHELLS if installed(name)]
    results = {}
    with tempfile.TemporaryDirectory() as where, ExitStack() as opened:
        folder = Path(where)
        write_pack(folder / "pack", names)
        engine = opened.enter_context(engine_for(names, folder))
        service = Service.open(Settings(data_dir=folder / "data", port=0, engine=str(engine.base_url)))
        opened.callback(service.close)
        runs = {}
        for name in names:
            wish = Wish(agent=name, model=MODEL, tasks=[name], workers=1, time_s=LIMIT_S)
            runs[name] = service.rollouts.start(str(folder / "pack"), wish)
        for name, run in runs.items():
            while service.rollouts.status(run)["progress"]["state"] == "running":
                time.sleep(0.5)
            (attempt,) = run.attempts()
            results[name] = {
                "outcome": attempt.outcome,
                "reason": attempt.reason,
                "memory_mb": None if attempt.memory_bytes is None else attempt.memory_bytes >> 20,
                "processor_s": attempt.cpu_s,
                "wall_s": attempt.wall_s,
            }
            if attempt.outcome != "solved":
                print(name, service.rollouts.status(run)["error"], (run.read_log(attempt) or b"").decode()[-3000:])
    machine = {"processors": os.cpu_count(), "load": round(os.getloadavg()[0], 1), "kernel": platform.release()}
    result = {"machine": machine, "isolation": choose().isolation.level, "harnesses": results}
    print(json.dumps(result, indent=2))
    if arguments.save:
        RESULTS.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def installed(name: str) -> bool:
    try:
        REGISTRY[name].find()
    except HarnessMissing as error:
        print(f"{name}: {error.message}")
        return False
    return True


def write_pack(folder: Path, names: Sequence[str]) -> None:
    """A task for each harness, whose text names it: write the word that follows that of numbers.txt."""
    for harness in names:
        task = folder / harness
        for name in ("input_files", "reward"):
            (task / name).mkdir(parents=True)
        (task / "data_entry.json").write_text(json.dumps({"task_id": harness, "user_query": query_of(harness)}))
        (task / "input_files" / "numbers.txt").write_text("seven\n")
        (task / "reward" / "check.py").write_text(CHECK.format(right=repr({"next.txt": "eight\n"})))
        (task / "reward" / "reward.sh").write_text(REWARD)


def query_of(harness: str) -> str:
    return f"Task for {harness}: read numbers.txt, write the word that follows it to next.txt, and say which it is."


def engine_for(names: Sequence[str], folder: Path) -> EngineProcess:
    """A scripted engine that calls each harness's shell tool four times, then answers."""
    rules: list[dict[str, Any]] = [{"when": {"has_tools": False}, "reply": {"content": "A title"}}]
    for name in names:
        tool, argument, more = SHELLS[name]
        replies: list[dict[str, Any]] = [
            {"content": "Next.", "tool_calls": [{"name": tool, "arguments": {argument: command, **more}}]}
            for command in COMMANDS
        ]
        replies.append({"content": "The word is eight."})
        if name == "mini-swe-agent":
            done = {"name": tool, "arguments": {argument: SUBMIT}}
            replies[-1]["tool_calls"] = [done]
        for turn, reply in enumerate(replies):
            rules.append({"when": {"turn": turn, "has_tools": True, "contains": query_of(name)}, "reply": reply})
    script = {"model": MODEL, "context_length": 200_000, "rules": rules, "default": {"reply": {"content": "Done."}}}
    path = folder / "script.json"
    path.write_text(json.dumps(script))
    engine = EngineProcess.start("scripted", args=["--script", path])
    engine.wait_ready()
    return engine


if __name__ == "__main__":
    main()
