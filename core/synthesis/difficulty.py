"""How hard tasks are, from rollouts: the share of scored attempts that solved a task, over all agents and models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.errors import InvalidInput, NotFound
from core.packs import PackTask
from core.packs.library import PackLibrary
from core.rollouts import Attempt, Run

BAND = (0.1, 0.9)
"""Solve rates of tasks that are neither too hard nor too easy to learn from: in a group of attempts, some differ."""


@dataclass(slots=True)
class Difficulty:
    """What rollouts show of one task.

    Attributes:
        n_scored: attempts with a score. Attempts without one do not count: unscored is not 0.
        n_solved: of these, the attempts whose score is above the threshold of their run.
        by_model: ``agent, model`` -> ``[n_solved, n_scored]``.
        solved: trajectories of the attempts that solved it, in order of their runs.
    """

    n_scored: int = 0
    n_solved: int = 0
    by_model: dict[str, list[int]] = field(default_factory=dict)
    solved: list[str] = field(default_factory=list)

    @property
    def solve_rate(self) -> float | None:
        """Share of the scored attempts that solved the task, in [0, 1]; None without any."""
        return self.n_solved / self.n_scored if self.n_scored else None

    def add(self, attempt: Attempt, run: Run) -> None:
        """Count one attempt of a run; one without a score changes nothing."""
        if attempt.score is None:
            return
        solved = attempt.score > run.settings.solved_above
        self.n_scored += 1
        self.n_solved += solved
        counts = self.by_model.setdefault(f"{run.settings.harness}, {run.settings.model}", [0, 0])
        counts[0] += solved
        counts[1] += 1
        if solved:
            self.solved.append(attempt.trajectory_uid)

    def to_json(self) -> dict[str, Any]:
        """``n_scored, n_solved, solve_rate, by_model``."""
        counts = {"n_scored": self.n_scored, "n_solved": self.n_solved, "solve_rate": self.solve_rate}
        return {**counts, "by_model": self.by_model}


def difficulty_of(tasks: Sequence[PackTask], runs: Iterable[Run], packs: PackLibrary) -> dict[str, Difficulty]:
    """Task id -> what all runs show of it.

    An attempt counts if its task has the same id and the same content, in whatever pack version: a task that was
    changed since is another task. The newest try of each attempt counts.
    """
    made = {task.task_id: Difficulty() for task in tasks}
    hashes = {task.task_id: task.content_hash for task in tasks}
    for run in sorted(runs, key=lambda one: (one.settings.created_at, one.settings.run)):
        if hashes.keys().isdisjoint(run.settings.task_ids):
            continue
        try:
            known = packs.get(run.settings.pack_version).by_id
        except (NotFound, InvalidInput):
            continue  # without the tasks of the run, nobody knows whether they are the same
        same = {task_id for task_id, one in hashes.items() if task_id in known and known[task_id].content_hash == one}
        for (task_id, _), attempt in sorted(run.newest().items()):
            if task_id in same:
                made[task_id].add(attempt, run)
    return made


def in_band(rates: Mapping[str, float | None], band: tuple[float, float]) -> set[str]:
    """The tasks whose solve rate is in the band, both ends included. Without a rate, a task is in ``(0, 1)`` only.

    Raises:
        InvalidInput: the band is not ``0 <= low <= high <= 1``.
    """
    low, high = band
    if not 0 <= low <= high <= 1:
        raise InvalidInput(
            f"the band from {low:g} to {high:g}", field="min_solve_rate", hint="0 <= lowest <= highest <= 1"
        )
    everything = (low, high) == (0, 1)
    return {name for name, rate in rates.items() if (everything if rate is None else low <= rate <= high)}
