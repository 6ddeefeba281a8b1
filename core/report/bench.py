"""The report of a run, and the comparison of two."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.report.estimate import paired
from core.report.figures import SOLVED_ABOVE, Prices, figures, task_means, usual_ks
from core.report.trial import Trial

BY: Mapping[str, Callable[[Trial], str]] = {
    "category": lambda trial: trial.category or "none",
    "agent": lambda trial: trial.agent or "none",
    "policy_version": lambda trial: "unknown" if trial.policy_version is None else str(trial.policy_version),
}
"""What a report is split by -> the part that an attempt belongs to."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is reported on.

    Attributes:
        name: of the run.
        trials: its attempts.
        about: the run's settings that a reader needs, as JSON.
    """

    name: str
    trials: Sequence[Trial]
    about: Mapping[str, Any] = field(default_factory=dict)


def report(subject: Subject, *, above: float = SOLVED_ABOVE, prices: Prices | None = None) -> dict[str, Any]:
    """The report of one run as JSON values: ``run, about, above, total``, ``by`` part, and ``tasks``."""
    trials = subject.trials
    ks = usual_ks(trials)
    parts = {
        name: [
            {"name": one, **figures(some, ks=ks, above=above, prices=prices)}
            for one, some in sorted(_split(trials, of).items(), key=lambda part: _order(part[0]))
        ]
        for name, of in BY.items()
    }
    return {
        "run": subject.name,
        "about": dict(subject.about),
        "above": above,
        "total": figures(trials, ks=ks, above=above, prices=prices),
        "by": parts,
        "tasks": _tasks(trials, above, prices),
    }


def compare(
    first: Subject, second: Subject, *, above: float = SOLVED_ABOVE, prices: Prices | None = None
) -> dict[str, Any]:
    """Two reports and their difference, on the tasks that have a score in both.

    ``paired`` is an object of ``estimate.Paired``, by total and category; None if no task has a score in both.
    """
    a, b = (task_means(one.trials) for one in (first, second))
    both = sorted(a.keys() & b.keys())
    categories = {trial.task: BY["category"](trial) for trial in first.trials}
    named = sorted({categories[task] for task in both})
    return {
        "first": report(first, above=above, prices=prices),
        "second": report(second, above=above, prices=prices),
        "n_tasks_only_first": len(a.keys() - b.keys()),
        "n_tasks_only_second": len(b.keys() - a.keys()),
        "paired": _paired(a, b, both),
        "by_category": [
            {"name": name, "paired": _paired(a, b, [task for task in both if categories[task] == name])}
            for name in named
        ],
        "tasks": [
            {"task": task, "first": a[task], "second": b[task], "difference": b[task] - a[task]} for task in both
        ],
    }


def _paired(a: Mapping[str, float], b: Mapping[str, float], tasks: Sequence[str]) -> dict[str, Any] | None:
    made = paired([a[task] for task in tasks], [b[task] for task in tasks])
    return None if made is None else made.to_json()


def _split(trials: Sequence[Trial], of: Callable[[Trial], str]) -> dict[str, list[Trial]]:
    parts: dict[str, list[Trial]] = {}
    for trial in trials:
        parts.setdefault(of(trial), []).append(trial)
    return parts


def _order(name: str) -> tuple[bool, int, str]:
    """Numbers by value, then names."""
    return (not name.isdecimal(), int(name) if name.isdecimal() else 0, name)


def _tasks(trials: Sequence[Trial], above: float, prices: Prices | None) -> list[dict[str, Any]]:
    rows = []
    for task, some in sorted(_split(trials, lambda trial: trial.task).items()):
        scores = [trial.score for trial in some if trial.score is not None]
        spent = figures(some, above=above, prices=prices)
        rows.append(
            {
                "task": task,
                "category": some[0].category,
                "n_attempts": len(some),
                "n_scored": len(scores),
                "n_solved": sum(score > above for score in scores),
                "mean": sum(scores) / len(scores) if scores else None,
                "n_prompt_tokens": spent["n_prompt_tokens"],
                "n_response_tokens": spent["n_response_tokens"],
                "wall_s": spent["wall_s"]["mean"],
                "cost_usd": spent["cost_usd"],
            }
        )
    return rows
