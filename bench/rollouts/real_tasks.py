"""Real ClawGym tasks attempted by real CLIs: ``python bench/rollouts/real_tasks.py codex [--save]``.

The engine is scripted: for the tasks in ``solutions/`` it calls the CLI's shell tool with that program, for the others
it only answers. So some attempts are solved, one in part, and the rest not at all. Each is scored by the task's own
checker. The reference has neither studio nor agent: the solution is run by bash in a plain folder with the task's
inputs, then the unchanged ``reward.sh`` by bash at its own path (``bench/packs/check_clawgym.py``). Every score must be
equal.

``CLAW_UPSTREAM`` names a folder with ``ClawGym+ClawGym-Agents/repo``; its tasks are not part of this repository. The
CLIs are searched on PATH. ``--first`` and ``--tasks`` take a part of the twenty; ``--save`` adds it to what is saved.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.packs.check_clawgym import by_bash, upstream
from bench.rollouts.bench_harnesses import MODEL, SHELLS
from core.config import Settings
from core.packs import Pack, PackTask, read_pack
from core.packs.model import PackFile
from core.packs.tree import write_tree
from core.rollouts import Attempt
from core.rollouts.planning import Wish
from core.sandbox import choose
from core.service import Service
from core.serving.process import EngineProcess

RESULTS = Path(__file__).resolve().parents[1] / "results" / "real_tasks.json"
SOLUTIONS = {path.stem: path.read_text() for path in sorted(Path(__file__).with_name("solutions").glob("*.sh"))}
N_TASKS = 20
TOLERANCE = 1e-9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("harness", choices=sorted(SHELLS))
    parser.add_argument("--first", type=int, default=0, help="leave out so many of the tasks")
    parser.add_argument("--tasks", type=int, default=N_TASKS, help="how many tasks")
    parser.add_argument("--workers", type=int, default=2, help="attempts at a time")
    parser.add_argument("--save", action="store_true", help=f"add the result to {RESULTS.name}")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as where:
        folder = Path(where)
        place, commit = upstream(folder)
        pack = read_pack(place / "clawgym_eval")
        tasks = chosen(pack)[arguments.first : arguments.first + arguments.tasks]
        begin = time.perf_counter()
        attempts = attempted(folder, place / "clawgym_eval", tasks, arguments.harness, arguments.workers)
        wall_s = time.perf_counter() - begin
        rows = {task.task_id: row_of(task, attempts[task.task_id]) for task in tasks}
    print(json.dumps(rows, indent=2))
    print(f"{len(rows)} attempts in {wall_s:.0f} s, solved {sum(one['outcome'] == 'solved' for one in rows.values())}")
    wrong = [name for name, one in rows.items() if not one["equal"]]
    if arguments.save:
        save(arguments.harness, rows, commit)
    if wrong:
        raise SystemExit(f"scores differ from the reference: {', '.join(wrong)}")


def chosen(pack: Pack) -> list[PackTask]:
    """Those with a solution and the first of the others, in the pack's order, spread evenly."""
    solved = [pack.by_id[name] for name in SOLUTIONS]
    others = [task for task in pack.tasks if task.task_id not in SOLUTIONS]
    every = N_TASKS // len(solved)
    tasks: list[PackTask] = []
    for at, task in enumerate(solved):
        tasks += [task, *others[at * (every - 1) : (at + 1) * (every - 1)]]
    return tasks


def attempted(folder: Path, pack: Path, tasks: list[PackTask], harness: str, workers: int) -> dict[str, Attempt]:
    """Task -> its attempt, through the studio."""
    with ExitStack() as opened:
        engine = opened.enter_context(engine_for(tasks, harness, folder))
        service = Service.open(Settings(data_dir=folder / "data", port=0, engine=str(engine.base_url)))
        opened.callback(service.close)
        wish = Wish(agent=harness, model=MODEL, tasks=[task.task_id for task in tasks], workers=workers)
        run = service.rollouts.start(str(pack), wish)
        while service.rollouts.status(run)["progress"]["state"] == "running":
            time.sleep(0.5)
        if error := service.rollouts.status(run)["error"]:
            raise SystemExit(error)
        assert service.ingest.catch_up(60)
        attempts = {one.task_id: one for one in run.attempts()}
        for one in attempts.values():
            trajectory = service.pool.trajectories.get(one.trajectory_uid)
            assert trajectory["reward"] == one.score and trajectory["complete"], one
            if one.score is None:
                print(one.task_id, one.reason, (run.read_log(one) or b"").decode(errors="replace")[-2000:])
        return attempts


def engine_for(tasks: list[PackTask], harness: str, folder: Path) -> EngineProcess:
    """A scripted engine that runs each task's solution with the harness's shell tool."""
    tool, argument, more = SHELLS[harness]
    rules: list[dict[str, Any]] = [{"when": {"has_tools": False}, "reply": {"content": "A title"}}]
    for task in tasks:
        if task.task_id in SOLUTIONS:
            call = {"name": tool, "arguments": {argument: SOLUTIONS[task.task_id], **more}}
            when = {"turn": 0, "has_tools": True, "contains": task.query.splitlines()[0][:80]}
            rules.append({"when": when, "reply": {"content": "I do it.", "tool_calls": [call]}})
    script = {"model": MODEL, "context_length": 200_000, "rules": rules, "default": {"reply": {"content": "Done."}}}
    path = folder / "script.json"
    path.write_text(json.dumps(script))
    engine = EngineProcess.start("scripted", args=["--script", path])
    engine.wait_ready()
    return engine


def row_of(task: PackTask, attempt: Attempt) -> dict[str, Any]:
    expected = reference(task)
    equal = attempt.score is not None and abs(attempt.score - expected) <= TOLERANCE
    return {
        "scripted": task.task_id in SOLUTIONS,
        "outcome": attempt.outcome,
        "reason": attempt.reason,
        "score": attempt.score,
        "reference": expected,
        "equal": equal,
        "processor_s": attempt.cpu_s,
        "memory_mb": None if attempt.memory_bytes is None else attempt.memory_bytes >> 20,
    }


def reference(task: PackTask) -> float:
    """What the unchanged ``reward.sh`` prints after the solution was run by bash."""
    with tempfile.TemporaryDirectory(prefix="claw-reference-") as made:
        workspace = Path(made, "workspace")
        write_tree(workspace, task.input_files)
        if task.task_id in SOLUTIONS:
            subprocess.run(["bash", "-c", SOLUTIONS[task.task_id]], cwd=workspace, check=False)
        files = {
            path.relative_to(workspace).as_posix(): PackFile(path.read_bytes())
            for path in sorted(workspace.rglob("*"))
            if path.is_file()
        }
        return by_bash(replace(task, input_files=files))


def save(harness: str, rows: dict[str, Any], commit: str) -> None:
    """Add the rows to the results file."""
    saved = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"harnesses": {}}
    if saved.get("clawgym_commit", commit) != commit:
        saved["harnesses"] = {}
    machine = {"processors": os.cpu_count(), "kernel": platform.release()}
    together = {**saved["harnesses"].get(harness, {}).get("tasks", {}), **rows}
    outcomes = [one["outcome"] for one in together.values()]
    saved["harnesses"][harness] = {
        "n_tasks": len(together),
        "outcomes": {name: outcomes.count(name) for name in sorted(set(outcomes), key=str)},
        "n_equal_to_reference": sum(one["equal"] for one in together.values()),
        "tasks": dict(sorted(together.items())),
    }
    about = {"machine": machine, "isolation": choose().isolation.level, "clawgym_commit": commit}
    RESULTS.write_text(json.dumps({**about, "harnesses": saved["harnesses"]}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
