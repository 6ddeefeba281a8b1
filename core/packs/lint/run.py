"""Checks of a pack that run the checkers: on the untouched workspace of each task, in sandboxes."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.packs.checks import check_of
from core.packs.lint.finding import ERROR, NOTE, WARNING, Finding
from core.packs.model import GRADE, HARBOR, REWARD_SH, Pack, PackTask
from core.packs.tree import write_tree
from core.rewards import Score, score

RUNNABLE = (REWARD_SH, GRADE, HARBOR)
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Untouched:
    """What a check says of the workspace that no agent has changed.

    Attributes:
        task_id: the task.
        score: by the task's own check; for ClawGym, with the checker's folder in the workspace.
        outside: for ClawGym, the same with the checker's folder outside the workspace; else None.
        missing: modules that the checker imports and that are not installed.
    """

    task_id: str
    score: Score
    outside: Score | None
    missing: Sequence[str]

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON values; of a score without a value, its outcome."""
        outside = None if self.outside is None else _short(self.outside)
        return {"task_id": self.task_id, "score": _short(self.score), "outside": outside, "missing": list(self.missing)}


def _short(score: Score) -> float | str:
    return score.outcome if score.value is None else score.value


def untouched(task: PackTask, *, isolation: str = "process", timeout_s: float = TIMEOUT_S) -> Untouched | None:
    """Run the task's check on its inputs; None if it has no program.

    Raises:
        IsolationMissing: the machine does not have this level of isolation.
    """
    if task.checker not in RUNNABLE:
        return None
    with tempfile.TemporaryDirectory(prefix="claw-lint-") as folder:
        workspace = Path(folder, "workspace")
        write_tree(workspace, task.input_files)
        check = check_of(task, Path(folder, "check")) | {
            "isolation": isolation,
            "timeout_s": timeout_s,
            "watch": True,
        }
        first = score(workspace, check)
        outside = score(workspace, {**check, "placement": "outside"}) if task.checker == REWARD_SH else None
    packages = first.environment.get("packages", {})
    inputs = {path.partition("/")[0].removesuffix(".py") for path in task.input_files}
    missing = sorted(name for name, version in packages.items() if version is None and name not in inputs)
    return Untouched(task.task_id, first, outside, missing)


def lint_by_running(
    pack: Pack,
    *,
    isolation: str = "process",
    timeout_s: float = TIMEOUT_S,
    workers: int = 2,
    report: Callable[[Untouched], None] = lambda _: None,
) -> list[Finding]:
    """All findings from running the checks, errors first. A check without a program is not run.

    Args:
        isolation: lowest level of the sandboxes.
        timeout_s: limit of each run, seconds.
        workers: checks that run at the same time.
        report: called with each result, in the order of the tasks.
    """
    findings: list[Finding] = []

    def run(task: PackTask) -> Untouched | None:
        return untouched(task, isolation=isolation, timeout_s=timeout_s)

    with ThreadPoolExecutor(workers) as pool:
        for result in pool.map(run, pack.tasks):
            if result is not None:
                report(result)
                findings += findings_of(result)
    return sorted(findings, key=lambda one: ((ERROR, WARNING, NOTE).index(one.level), one.check, one.task_ids))


def findings_of(result: Untouched) -> Iterator[Finding]:
    """What is wrong with a check, from its run on the untouched workspace."""
    ids = (result.task_id,)
    value, outside = result.score.value, result.outside
    if value is None:
        level = NOTE if result.score.outcome == "refused" else ERROR
        yield Finding(f"check_{result.score.outcome}", level, ids, f"the check gives no score: {result.score.error}")
    elif value > 0:
        yield Finding("untouched_scores", ERROR, ids, f"the untouched workspace scores {value:.4f}")
    other = None if outside is None else outside.value
    if value is not None and other is not None and not math.isclose(value, other, abs_tol=1e-12):
        message = f"the checker finds itself: {value:.4f} with reward/ in the workspace, {other:.4f} without"
        yield Finding("checker_finds_itself", WARNING, ids, message)
    written = result.score.details.get("written") or ()
    if written:
        yield Finding("checker_writes", NOTE, ids, f"the check writes into the workspace: {', '.join(written[:5])}")
    if result.missing:
        names = ", ".join(result.missing)
        yield Finding("checker_import", WARNING, ids, f"the check imports {names}, which is not installed")
