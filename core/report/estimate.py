"""Means over tasks with confidence intervals, unbiased pass@k and pass^k, and a paired test."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from core.report.student import t_cdf, t_quantile

LEVEL = 0.95
EXACT_SIGNS = 14
"""Up to this many tasks that differ, the permutation test counts all signs; beyond, it draws ``DRAWS``."""
DRAWS = 20_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over tasks.

    Attributes:
        value: the mean.
        low, high: 95 % confidence interval; None if it can't be estimated: fewer than two tasks, or all are equal.
        n_tasks: tasks that count.
    """

    value: float
    low: float | None
    high: float | None
    n_tasks: int

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self)


def over_tasks(values_G: Sequence[float], *, bounds: tuple[float, float] | None = (0.0, 1.0)) -> Estimate | None:
    """The mean of one value per task; None without tasks.

    Attempts at one task are not independent, so tasks are the clusters: the interval is mean ± t · s / √G with
    G − 1 degrees of freedom, s the standard deviation (ddof 1) of the values of G tasks. With as many attempts of each
    task, this is the cluster-robust interval of the mean over attempts (CR1; Cameron and Miller 2015, eq. 12).

    Args:
        values_G: the values.
        bounds: the interval is cut at these; None: it is not.
    """
    n = len(values_G)
    if not n:
        return None
    values = np.asarray(values_G, dtype=np.float64)
    mean, spread = float(values.mean()), float(values.std(ddof=1)) if n > 1 else 0.0
    if spread == 0.0:
        return Estimate(mean, None, None, n)
    half = t_quantile(0.5 + LEVEL / 2, n - 1) * spread / math.sqrt(n)
    low, high = mean - half, mean + half
    return Estimate(mean, *((low, high) if bounds is None else (max(low, bounds[0]), min(high, bounds[1]))), n)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that one of k attempts succeeds or more, from c successes in n ≥ k: 1 − C(n−c, k) / C(n, k).

    Unbiased (Chen et al. 2021, arXiv 2107.03374, eq. 1).
    """
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Probability that all of k attempts succeed, from c successes in n ≥ k attempts: C(c, k) / C(n, k).

    Unbiased (Yao et al. 2024, τ-bench, arXiv 2406.12045, section 3).
    """
    return math.comb(c, k) / math.comb(n, k)


@dataclass(frozen=True, slots=True)
class Paired:
    """The difference of two runs on the tasks that both have, second minus first.

    Attributes:
        difference: mean of the differences of task means, with its interval.
        better, equal, worse: tasks in which the second run has the higher mean.
        t_p: two-sided p-value of the paired t-test; None if it can't be computed.
        permutation_p: two-sided p-value of the sign-flip permutation test.
        exact: whether all signs were counted; else ``DRAWS`` were drawn.
    """

    difference: Estimate
    better: int
    equal: int
    worse: int
    t_p: float | None
    permutation_p: float
    exact: bool

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self)


def paired(first_G: Sequence[float], second_G: Sequence[float], *, seed: int = 0) -> Paired | None:
    """Compare task means of two runs, task by task; None without tasks."""
    differences = np.asarray(second_G, dtype=np.float64) - np.asarray(first_G, dtype=np.float64)
    estimate = over_tasks(differences.tolist(), bounds=None)
    if estimate is None:
        return None
    t_p = None
    n = len(differences)
    if estimate.low is not None:
        t = estimate.value / (float(differences.std(ddof=1)) / math.sqrt(n))
        t_p = 2 * t_cdf(-abs(t), n - 1)
    moved = differences[differences != 0]
    p, exact = _sign_flips(moved, seed)
    return Paired(
        estimate, int((differences > 0).sum()), n - len(moved), int((differences < 0).sum()), t_p, p, exact
    )  # fmt: skip


def _sign_flips(moved: np.ndarray, seed: int) -> tuple[float, bool]:
    """p-value: how often random signs give a sum at least as far from 0; and whether all signs were counted."""
    if not len(moved):
        return 1.0, True
    size = np.abs(moved)
    far = abs(float(moved.sum())) - 1e-12
    if len(moved) <= EXACT_SIGNS:
        bits = np.arange(2 ** len(moved))[:, None] >> np.arange(len(moved)) & 1
        return float((np.abs((2 * bits - 1) @ size) >= far).mean()), True
    rng, beyond = np.random.default_rng(seed), 0
    for _ in range(DRAWS // 1000):
        signs = rng.integers(0, 2, (1000, len(moved)), dtype=np.int8) * 2 - 1
        beyond += int((np.abs(signs @ size) >= far).sum())
    return (beyond + 1) / (DRAWS + 1), False
