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


_DIFFERENCES = """
WITH measured AS (
    SELECT batch_uid, step_uid,
        arg_max(value, (created_at, rowid)) FILTER (name = 'n_compared') AS n,
        arg_max(value, (created_at, rowid)) FILTER (name = 'logprob_difference_mean') AS mean,
        arg_max(value, (created_at, rowid)) FILTER (name = 'logprob_difference_max') AS greatest,
        arg_max(value, (created_at, rowid)) FILTER (name = 'kl') AS kl
    FROM batch_metrics WHERE step_uid IS NOT NULL GROUP BY batch_uid, step_uid
)
SELECT b.batch_uid, b.update_index, b.policy_version AS version, s.policy_version AS sampled_version,
    b.policy_version - s.policy_version AS staleness, sum(m.n)::BIGINT AS n_tokens,
    sum(m.n * m.mean) / sum(m.n) AS mean, max(m.greatest) AS greatest, sum(m.n * m.kl) / sum(m.n) AS kl
FROM measured m JOIN batches b USING (batch_uid) JOIN batch_steps s USING (batch_uid, step_uid)
WHERE m.n > 0 AND m.mean IS NOT NULL AND s.policy_version IS NOT NULL AND b.policy_version IS NOT NULL
    AND ($channel::VARCHAR IS NULL OR b.channel = $channel)
GROUP BY ALL ORDER BY version, staleness, b.batch_uid
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

    def differences(self, *, channel: str | None = None) -> list[dict[str, Any]]:
        """Captured against recomputed log-probs by batch and version that sampled, from trainers' step metrics.

        Columns: ``batch_uid``, ``update_index``, ``version`` in force when the batch was leased, ``sampled_version``,
        ``staleness``, ``n_tokens`` compared, ``mean`` and ``greatest`` |captured − recomputed| in nats, and ``kl`` in
        nats per token; means are over tokens. The metrics are those of ``core.trainer_rows.Comparison.step_metrics``.
        """
        with self._db.read() as cursor:
            return rows(cursor, _DIFFERENCES, {"channel": channel})

    def consumers(self, *, channel: str | None = None) -> list[dict[str, Any]]:
        """Consumers, the latest first: batches by state, consumed counts, ``seen_at``."""
        with self._db.read() as cursor:
            return [public(row) for row in rows(cursor, _CONSUMERS, {"channel": channel})]
