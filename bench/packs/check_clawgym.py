"""Runs the checks of ClawGym's 2,200 tasks on untouched workspaces: ``python bench/packs/check_clawgym.py [--save]``.

``CLAW_UPSTREAM`` names a folder with the git directory ``ClawGym+ClawGym-Agents/repo``; its tasks are not part of this
repository. Each check runs with the checker's folder in the workspace, as in ClawGym (canonical), and outside of it.

``--reference N`` also runs the unchanged ``reward.sh`` of every Nth task by bash, without the studio, at the path that
it has in ClawGym's containers, and compares the numbers. That needs ``bwrap``.

All 2,200 take about a quarter of an hour of one quiet core. ``--every N`` takes every Nth task, and ``--tasks`` adds
tasks by their ids. ``--save`` replaces the packs that were run in the results file and keeps the others.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from core.packs import Pack, PackTask, read_pack
from core.packs.clawgym import WORKSPACE
from core.packs.lint.run import Untouched, findings_of, untouched
from core.packs.tree import write_tree
from core.rewards.run import packages_digest
from core.sandbox import choose, interpreter

RESULTS = Path(__file__).resolve().parents[1] / "results" / "clawgym_checks.json"
DATA = "RL/data"


def upstream(folder: Path) -> tuple[Path, str]:
    """Extract the tasks into a folder; their path and the commit."""
    repo = Path(os.environ.get("CLAW_UPSTREAM", "/nonexistent")) / "ClawGym+ClawGym-Agents" / "repo"
    if not repo.exists():
        raise SystemExit("CLAW_UPSTREAM names no folder with ClawGym+ClawGym-Agents/repo")
    archive = folder / "data.tar"
    with archive.open("wb") as stream:
        subprocess.run(["git", "-C", repo, "archive", "HEAD", DATA], stdout=stream, check=True)
    subprocess.run(["tar", "-x", "-f", archive, "-C", folder], check=True)
    archive.unlink()
    commit = subprocess.run(["git", "-C", repo, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    return folder / DATA, commit.stdout.strip()


def by_bash(task: PackTask) -> float:
    """What the unchanged ``reward.sh`` prints at its own path, in a mount namespace of its own."""
    with tempfile.TemporaryDirectory(prefix="claw-reference-") as made:
        workspace = Path(made, "workspace")
        write_tree(workspace, task.input_files)
        write_tree(workspace / "reward", task.checker_files)
        home = str(Path(WORKSPACE).parent.parent)
        command = [shutil.which("bwrap") or "bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
        command += ["--tmpfs", "/tmp", "--tmpfs", home]
        for path in interpreter()[1]:
            if path.resolve().is_relative_to(home):
                command += ["--ro-bind", str(path.resolve()), str(path.resolve())]
        command += ["--bind", str(workspace), WORKSPACE, "--unshare-net", "--chdir", "/"]
        path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
        env = {"PATH": path, "HOME": home, "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
        command += ["bash", f"{WORKSPACE}/reward/reward.sh"]
        run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=True)
        return float(run.stdout.splitlines()[-1])


def counts(results: list[Untouched]) -> dict[str, Any]:
    """Counts and named tasks of one pack."""
    outside = [(one.task_id, one.outside) for one in results if one.outside is not None]
    findings = [finding for one in results for finding in findings_of(one)]
    by_check: dict[str, int] = {}
    for finding in findings:
        by_check[finding.check] = by_check.get(finding.check, 0) + 1
    modules = sorted({name for one in results for name in one.missing})
    return {
        "tasks": len(results),
        "outcomes": _counted([one.score.outcome for one in results]),
        "gated_known": sum(one.score.details.get("gated") is not None for one in results),
        "gated_above_0": sum((one.score.details.get("gated") or 0) > 0 for one in results),
        "canonical_above_0": {one.task_id: round(one.score.value, 4) for one in results if one.score.value},
        "outside_above_0": {name: round(score.value, 4) for name, score in outside if score.value},
        "finds_itself": [one.task_ids[0] for one in findings if one.check == "checker_finds_itself"],
        "writes": [one.task_ids[0] for one in findings if one.check == "checker_writes"],
        "missing_modules": {name: sum(name in one.missing for one in results) for name in modules},
        "findings": by_check,
    }


def _counted(names: list[str]) -> dict[str, int]:
    return {name: names.count(name) for name in sorted(set(names))}


def chosen(pack: Pack, arguments: argparse.Namespace) -> Pack:
    """Every Nth task, and those that are named."""
    named = set(arguments.tasks.split(","))
    tasks = [one for n, one in enumerate(pack.tasks) if n % arguments.every == 0 or one.task_id in named]
    return Pack(pack.name, tasks, pack.format)


def check(pack: Pack, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run all checks of a pack, one after the other."""
    reference = arguments.reference
    results = []
    differing, n_compared = [], 0
    for number, task in enumerate(pack.tasks):
        result = untouched(task)
        if result is None:
            raise SystemExit(f"{task.task_id} has no check")
        results.append(result)
        if reference and number % reference == 0:
            n_compared += 1
            number_by_bash = by_bash(task)
            if result.score.value is None or not math.isclose(result.score.value, number_by_bash, abs_tol=1e-12):
                differing.append([task.task_id, result.score.value, number_by_bash])
        if number % 20 == 0:
            print(f"{pack.name} {number} of {len(pack.tasks)}", file=sys.stderr, flush=True)
    report = {"every": arguments.every, **counts(results)}
    if reference:
        report["compared_with_bash"] = {"tasks": n_compared, "differing": differing}
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packs", default="clawgym_eval,clawgym_train")
    parser.add_argument("--every", type=int, default=1, help="take every Nth task")
    parser.add_argument("--tasks", default="", help="ids of further tasks")
    parser.add_argument("--reference", type=int, default=0, help="compare every Nth task with bash; 0: none")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="claw-clawgym-") as folder:
        data, commit = upstream(Path(folder))
        packs = {
            name: check(chosen(read_pack(data / name), arguments), arguments) for name in arguments.packs.split(",")
        }
    report = {
        "machine": {"platform": platform.platform(), "cores": os.cpu_count(), "python": platform.python_version()},
        "packages_sha256": packages_digest(),
        "isolation": choose().isolation.as_dict(),
        "clawgym_commit": commit,
        "packs": packs,
    }
    print(json.dumps(report, indent=2))
    if arguments.save:
        if RESULTS.exists():
            report["packs"] = {**json.loads(RESULTS.read_text(encoding="utf-8"))["packs"], **packs}
        RESULTS.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
