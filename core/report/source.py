"""Reads the attempts of runs as trials: scores from the runs' logs, model calls and tokens from the pool."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from core.errors import NotFound
from core.packs.library import PackLibrary
from core.pool.trajectories import Trajectories
from core.report.bench import Subject
from core.report.trial import Trial
from core.rollouts import Attempt, Run, RunStore
from core.types import View

AT_ONCE = 2000
"""Trajectories that are read with one query."""


@dataclass(frozen=True, slots=True)
class TaskScore:
    """What all runs know of a task: attempts that have ended, those with a score, and their mean."""

    n_ended: int
    n_scored: int
    mean: float | None


@dataclass(frozen=True, slots=True)
class Tried:
    """One attempt at a task, with what the pool knows of its trajectory."""

    attempt: Attempt
    trial: Trial


def subject_of(run: Run, packs: PackLibrary, trajectories: Trajectories) -> Subject:
    """A run with all its attempts; those that were not begun are among them. A lost one counts by its newest try."""
    settings = run.settings
    categories = categories_of(packs, settings.pack_version)
    newest = run.newest()
    slots = [(task, number) for task in settings.task_ids for number in range(settings.attempts)]
    begun = [newest[slot] for slot in slots if slot in newest]
    known = calls_of(trajectories, [one.trajectory_uid for one in begun])
    trials = [
        _trial(newest[slot], categories, known)
        if slot in newest
        else Trial(slot[0], categories.get(slot[0], ""), settings.harness, begun=False)
        for slot in slots
    ]
    about = {
        "pack": f"{settings.pack} {settings.pack_version}",
        "agent": settings.harness,
        "model": settings.model,
        "attempts of each task": settings.attempts,
        "attempts made again": sum(one.retry for one in begun) or None,
    }
    return Subject(settings.run, trials, about)


def attempts_at(
    runs: Iterable[Run], packs: PackLibrary, trajectories: Trajectories, pack: str, task_id: str
) -> list[Tried]:
    """Attempts at one task in all runs of a pack, whatever its version; the newest first, retries included."""
    tried = [
        attempt
        for run in runs
        if run.settings.pack == pack and task_id in run.settings.task_ids
        for attempt in run.attempts()
        if attempt.task_id == task_id
    ]
    tried.sort(key=lambda one: one.started_at or 0.0, reverse=True)
    known = calls_of(trajectories, [one.trajectory_uid for one in tried])
    categories = {one.pack_version: categories_of(packs, one.pack_version) for one in tried}
    return [Tried(one, _trial(one, categories[one.pack_version], known)) for one in tried]


def scores_by_task(runs: Iterable[Run], pack: str) -> dict[str, TaskScore]:
    """Task -> what all runs of a pack know of it."""
    ended: dict[str, list[float | None]] = {}
    for run in runs:
        if run.settings.pack == pack:
            for attempt in run.newest().values():
                if attempt.outcome is not None:
                    ended.setdefault(attempt.task_id, []).append(attempt.score)
    made = {}
    for task, scores in ended.items():
        known = [score for score in scores if score is not None]
        made[task] = TaskScore(len(scores), len(known), math.fsum(known) / len(known) if known else None)
    return made


def categories_of(packs: PackLibrary, version: str) -> dict[str, str]:
    """Task -> its category; empty if the pack version is not stored."""
    try:
        return {task.task_id: task.category or "" for task in packs.get(version).tasks}
    except NotFound:
        return {}


def calls_of(trajectories: Trajectories, uids: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Trajectory -> its row in the pool; those without a call are missing."""
    known: dict[str, Mapping[str, Any]] = {}
    for at in range(0, len(uids), AT_ONCE):
        page = trajectories.page(View({"trajectory_uid": list(uids[at : at + AT_ONCE])}), limit=None)
        names = ("trajectory_uid", "policy_version_min", "n_steps", "n_prompt_tokens", "n_response_tokens")
        for row in page.select(names).to_pylist():
            known[row["trajectory_uid"]] = row
    return known


def runs_of(store: RunStore, pack: str) -> list[Run]:
    """The runs of a pack, newest first."""
    return [run for run in store.all() if run.settings.pack == pack]


def _trial(attempt: Attempt, categories: Mapping[str, str], known: Mapping[str, Mapping[str, Any]]) -> Trial:
    trial = Trial(
        attempt.task_id,
        categories.get(attempt.task_id, ""),
        attempt.harness,
        outcome=attempt.outcome,
        score=attempt.score,
        wall_s=attempt.wall_s,
        cpu_s=attempt.cpu_s,
    )
    row = known.get(attempt.trajectory_uid)
    if row is None:
        return trial
    return replace(
        trial,
        policy_version=row["policy_version_min"],
        n_calls=row["n_steps"],
        n_prompt_tokens=row["n_prompt_tokens"],
        n_response_tokens=row["n_response_tokens"],
    )
