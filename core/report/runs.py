"""Two runs (experiments) compared: reward, success, length, tokens, errors and cost per task, with their difference."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from core.errors import NotFound
from core.report.estimate import LEVEL, Estimate, over_tasks
from core.report.figures import SOLVED_ABOVE
from core.report.student import t_quantile
from core.types import View


@dataclass(frozen=True, slots=True)
class Measure:
    """What runs are compared by. ``share``: between 0 and 1. ``better``: 1 more is better, -1 less is, 0 neither."""

    title: str
    doc: str
    share: bool = False
    better: int = 0


MEASURES: Mapping[str, Measure] = {
    "reward": Measure("Reward", "Mean reward of the scored attempts at a task", better=1),
    "success_rate": Measure(
        "Success", f"Share of the scored attempts with a reward above {SOLVED_ABOVE:g}", share=True, better=1
    ),
    "n_steps": Measure("Length", "Steps of an attempt"),
    "n_tokens": Measure("Tokens", "Prompt and response tokens of all calls of an attempt"),
    "error_rate": Measure("Errors", "Share of the calls that failed or were aborted", share=True, better=-1),
    "cost_usd": Measure(
        "Cost", "US dollars of an attempt, by list prices or the prices given; unknown if a price or a token count is",
        better=-1,
    ),
}  # fmt: skip

Values = dict[str, float]
"""Task -> its value in one run; tasks without a known value are missing."""


class TokenPrice(Protocol):
    """A model's price (``core.scoring.prices.Price``)."""

    def of(self, n_prompt: int | None, n_response: int | None) -> float | None:
        """US dollars of these tokens; None if a number is unknown."""
        ...


class RunAttempts(Protocol):
    """``pool.runs``."""

    def attempts(self, run: str, view: View) -> pa.Table:
        """A row per trajectory."""
        ...

    def tokens(self, run: str, view: View) -> pa.Table:
        """A row per trajectory and model."""
        ...


@dataclass(frozen=True, slots=True)
class Difference:
    """One measure of two runs. A run's value is the mean over its tasks; each task counts once.

    Attributes:
        measure: key of ``MEASURES``.
        first, second: of each run, with 95 % intervals; None: no task has a value.
        difference: second minus first with its 95 % band; None: one of the runs has no value.
        paired: it is the mean difference on the tasks that have a value in both runs; else of two independent means.
    """

    measure: str
    first: Estimate | None
    second: Estimate | None
    difference: Estimate | None
    paired: bool


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Two runs side by side.

    Attributes:
        n_attempts, n_tasks: trajectories and tasks of each run.
        n_common: tasks that both have.
        rows: one per measure, in the order of ``MEASURES``.
    """

    n_attempts: tuple[int, int]
    n_tasks: tuple[int, int]
    n_common: int
    rows: Sequence[Difference]


def compare_runs(
    runs: RunAttempts,
    first: str,
    second: str,
    *,
    price: Callable[[str], TokenPrice | None],
    view: View | None = None,
) -> RunComparison:
    """Compare two runs by every measure.

    Where two or more tasks have a value in both runs, their differences are averaged (paired t interval over tasks).
    Otherwise the band is Welch's for two independent means over tasks (Welch 1947).

    Args:
        price: model -> its price; None: unknown.
        view: only trajectories with at least one step in it.

    Raises:
        NotFound: a run has no trajectory in the view.
    """
    chosen = view or View()
    (n, a), (m, b) = (_by_task(runs, run, chosen, price) for run in (first, second))
    return RunComparison(
        (n, m),
        (len(a["n_steps"]), len(b["n_steps"])),
        len(a["n_steps"].keys() & b["n_steps"].keys()),
        [_difference(name, a[name], b[name]) for name in MEASURES],
    )


def _by_task(
    runs: RunAttempts, run: str, view: View, price: Callable[[str], TokenPrice | None]
) -> tuple[int, dict[str, Values]]:
    """The number of attempts, and measure -> task -> value."""
    attempts = runs.attempts(run, view).to_pylist()
    if not attempts:
        raise NotFound(
            f"No trajectory of the run {run!r} is in the view.", field="run", hint="Inspect › Runs lists them."
        )
    costs = _costs(runs.tokens(run, view).to_pylist(), price)
    of_task: dict[str, list[dict[str, Any]]] = {}
    for one in attempts:
        of_task.setdefault(one["task"] or "", []).append(one | {"cost_usd": costs.get(one["trajectory_id"])})
    values: dict[str, Values] = {name: {} for name in MEASURES}
    for task, members in of_task.items():
        rewards = [one["reward"] for one in members if one["reward"] is not None]
        if rewards:
            values["reward"][task] = fmean(rewards)
            values["success_rate"][task] = fmean(reward > SOLVED_ABOVE for reward in rewards)
        values["n_steps"][task] = fmean(one["n_steps"] for one in members)
        values["n_tokens"][task] = fmean(one["n_tokens"] for one in members)
        values["error_rate"][task] = sum(one["n_failed"] for one in members) / sum(one["n_steps"] for one in members)
        known = [one["cost_usd"] for one in members]
        if None not in known:
            values["cost_usd"][task] = fmean(known)
    return len(attempts), values


def _costs(rows: Sequence[Mapping[str, Any]], price: Callable[[str], TokenPrice | None]) -> dict[int, float | None]:
    """Trajectory -> US dollars of its calls; None if a model has no price or a call no token count."""
    prices = {model: price(model) for model in {row["model"] for row in rows} if model is not None}
    costs: dict[int, float | None] = {}
    for row in rows:
        one = prices.get(row["model"])
        cost = one.of(row["n_prompt_tokens"], row["n_response_tokens"]) if one is not None and row["known"] else None
        before = costs.get(row["trajectory_id"], 0.0)
        costs[row["trajectory_id"]] = None if cost is None or before is None else before + cost
    return costs


def _difference(name: str, a: Values, b: Values) -> Difference:
    bounds = (0.0, 1.0) if MEASURES[name].share else None
    first, second = (over_tasks(list(one.values()), bounds=bounds) for one in (a, b))
    common = sorted(a.keys() & b.keys())
    if len(common) > 1:
        differences = [b[task] - a[task] for task in common]
        return Difference(name, first, second, over_tasks(differences, bounds=None), True)
    return Difference(name, first, second, _welch(list(a.values()), list(b.values())), False)


def _welch(a: Sequence[float], b: Sequence[float]) -> Estimate | None:
    """Difference of two independent means, second minus first, with Welch's interval; None without values."""
    if not a or not b:
        return None
    value, n = fmean(b) - fmean(a), min(len(a), len(b))
    if n < 2:
        return Estimate(value, None, None, n)
    parts = [float(np.var(one, ddof=1)) / len(one) for one in (a, b)]
    if sum(parts) == 0.0:
        return Estimate(value, None, None, n)
    df = sum(parts) ** 2 / sum(part**2 / (len(one) - 1) for part, one in zip(parts, (a, b), strict=True))
    half = t_quantile(0.5 + LEVEL / 2, df) * math.sqrt(sum(parts))
    return Estimate(value, value - half, value + half, n)
