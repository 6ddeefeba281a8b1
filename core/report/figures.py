"""The figures of some attempts: mean, solved, pass@k, pass^k, what has no score, time and cost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from core.errors import InvalidInput
from core.report.estimate import Estimate, over_tasks, pass_at_k, pass_hat_k
from core.report.trial import Trial

SOLVED_ABOVE = 0.5
"""An attempt is solved if its score is above this (ClawGym)."""
SKIPPED = "skipped"
"""Attempts that were not begun, or have not ended."""


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars for a million tokens of prompts and of answers."""

    prompt: float
    response: float

    def __post_init__(self) -> None:
        for name in ("prompt", "response"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise InvalidInput(f"the price of a {name} is {value}", field=f"price_{name}", hint="0 or more")


def figures(
    trials: Sequence[Trial], *, ks: Sequence[int] = (), above: float = SOLVED_ABOVE, prices: Prices | None = None
) -> dict[str, Any]:
    """The figures as JSON values. None means unknown.

    Args:
        trials: the attempts.
        ks: the k of pass@k and pass^k.
        above: an attempt is solved if its score is above this.
        prices: of tokens; without them ``cost_usd`` is None.

    Returns:
        ``n_tasks``, ``n_attempts``, ``n_scored``; ``outcomes``: outcome -> number, ``skipped`` among them.
        ``mean``, ``solved``: means over tasks of the task's mean score and of its share of solved attempts, each an
        ``Estimate``; only attempts with a score count.
        ``mean_missing_as_zero``: the same as ``mean``, with 0 for every attempt that has no score.
        ``n_correct``: tasks whose mean score is above ``above``.
        ``passes``: for each k an object with ``k``, ``any`` (pass@k), ``all`` (pass^k); tasks with fewer than k scored
        attempts are left out.
        ``wall_s``: ``mean, median, p90, total``. Totals: ``cpu_s``, ``n_calls``, ``n_prompt_tokens``,
        ``n_response_tokens``.
    """
    scores = _scores(trials)
    means = [math.fsum(each) / len(each) for each in scores.values()]
    wins = {task: sum(score > above for score in each) for task, each in scores.items()}
    every = Counter(trial.task for trial in trials)
    with_zeros = [math.fsum(scores.get(task, ())) / n for task, n in every.items()]
    totals = {
        name: _total(trials, name) for name in ("wall_s", "cpu_s", "n_calls", "n_prompt_tokens", "n_response_tokens")
    }
    return {
        "n_tasks": len(every),
        "n_attempts": len(trials),
        "n_scored": sum(map(len, scores.values())),
        "outcomes": dict(sorted(Counter(trial.outcome or SKIPPED for trial in trials).items())),
        "mean": _json(over_tasks(means)),
        "solved": _json(over_tasks([wins[task] / len(each) for task, each in scores.items()])),
        "mean_missing_as_zero": _json(over_tasks(with_zeros)),
        "n_correct": sum(mean > above for mean in means),
        "passes": [_passes(scores, wins, k) for k in ks],
        "wall_s": _durations(trials) | {"total": totals.pop("wall_s")},
        **totals,
        "cost_usd": _cost(totals, prices),
    }


def usual_ks(trials: Iterable[Trial]) -> list[int]:
    """1, 2, 4, ... and the largest number of scored attempts that a task has."""
    most = max((len(each) for each in _scores(trials).values()), default=0)
    return sorted({*(2**i for i in range(most.bit_length()) if 2**i <= most), *([most] if most else [])})


def task_means(trials: Iterable[Trial]) -> dict[str, float]:
    """Task -> mean score of its attempts that have one."""
    return {task: math.fsum(each) / len(each) for task, each in _scores(trials).items()}


def _scores(trials: Iterable[Trial]) -> dict[str, list[float]]:
    scores: dict[str, list[float]] = {}
    for trial in trials:
        if trial.score is not None:
            scores.setdefault(trial.task, []).append(trial.score)
    return scores


def _passes(scores: Mapping[str, Sequence[float]], wins: Mapping[str, int], k: int) -> dict[str, Any]:
    enough = [(len(each), wins[task]) for task, each in scores.items() if len(each) >= k]
    return {
        "k": k,
        "any": _json(over_tasks([pass_at_k(n, c, k) for n, c in enough])),
        "all": _json(over_tasks([pass_hat_k(n, c, k) for n, c in enough])),
    }


def _json(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else estimate.to_json()


def _durations(trials: Sequence[Trial]) -> dict[str, float | None]:
    times = [trial.wall_s for trial in trials if trial.wall_s is not None]
    if not times:
        return {"mean": None, "median": None, "p90": None}
    return {"mean": math.fsum(times) / len(times), "median": median(times), "p90": float(np.quantile(times, 0.9))}


def _total(trials: Sequence[Trial], name: str) -> float | int | None:
    values = [value for trial in trials if (value := getattr(trial, name)) is not None]
    if not values:
        return None
    return math.fsum(values) if name.endswith("_s") else sum(values)


def _cost(totals: Mapping[str, Any], prices: Prices | None) -> float | None:
    n_prompt, n_response = totals["n_prompt_tokens"], totals["n_response_tokens"]
    if prices is None or n_prompt is None or n_response is None:
        return None
    return float((n_prompt * prices.prompt + n_response * prices.response) / 1e6)
