"""Statistics on the consumption of batches: by batch, by consumer, by step."""

from __future__ import annotations

from typing import Any

from core.pool.batches import public
from core.pool.store.database import Database, rows

_SUMMARIES = """
WITH chosen AS (
    SELECT *, rowid AS place FROM batches
    WHERE $channel::VARCHAR IS NULL OR channel = $channel
    ORDER BY leased_at DESC, rowid DESC LIMIT $limit
), held AS (
    SELECT batch_uid, min(policy_version) AS policy_version_min, max(policy_version) AS policy_version_max,
        avg(policy_version) AS policy_version_mean, avg(trajectory_reward) AS reward_mean
    FROM batch_steps WHERE batch_uid IN (SELECT batch_uid FROM chosen) GROUP BY batch_uid
)
SELECT c.* EXCLUDE (place), h.* EXCLUDE (batch_uid, policy_version_mean),
    c.policy_version - h.policy_version_min AS staleness_max,
    c.policy_version - h.policy_version_mean AS staleness_mean
FROM chosen c LEFT JOIN held h USING (batch_uid)
ORDER BY c.leased_at DESC, c.place DESC
"""
_CONSUMERS = """
SELECT consumer, count(*) AS n_batches, count(*) FILTER (state = 'leased') AS n_leased,
    count(*) FILTER (state = 'acked') AS n_acked, count(*) FILTER (state = 'released') AS n_released,
    count(*) FILTER (state = 'expired') AS n_expired,
    coalesce(sum(n_groups) FILTER (state = 'acked'), 0)::BIGINT AS n_groups,
    coalesce(sum(n_steps) FILTER (state = 'acked'), 0)::BIGINT AS n_steps,
    coalesce(sum(n_tokens) FILTER (state = 'acked'), 0)::BIGINT AS n_tokens,
    max(coalesce(finished_at, leased_at)) AS seen_at
FROM batches WHERE $channel::VARCHAR IS NULL OR channel = $channel
GROUP BY consumer ORDER BY seen_at DESC
"""
_CONSUMPTION = """
SELECT b.*, s.advantage, s.trajectory_reward FROM batch_steps s JOIN batches b USING (batch_uid)
WHERE s.step_uid = ? ORDER BY b.leased_at, b.rowid
"""


class Consumption:
    """``pool.consumption``: statistics on leased and consumed batches. Times are UTC seconds."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def of_step(self, step_uid: str) -> list[dict[str, Any]]:
        """The batches that contained a step, oldest first: consumer, times, update, recipe and policy version."""
        with self._db.read() as cursor:
            return [public(row) for row in rows(cursor, _CONSUMPTION, [step_uid])]

    def batches(self, *, channel: str | None = None, limit: int = 200) -> list[dict[str, Any]]:
        """Batches, newest first, with aggregates over their steps.

        Beside the batch's columns: ``policy_version_min/max`` of its steps, ``staleness_max/mean`` (versions behind the
        one in force when it was leased), ``reward_mean`` over steps.
        """
        with self._db.read() as cursor:
            return [public(row) for row in rows(cursor, _SUMMARIES, {"channel": channel, "limit": limit})]

    def consumers(self, *, channel: str | None = None) -> list[dict[str, Any]]:
        """Consumers, the latest first: batches by state, consumed counts, ``seen_at``."""
        with self._db.read() as cursor:
            return [public(row) for row in rows(cursor, _CONSUMERS, {"channel": channel})]
