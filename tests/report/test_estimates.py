"""The estimators against what they estimate: enumerated subsets, tables of Student's t, simulated coverage."""

from __future__ import annotations

import math
from itertools import combinations, product

import numpy as np
import pytest

from core.report.estimate import over_tasks, paired, pass_at_k, pass_hat_k
from core.report.student import t_cdf, t_quantile


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_passes_are_the_means_over_all_subsets(n):
    """Of every choice of k attempts: how often one succeeds, how often all do."""
    for c in range(n + 1):
        wins = [True] * c + [False] * (n - c)
        for k in range(1, n + 1):
            chosen = list(combinations(wins, k))
            assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, chosen)) / len(chosen), abs=1e-12)
            assert pass_hat_k(n, c, k) == pytest.approx(sum(map(all, chosen)) / len(chosen), abs=1e-12)


def test_passes_are_unbiased():
    """Over all outcomes of n attempts that succeed with probability p, the mean is 1 − (1 − p)^k and p^k."""
    n, k, p = 5, 3, 0.3
    chance = {c: math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)}
    assert sum(q * pass_at_k(n, c, k) for c, q in chance.items()) == pytest.approx(1 - (1 - p) ** k)
    assert sum(q * pass_hat_k(n, c, k) for c, q in chance.items()) == pytest.approx(p**k)


# Two-sided 95 % and 99 % quantiles of the tables (NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2).
TABLE = [
    (1, 12.706, 63.657), (2, 4.303, 9.925), (4, 2.776, 4.604), (10, 2.228, 3.169), (30, 2.042, 2.750),
    (100, 1.984, 2.626),
]  # fmt: skip


@pytest.mark.parametrize(("df", "t95", "t99"), TABLE)
def test_students_t_is_that_of_the_tables(df, t95, t99):
    assert t_quantile(0.975, df) == pytest.approx(t95, abs=6e-4)
    assert t_quantile(0.995, df) == pytest.approx(t99, abs=6e-4)
    assert t_quantile(0.025, df) == -t_quantile(0.975, df)


@pytest.mark.parametrize("df", [1, 2, 3, 7, 40, 2199])
def test_students_t_is_the_integral_of_its_density(df):
    grid = np.linspace(-1.7, 2.3, 200_001)
    front = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(df * math.pi)
    area = float(np.trapezoid(front * (1 + grid**2 / df) ** (-(df + 1) / 2), grid))
    assert t_cdf(2.3, df) - t_cdf(-1.7, df) == pytest.approx(area, abs=1e-9)


def test_the_interval_holds_the_mean_as_often_as_it_says():
    """Tasks of different difficulty, six attempts each: the mean over all tasks is inside 95 % of the intervals."""
    rng = np.random.default_rng(3)
    inside, naive, n = 0, 0, 1500
    for _ in range(n):
        difficulty = rng.beta(0.7, 0.7, 25)
        attempts = rng.random((25, 6)) < difficulty[:, None]
        interval = over_tasks(attempts.mean(axis=1).tolist(), bounds=None)
        inside += interval.low <= 0.5 <= interval.high
        half = 1.96 * attempts.std(ddof=1) / math.sqrt(attempts.size)
        naive += abs(attempts.mean() - 0.5) <= half
    assert inside / n == pytest.approx(0.95, abs=0.02)
    assert naive / n < 0.8, "attempts of one task are not independent"


def test_the_interval_is_the_cluster_robust_one():
    """CR1 by its definition: the residuals of each task are summed before they are squared."""
    rng = np.random.default_rng(5)
    scores = rng.random((12, 4)) * rng.random((12, 1))
    made = over_tasks(scores.mean(axis=1).tolist())
    residual = (scores - scores.mean()).sum(axis=1)
    error = math.sqrt(12 / 11 * float((residual**2).sum())) / scores.size
    assert made.high - made.value == pytest.approx(2.200985 * error, rel=1e-5), "2.200985: t of 11 degrees"


def test_what_can_not_be_estimated_is_none():
    assert over_tasks([]) is None and paired([], []) is None
    assert over_tasks([0.5]).low is None and over_tasks([1.0, 1.0, 1.0]).high is None
    assert paired([0.5], [0.75]).t_p is None
    cut = over_tasks([0.0, 0.0, 0.0, 1.0])
    assert cut.low == 0.0


def test_the_permutation_test_counts_all_signs():
    rng = np.random.default_rng(1)
    first, second = rng.random(9), rng.random(9)
    second[4] = first[4]
    made = paired(first.tolist(), second.tolist())
    moved = (second - first)[[0, 1, 2, 3, 5, 6, 7, 8]]
    sums = [abs(sum(s * d for s, d in zip(signs, moved, strict=True))) for signs in product((1, -1), repeat=8)]
    p = sum(one >= abs(moved.sum()) - 1e-12 for one in sums) / len(sums)
    assert made.permutation_p == pytest.approx(p) and made.exact
    assert (made.better + made.worse, made.equal) == (8, 1)


def test_the_paired_t_test_is_uniform_without_a_difference():
    """Its p-value is at most 0.1 in a tenth of the cases; the drawn permutations agree with it."""
    rng = np.random.default_rng(2)
    values = [paired(rng.random(10).tolist(), rng.random(10).tolist()).t_p for _ in range(1500)]
    assert np.mean(np.array(values) <= 0.1) == pytest.approx(0.1, abs=0.02)
    large = paired(rng.random(60).tolist(), (rng.random(60) + 0.1).tolist())
    assert not large.exact and large.permutation_p == pytest.approx(large.t_p, abs=0.03)


def test_scipy_gives_the_same():
    stats = pytest.importorskip("scipy.stats", reason="scipy is not installed: the tables above are the reference")
    rng = np.random.default_rng(4)
    first, second = rng.random(20), rng.random(20)
    made = paired(first.tolist(), second.tolist())
    assert made.t_p == pytest.approx(stats.ttest_rel(second, first).pvalue, rel=1e-9)
    low, high = stats.ttest_rel(second, first).confidence_interval(0.95)
    assert (made.difference.low, made.difference.high) == pytest.approx((low, high), rel=1e-8)
