"""Trends: rewards, success, length, tokens and errors of trajectories over time or policy versions."""

from __future__ import annotations

import pyarrow as pa

from core.errors import InvalidInput
from core.pool.query import reads
from core.pool.query.viewreader import ViewReader
from core.pool.store.database import arrow
from core.types import View

AXES = {"time": "epoch(t.started_at)", "policy_version": "t.policy_version_min"}
"""What a trend runs over -> its value for a trajectory: seconds of its start, or the version that it began with."""

SPLITS = {
    "agent": "t.agent", "run": "t.run", "model": "t.model", "task": "t.prompt_uid", "channel": "t.channel",
    "source": "t.source",
}  # fmt: skip
"""What a trend can be split by -> its value for a trajectory."""

_SQL = """
WITH chosen AS (
    SELECT t.trajectory_id, ({axis})::DOUBLE AS place, ({split})::VARCHAR AS part, t.reward, t.n_steps,
        t.n_prompt_tokens + t.n_response_tokens AS n_tokens
    FROM trajectory_state t WHERE {condition} AND ({axis}) IS NOT NULL
), failed AS (
    SELECT s.trajectory_id, count(*) AS n_errors
    FROM step_state s SEMI JOIN chosen USING (trajectory_id) WHERE s.status IN ('error', 'aborted') GROUP BY ALL
), span AS (
    SELECT min(place) AS low,
        greatest((max(place) - min(place)) / {points}, 1) AS width,
        {whole} AND max(place) - min(place) < {points} AS single
    FROM chosen
), frequent AS (
    SELECT part FROM chosen GROUP BY part ORDER BY count(*) DESC, part NULLS LAST LIMIT {parts}
), placed AS (
    SELECT least(floor((place - low) / CASE WHEN single THEN 1 ELSE width END), {points} - 1) AS bin,
        CASE WHEN part IS NULL OR part IN (SELECT part FROM frequent WHERE part IS NOT NULL) THEN part
            ELSE '(others)' END AS part,
        reward, n_steps, n_tokens, coalesce(n_errors, 0) AS n_errors
    FROM chosen LEFT JOIN failed USING (trajectory_id), span
)
SELECT low + bin * CASE WHEN single THEN 1 ELSE width END AS low,
    low + (bin + 1) * CASE WHEN single THEN 1 ELSE width END AS high,
    part, count(*) AS n_trajectories, count(reward) AS n_scored,
    avg(reward) AS reward, avg((reward > 0.5)::INTEGER) AS success_rate,
    avg(n_steps) AS n_steps, avg(n_tokens) AS n_tokens, sum(n_errors) / sum(n_steps) AS error_rate
FROM placed, span GROUP BY bin, part, low, width, single ORDER BY bin, part NULLS LAST
"""


def trends(reader: ViewReader, view: View, axis: str, by: str | None, points: int, parts: int) -> pa.Table:
    """A row per interval and part, in order; intervals without a trajectory are left out.

    Columns: ``low`` and ``high`` of the interval (UTC seconds, or policy versions), ``part`` (text of what it is split
    by; null: unknown, or not split; ``(others)`` beyond the ``parts`` most frequent), ``n_trajectories``, ``n_scored``,
    ``reward`` (mean of the scored, null if none is), ``success_rate`` (share of the scored with a reward above 0.5),
    ``n_steps`` and ``n_tokens`` (means per trajectory), ``error_rate`` (share of the calls that failed or were
    aborted). Policy versions are intervals of one version where ``points`` suffice.

    Args:
        reader: reads the pool.
        view: the trajectories with at least one step in it.
        axis: key of ``AXES``.
        by: key of ``SPLITS``; None: not split.
        points: intervals at most.
        parts: parts at most, besides the others.

    Raises:
        InvalidInput: an unknown axis or split.
    """
    for name, value, known in (("axis", axis, AXES), ("by", by, SPLITS)):
        if value is not None and value not in known:
            raise InvalidInput(f"No trend over {value!r}.", field=name, hint=f"One of {', '.join(known)}.")
    with reader.reading(view) as (cursor, seen), reads.explained(view):
        condition = reads.matching_trajectories(seen)
        sql = _SQL.format(
            axis=AXES[axis],
            split="NULL" if by is None else SPLITS[by],
            condition=condition.sql,
            points=points,
            parts=parts,
            whole="TRUE" if axis == "policy_version" else "FALSE",
        )
        return arrow(cursor, sql, list(condition.parameters))
