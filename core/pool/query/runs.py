"""Runs (experiments): one row per run with its figures, and the figures of one run by task."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from core.pool.query import reads
from core.pool.query.columns import order_sql, parse_order
from core.pool.store.database import Cursor, arrow
from core.types import View

RUN_COLUMNS: tuple[str, ...] = (
    "run", "n_trajectories", "n_groups", "n_scored", "reward_mean", "success_rate", "n_steps_mean", "n_tokens_mean",
    "n_steps", "error_rate", "policy_version_min", "policy_version_max", "agents", "models", "started_at", "ended_at",
)  # fmt: skip

_FAILED = """
    SELECT s.trajectory_id, count(*) AS n_failed FROM step_state s SEMI JOIN chosen USING (trajectory_id)
    WHERE s.status IN ('error', 'aborted') GROUP BY ALL
"""

_RUNS = """
WITH chosen AS (
    SELECT * FROM trajectory_state t WHERE t.run IS NOT NULL AND {condition}
), failed AS (""" + _FAILED + """)
SELECT run,
    count(*) AS n_trajectories,
    count(DISTINCT (prompt_uid, channel)) AS n_groups,
    count(reward) AS n_scored,
    avg(reward ORDER BY trajectory_id) AS reward_mean,
    avg((reward > 0.5)::INTEGER) AS success_rate,
    avg(n_steps) AS n_steps_mean,
    avg(n_prompt_tokens + n_response_tokens) AS n_tokens_mean,
    sum(n_steps)::BIGINT AS n_steps,
    sum(coalesce(n_failed, 0)) / sum(n_steps) AS error_rate,
    min(policy_version_min) AS policy_version_min,
    max(policy_version_max) AS policy_version_max,
    list_sort(list(DISTINCT agent) FILTER (agent IS NOT NULL)) AS agents,
    list_sort(list(DISTINCT model) FILTER (model IS NOT NULL)) AS models,
    min(started_at) AS started_at,
    max(ended_at) AS ended_at
FROM chosen LEFT JOIN failed USING (trajectory_id) GROUP BY run
"""  # fmt: skip


def list_runs(cursor: Cursor, view: View, order: str, limit: int | None, offset: int) -> pa.Table:
    """One page of runs, over the trajectories with at least one step of the view: ``RUN_COLUMNS``.

    ``success_rate`` is the share of the scored trajectories with a reward above 0.5, ``n_steps_mean`` and
    ``n_tokens_mean`` are means per trajectory, ``error_rate`` is the share of the calls that failed or were aborted.
    """
    condition = reads.matching_trajectories(view)
    ordering = order_sql(parse_order(order, {name: name for name in RUN_COLUMNS}), "run")
    paging, parameters = reads.page(limit, offset)
    sql = f"SELECT * FROM ({_RUNS.format(condition=condition.sql)}) {ordering} {paging}"
    with reads.explained(view):
        return arrow(cursor, sql, [*condition.parameters, *parameters])


def count_runs(cursor: Cursor, view: View) -> int:
    """Runs with at least one step of the view."""
    condition = reads.matching_trajectories(view)
    sql = f"SELECT count(DISTINCT run) FROM trajectory_state t WHERE {condition.sql}"
    with reads.explained(view):
        return int(cursor.execute(sql, list(condition.parameters)).fetchall()[0][0])


# A task's attempts with two agents are two prompt groups, so the task that a run names in its metadata comes first.
_TASKS = """
WITH chosen AS (
    SELECT * FROM trajectory_state t WHERE t.run = ? AND {condition}
), failed AS (""" + _FAILED + """), named AS (
    SELECT f.trajectory_id, arg_min(json_extract_string(f.metadata, '$.task'), f.step_id) AS task
    FROM steps f SEMI JOIN chosen USING (trajectory_id)
    WHERE json_type(f.metadata, '$.task') = 'VARCHAR' GROUP BY ALL
)
SELECT coalesce(named.task, prompt_uid) AS task, trajectory_id, reward, n_steps,
    n_prompt_tokens + n_response_tokens AS n_tokens, coalesce(n_failed, 0) AS n_failed
FROM chosen LEFT JOIN failed USING (trajectory_id) LEFT JOIN named USING (trajectory_id)
ORDER BY trajectory_id
"""  # fmt: skip

_TOKENS = """
SELECT s.trajectory_id, s.model, sum(s.n_prompt_tokens)::BIGINT AS n_prompt_tokens,
    sum(s.n_response_tokens)::BIGINT AS n_response_tokens,
    bool_and(s.n_prompt_tokens IS NOT NULL AND s.n_response_tokens IS NOT NULL) AS known
FROM step_state s SEMI JOIN (SELECT trajectory_id FROM trajectory_state t WHERE t.run = ? AND {condition}) o
    USING (trajectory_id)
GROUP BY ALL
"""


def attempts_of_run(cursor: Cursor, view: View, run: str) -> pa.Table:
    """A row per trajectory of a run with a step in the view.

    Columns: ``task``, ``trajectory_id``, ``reward`` (null: unscored), ``n_steps``, ``n_tokens``, ``n_failed`` (calls
    that failed or were aborted).
    """
    return _of_run(cursor, _TASKS, view, run)


def tokens_of_run(cursor: Cursor, view: View, run: str) -> pa.Table:
    """A row per trajectory and model of a run.

    Columns: ``trajectory_id``, ``model``, ``n_prompt_tokens``, ``n_response_tokens``, ``known`` (false: the tokens of
    some call are unknown).
    """
    return _of_run(cursor, _TOKENS, view, run)


def _of_run(cursor: Cursor, query: str, view: View, run: str) -> pa.Table:
    condition = reads.matching_trajectories(view)
    parameters: list[Any] = [run, *condition.parameters]
    with reads.explained(view):
        return arrow(cursor, query.format(condition=condition.sql), parameters)
