"""Reads the attempts of runs as trials: scores from logs or the pool, model calls and tokens from the pool."""

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

REWARDS = {
    "current": "the rewards of the pool now: re-scores, labels and adopted reward policies count",
    "run": "the scores that the run gave",
}
"""Where the scores of a report come from."""
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


def subject_of(
    run: Run,
    packs: PackLibrary,
    trajectories: Trajectories,
    *,
    adopted: Mapping[str, Mapping[str, Any]] | None = None,
) -> Subject:
    """A run with all its attempts; those that were not begun are among them. A lost one counts by its newest try.

    Args:
        adopted: channel -> its adopted reward policy (``Pool.rewards.all_adopted``). Given, an attempt's score is the
            effective reward of its trajectory, and ``about["rewards"]`` names the policies and how many scores differ
            from the run's. None: the scores that the run gave.
    """
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
    rewards = "as the run gave them"
    if adopted is not None:
        current = [
            _current(trial, known.get(uid), adopted) for trial, uid in zip(trials, _uids(slots, newest), strict=True)
        ]
        rewards = _rewards_text(trials, current, known.values(), adopted)
        trials = current
    about = {
        "rewards": rewards,
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
        names = (
            "trajectory_uid",
            "policy_version_min",
            "n_steps",
            "n_prompt_tokens",
            "n_response_tokens",
            "reward",
            "channel",
        )
        for row in page.select(names).to_pylist():
            known[row["trajectory_uid"]] = row
    return known


def runs_of(store: RunStore, pack: str) -> list[Run]:
    """The runs of a pack, newest first."""
    return [run for run in store.all() if run.settings.pack == pack]


def _uids(slots: Sequence[tuple[str, int]], newest: Mapping[tuple[str, int], Attempt]) -> list[str]:
    """The trajectory of each slot; empty where no attempt was begun."""
    return [newest[slot].trajectory_uid if slot in newest else "" for slot in slots]


def _current(trial: Trial, row: Mapping[str, Any] | None, adopted: Mapping[str, Mapping[str, Any]]) -> Trial:
    """The trial with the effective reward of its trajectory.

    Without an adopted policy, a trajectory without a reward keeps the run's score: it may not be completed yet.
    """
    if row is None or (row["reward"] is None and not _policy(row["channel"], adopted)):
        return trial
    return replace(trial, score=row["reward"])


def _policy(channel: str, adopted: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Name and version of the channel's policy; None: the newest reward of a trajectory counts."""
    policy = adopted.get(channel)
    return None if policy is None or policy["name"] is None else f"{policy['name']}@{policy['version']}"


def _rewards_text(
    own: Sequence[Trial],
    current: Sequence[Trial],
    rows: Iterable[Mapping[str, Any]],
    adopted: Mapping[str, Mapping[str, Any]],
) -> str:
    """Which rewards a report shows, as one line."""
    channels = sorted({row["channel"] for row in rows})
    names = [(one, _policy(one, adopted)) for one in channels]
    policies = [f"{f'policy {name}' if name else 'the newest reward'} in channel {one}" for one, name in names]
    n = sum(a.score != b.score for a, b in zip(own, current, strict=True))
    return f"{', '.join(policies) or 'no trajectory is in the pool'}; {n} of {len(own)} differ from the run's scores"


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
