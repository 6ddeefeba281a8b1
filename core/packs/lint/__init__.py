"""Checks of a pack that read it and run nothing."""

from __future__ import annotations

from collections.abc import Iterator

from core.packs.lint.duplicates import THRESHOLD, near_duplicates
from core.packs.lint.files import missing_files
from core.packs.lint.finding import LEVELS, Finding
from core.packs.lint.imports import Available, installed, missing_imports
from core.packs.lint.leaks import answer_leaks
from core.packs.lint.sources import programs, unparsable
from core.packs.lint.workspace import finds_itself
from core.packs.model import Pack, PackTask

__all__ = ["LEVELS", "Finding", "lint"]


def lint(pack: Pack, *, threshold: float = THRESHOLD, available: Available = installed) -> list[Finding]:
    """All findings, errors first.

    Args:
        threshold: lowest Jaccard index of near-duplicates, in [0, 1].
        available: whether the environment of the checks has a top-level module; by default, this environment.
    """
    findings = [one for task in pack.tasks for one in _of_task(task, available)]
    findings += near_duplicates(pack.tasks, threshold)
    return sorted(findings, key=lambda one: (list(LEVELS).index(one.level), one.check))


def _of_task(task: PackTask, available: Available) -> Iterator[Finding]:
    trees = programs(task)
    yield from missing_files(task)
    yield from unparsable(task, trees)
    yield from missing_imports(task, trees, available)
    yield from finds_itself(task, trees)
    yield from answer_leaks(task)
