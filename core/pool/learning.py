"""``pool.learning``: reward by policy version and channel with confidence bands, and the runs that produced them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core.pool.store import bookkeeping
from core.pool.store.database import Database, rows
from core.types import RUN_KEY

Z = 1.959964
"""Normal quantile of a 95 % band."""

_BY_VERSION = """
WITH groups AS (
    SELECT channel, policy_version_min AS version, prompt_uid, count(*) AS n, sum(reward) AS s,
        sum(reward * reward) AS s2, bool_and(reward IN (0, 1)) AS is_binary,
        min(started_at) AS started_at, max(ended_at) AS ended_at
    FROM trajectory_state
    WHERE reward IS NOT NULL AND complete AND policy_version_min IS NOT NULL
        AND ($channel::VARCHAR IS NULL OR channel = $channel)
    GROUP BY ALL
)
SELECT channel, version, sum(n)::BIGINT AS n_trajectories, count(*) AS n_groups, bool_and(is_binary) AS is_binary,
    sum(s)::DOUBLE AS s, sum(s2)::DOUBLE AS s2, sum(s * s)::DOUBLE AS group_s2, sum(s * n)::DOUBLE AS group_sn,
    sum(n * n)::DOUBLE AS group_n2, epoch(min(started_at)) AS started_at, epoch(max(ended_at)) AS ended_at
FROM groups GROUP BY channel, version ORDER BY channel, version
"""
_NEWEST = """
SELECT trajectory_uid, prompt_uid, reward, complete, n_steps, policy_version_min AS version, prompt_preview
FROM trajectory_state
WHERE channel = $channel AND policy_version_min = (
    SELECT max(policy_version_min) FROM trajectory_state WHERE channel = $channel
        AND ($last::BIGINT IS NULL OR policy_version_min <= $last)
)
ORDER BY prompt_uid, trajectory_uid LIMIT $limit
"""
_PAIRS = """
WITH held AS (
    SELECT prompt_uid, trajectory_uid, reward, policy_version_min AS version, prompt_preview
    FROM trajectory_state
    WHERE channel = $channel AND complete AND reward IS NOT NULL AND policy_version_min BETWEEN $first AND $last
)
SELECT prompt_uid, any_value(prompt_preview) AS prompt_preview,
    arg_min(trajectory_uid, version) AS before_uid, arg_min(reward, version) AS before_reward,
    arg_max(trajectory_uid, version) AS after_uid, arg_max(reward, version) AS after_reward,
    min(version) AS before_version, max(version) AS after_version
FROM held GROUP BY prompt_uid HAVING min(version) < max(version) ORDER BY prompt_uid
"""


@dataclass(frozen=True, slots=True)
class VersionReward:
    """Rewards of the complete, scored trajectories of one channel that one policy version began.

    Attributes:
        mean: mean reward; each trajectory counts once.
        low, high: 95 % band of the mean; None if it can't be estimated.
        started_at, ended_at: first and last call, UTC seconds.
    """

    channel: str
    version: int
    n_trajectories: int
    n_groups: int
    mean: float
    low: float | None
    high: float | None
    started_at: float | None
    ended_at: float | None


@dataclass(frozen=True, slots=True)
class Run:
    """A learning run: the versions from ``first_version`` to ``last_version`` (None: it is the newest run).

    ``about`` is what the run's first policy event said: ``name``, ``seed``, ``control``, channels.
    """

    name: str
    first_version: int
    last_version: int | None
    about: Mapping[str, Any]


class Learning:
    """``pool.learning``: what became of the policy."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def by_version(self, channel: str | None = None) -> list[VersionReward]:
        """Mean reward with its band by channel and policy version; a trajectory counts for its oldest version."""
        with self._db.read() as cursor:
            return [_point(row) for row in rows(cursor, _BY_VERSION, {"channel": channel})]

    def runs(self) -> list[Run]:
        """Runs in order of their first version; versions before the first named run are a run as well."""
        with self._db.read() as cursor:
            events = bookkeeping.list_policy_events(cursor)
        begun: dict[int, Mapping[str, Any]] = {}
        for event in events:
            about = event.metadata.get(RUN_KEY)
            if isinstance(about, Mapping) and about.get("name"):
                begun.setdefault(event.version, about)
        if not begun:
            return [Run("all versions", 0, None, {})]
        starts = sorted(begun)
        ends = [start - 1 for start in starts[1:]] + [None]
        earlier = [Run("earlier versions", 0, starts[0] - 1, {})] if starts[0] > 0 else []
        return earlier + [
            Run(str(begun[start]["name"]), start, end, begun[start]) for start, end in zip(starts, ends, strict=True)
        ]

    def newest(self, channel: str, *, last: int | None = None, limit: int = 512) -> list[dict[str, Any]]:
        """Trajectories of a channel's newest version, by prompt group; those still running have no reward.

        Args:
            last: only versions up to this one; None: all.
            limit: most trajectories.
        """
        with self._db.read() as cursor:
            return rows(cursor, _NEWEST, {"channel": channel, "last": last, "limit": limit})

    def pairs(self, channel: str, first: int, last: int) -> list[dict[str, Any]]:
        """Prompt groups attempted under several versions in this range, with the oldest and the newest attempt."""
        with self._db.read() as cursor:
            return rows(cursor, _PAIRS, {"channel": channel, "first": first, "last": last})


def _point(row: Mapping[str, Any]) -> VersionReward:
    n, n_groups = row["n_trajectories"], row["n_groups"]
    mean = row["s"] / n
    # Variance of a ratio mean over clusters (Cochran, Sampling Techniques, 3rd ed., eq. 11.30 without correction).
    spread = max(0.0, row["group_s2"] - 2 * mean * row["group_sn"] + mean * mean * row["group_n2"])
    variance = spread * n_groups / (n_groups - 1) / n**2 if n_groups > 1 else None
    low, high = band(mean, n, n_groups, variance, is_binary=row["is_binary"])
    return VersionReward(
        row["channel"], row["version"], n, n_groups, mean, low, high, row["started_at"], row["ended_at"]
    )


def band(
    mean: float, n: int, n_groups: int, variance: float | None, *, is_binary: bool
) -> tuple[float | None, float | None]:
    """The 95 % band of a mean of ``n`` rewards in ``n_groups`` prompt groups.

    Attempts of one task are alike, so groups and not attempts are independent. For rewards of 0 and 1: Wilson's
    interval with the effective sample size of Korn and Graubard, ``n / deff``. For other rewards: mean ± 1.96 standard
    errors; (None, None) for one group.

    Args:
        variance: of the mean, between groups; None for one group.
    """
    if not is_binary:
        if variance is None:
            return None, None
        half = Z * math.sqrt(variance)
        return mean - half, mean + half
    simple = mean * (1 - mean) / n
    design_effect = n if variance is None else max(1.0, variance / simple) if simple > 0 else 1.0
    n_effective = n / design_effect
    centre = (mean + Z**2 / (2 * n_effective)) / (1 + Z**2 / n_effective)
    root = mean * (1 - mean) / n_effective + Z**2 / (4 * n_effective**2)
    half = Z / (1 + Z**2 / n_effective) * math.sqrt(root)
    return max(0.0, centre - half), min(1.0, centre + half)


def gain(curve: Mapping[str, Any]) -> float:
    """Mean reward of a curve's last point minus that of its first."""
    points = curve["points"]
    last: VersionReward = points[-1][0]
    return last.mean - float(points[0][0].mean)


def curves(points: Sequence[VersionReward], runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One curve per run and channel that have points.

    Each has ``run``, ``channel`` and ``points`` in order of version: pairs of a point and its update, the number of
    versions since the run's first one.
    """
    result: list[dict[str, Any]] = []
    for run in runs:
        last = math.inf if run.last_version is None else run.last_version
        inside = [point for point in points if run.first_version <= point.version <= last]
        for channel in dict.fromkeys(point.channel for point in inside):
            chosen = [(point, point.version - run.first_version) for point in inside if point.channel == channel]
            result.append({"run": run, "channel": channel, "points": chosen})
    return result
