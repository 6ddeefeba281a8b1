"""Old and new rewards side by side, and how reliable a verifier is. Pure functions over results."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from core.pool.agreement import cohen_kappa
from core.scoring.results import Result

SOLVED_ABOVE = 0.5
"""A reward above this counts as solved; ClawGym's rule."""


def by_trajectory(results: Iterable[Result]) -> dict[str, list[Result]]:
    """Results of each trajectory, in order of their repeats."""
    grouped: dict[str, list[Result]] = {}
    for one in results:
        grouped.setdefault(one.trajectory_uid, []).append(one)
    return {uid: sorted(ones, key=lambda one: one.repeat) for uid, ones in grouped.items()}


def new_reward(results: Sequence[Result]) -> float | None:
    """Mean of the repeats that have a value; None without any."""
    values = [one.value for one in results if one.value is not None]
    return math.fsum(values) / len(values) if values else None


def compare(results: Iterable[Result], *, solved_above: float = SOLVED_ABOVE, limit: int = 100) -> dict[str, Any]:
    """Old and new rewards of all trajectories.

    Returns:
        ``n`` (trajectories), ``n_both`` (with an old and a new reward), ``n_equal`` of these, ``n_newly_scored``,
        ``n_no_longer_scored``, ``mean_old`` and ``mean_new`` and ``mean_difference`` (absolute) over those with both,
        ``n_now_solved`` and ``n_no_longer_solved`` (flips across ``solved_above``), ``agreement`` (share of equal
        verdicts) and ``kappa`` (Cohen's) of solved or not, ``outcomes`` (of all results), and ``changes``: the
        ``limit`` greatest, as ``{trajectory_uid, old, new, flips}``.
    """
    results = list(results)
    pairs = [(uid, ones[0].old, new_reward(ones)) for uid, ones in by_trajectory(results).items()]
    both = [(uid, old, new) for uid, old, new in pairs if old is not None and new is not None]
    matrix = [[0, 0], [0, 0]]
    for _, old, new in both:
        matrix[old > solved_above][new > solved_above] += 1
    outcomes: dict[str, int] = {}
    for one in results:
        outcomes[one.outcome] = outcomes.get(one.outcome, 0) + 1
    changed = [(uid, old, new) for uid, old, new in pairs if not _equal(old, new)]
    changed.sort(key=lambda one: (-_size(one[1], one[2]), one[0]))
    changes = [
        {"trajectory_uid": uid, "old": old, "new": new, "flips": _flips(old, new, solved_above)}
        for uid, old, new in changed[:limit]
    ]
    return {
        "n": len(pairs),
        "n_both": len(both),
        "n_equal": sum(_equal(old, new) for _, old, new in both),
        "n_newly_scored": sum(old is None and new is not None for _, old, new in pairs),
        "n_no_longer_scored": sum(old is not None and new is None for _, old, new in pairs),
        "mean_old": _mean([old for _, old, _ in both]),
        "mean_new": _mean([new for _, _, new in both]),
        "mean_difference": _mean([abs(old - new) for _, old, new in both]),
        "n_now_solved": matrix[0][1],
        "n_no_longer_solved": matrix[1][0],
        "agreement": (matrix[0][0] + matrix[1][1]) / len(both) if both else None,
        "kappa": cohen_kappa(matrix),
        "outcomes": outcomes,
        "changes": changes,
    }


def reliability(
    results: Iterable[Result], human: Mapping[str, float], *, solved_above: float = SOLVED_ABOVE, limit: int = 100
) -> dict[str, Any]:
    """How equal the repeats of a verifier are, and how it compares with people.

    Args:
        human: trajectory -> what a person says of it, in [0, 1].

    Returns:
        ``n`` (trajectories with at least two values), ``n_repeats`` (values of all), ``n_failed`` (repeats without a
        value), ``mean_variance`` (mean over trajectories of the sample variance of their repeats), ``n_unstable``
        (their repeats are not equal), ``n_flipping`` (some are above ``solved_above`` and some not), ``human``: ``{n,
        n_disagree, agreement, kappa, mean_difference}`` of the mean of the repeats with people, and ``unstable``: the
        ``limit`` trajectories of the greatest variance, as ``{trajectory_uid, values, variance}``.
    """
    grouped = by_trajectory(results)
    values = {uid: [one.value for one in ones if one.value is not None] for uid, ones in grouped.items()}
    repeated = {uid: ones for uid, ones in values.items() if len(ones) > 1}
    variances = {uid: statistics.variance(ones) for uid, ones in repeated.items()}
    unstable = [uid for uid, variance in variances.items() if variance > 0]
    unstable.sort(key=lambda uid: (-variances[uid], uid))
    labelled = [(math.fsum(ones) / len(ones), human[uid]) for uid, ones in values.items() if ones and uid in human]
    matrix = [[0, 0], [0, 0]]
    for mean, label in labelled:
        matrix[mean > solved_above][label > solved_above] += 1
    n_disagree = matrix[0][1] + matrix[1][0]
    return {
        "n": len(repeated),
        "n_repeats": sum(map(len, values.values())),
        "n_failed": sum(one.value is None for ones in grouped.values() for one in ones),
        "mean_variance": _mean(list(variances.values())),
        "n_unstable": len(unstable),
        "n_flipping": sum(min(ones) <= solved_above < max(ones) for ones in repeated.values()),
        "human": {
            "n": len(labelled),
            "n_disagree": n_disagree,
            "agreement": 1 - n_disagree / len(labelled) if labelled else None,
            "kappa": cohen_kappa(matrix),
            "mean_difference": _mean([abs(mean - label) for mean, label in labelled]),
        },
        "unstable": [
            {"trajectory_uid": uid, "values": values[uid], "variance": variances[uid]} for uid in unstable[:limit]
        ],
    }


def _equal(old: float | None, new: float | None) -> bool:
    if old is None or new is None:
        return old is new
    return math.isclose(old, new, abs_tol=1e-9)


def _flips(old: float | None, new: float | None, solved_above: float) -> bool:
    return old is not None and new is not None and (old > solved_above) != (new > solved_above)


def _size(old: float | None, new: float | None) -> float:
    """Size of a change, for the order: those with one reward only come after all others."""
    return abs(old - new) if old is not None and new is not None else -1.0


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
