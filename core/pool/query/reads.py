"""Reads a view's counts, trajectories and groups by SQL (``listing``: pages of steps; ``planrows``: plans)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa

from core.errors import InvalidInput
from core.pool.query.columns import GROUP_COLUMNS, TRAJECTORY_COLUMNS, order_sql, parse_order
from core.pool.query.facets import count_by_sql
from core.pool.query.views import compile_view, source_sql
from core.pool.query.where import HINT, Condition, first_line
from core.pool.store.database import Cursor, arrow
from core.types import View


@contextmanager
def explained(view: View) -> Iterator[None]:
    """Turns errors of a valid condition on the data (text compared with a number) into InvalidInput for the user."""
    try:
        yield
    except (duckdb.DataError, duckdb.BinderException, duckdb.NotSupportedError, duckdb.ProgrammingError) as error:
        if not view.where.strip():
            raise
        raise InvalidInput(
            f"The condition does not fit the data: {first_line(error)}", field="where", hint=HINT
        ) from error


def page(limit: int | None, offset: int) -> tuple[str, list[Any]]:
    """LIMIT and OFFSET with their parameters; None is no limit."""
    if (limit is not None and limit < 0) or offset < 0:
        raise InvalidInput("limit and offset are not negative.", field="limit")
    return ("LIMIT ? OFFSET ?", [limit, offset]) if limit is not None else ("OFFSET ?", [offset])


def count_steps(cursor: Cursor, view: View) -> int:
    """Steps of the view."""
    condition = compile_view(view)
    with explained(view):
        row = cursor.execute(f"SELECT count(*) {source_sql(condition)}", list(condition.parameters)).fetchall()[0]
    return int(row[0])


def matching_trajectories(view: View) -> Condition:
    """Condition over ``t``: trajectories with at least one step of the view."""
    if not view.filters and not view.where.strip():
        return Condition("t.n_steps > 0")
    condition = compile_view(view)
    # Another alias inside would need the condition rewritten; a subquery hides the outer ``t`` by its own.
    return Condition(f"t.trajectory_id IN (SELECT s.trajectory_id {source_sql(condition)})", condition.parameters)


def count_trajectories(cursor: Cursor, view: View) -> int:
    """Trajectories with at least one step of the view."""
    condition = matching_trajectories(view)
    sql = f"SELECT count(*) FROM trajectory_state t WHERE {condition.sql}"
    with explained(view):
        return int(cursor.execute(sql, list(condition.parameters)).fetchall()[0][0])


def list_trajectories(cursor: Cursor, view: View, order: str, limit: int | None, offset: int) -> pa.Table:
    """One page of the trajectories with at least one step of the view; numbers are of the whole trajectory."""
    condition = matching_trajectories(view)
    ordering = order_sql(parse_order(order, TRAJECTORY_COLUMNS), "t.trajectory_id")
    paging, parameters = page(limit, offset)
    columns = ", ".join(f"{sql} AS {name}" for name, sql in TRAJECTORY_COLUMNS.items())
    sql = f"SELECT {columns} FROM trajectory_state t WHERE {condition.sql} {ordering} {paging}"
    with explained(view):
        return arrow(cursor, sql, [*condition.parameters, *parameters])


_GROUPS = """
SELECT prompt_uid, channel,
    count(*) AS n_trajectories,
    count(*) FILTER (complete) AS n_complete,
    count(reward) AS n_scored,
    sum(n_steps)::BIGINT AS n_steps,
    sum(n_prompt_tokens + n_response_tokens)::BIGINT AS n_tokens,
    avg(reward ORDER BY trajectory_id) AS reward_mean,
    stddev_samp(reward ORDER BY trajectory_id) AS reward_std,
    min(reward) AS reward_min,
    max(reward) AS reward_max,
    avg((reward > 0.5)::INTEGER) AS success_rate,
    count(reward) >= 2 AND min(reward) = max(reward) AS zero_variance,
    arg_min(prompt_preview, trajectory_id) AS prompt_preview,
    min(started_at) AS started_at
FROM trajectory_state t
WHERE {condition}
GROUP BY prompt_uid, channel
"""


def list_groups(cursor: Cursor, view: View, order: str, limit: int | None, offset: int) -> pa.Table:
    """One page of prompt groups, over the trajectories with at least one step of the view.

    ``reward_std`` is the sample standard deviation (ddof 1) of the known trajectory rewards, as GRPO divides by; null
    for fewer than two.
    """
    condition = matching_trajectories(view)
    ordering = order_sql(parse_order(order, {name: name for name in GROUP_COLUMNS}), "prompt_uid, channel")
    paging, parameters = page(limit, offset)
    sql = f"SELECT * FROM ({_GROUPS.format(condition=condition.sql)}) {ordering} {paging}"
    with explained(view):
        return arrow(cursor, sql, [*condition.parameters, *parameters])


def count_groups(cursor: Cursor, view: View) -> int:
    """Prompt groups (per channel) with at least one step of the view."""
    condition = matching_trajectories(view)
    sql = f"SELECT count(*) FROM (SELECT DISTINCT prompt_uid, channel FROM trajectory_state t WHERE {condition.sql})"
    with explained(view):
        return int(cursor.execute(sql, list(condition.parameters)).fetchall()[0][0])


MAX_VALUES = 200
"""Values of a facet that are returned."""

_STATS = """
SELECT
    (SELECT count(*) FROM step_state) AS n_steps,
    (SELECT count(*) FROM trajectory_state WHERE n_steps > 0) AS n_trajectories,
    (SELECT count(DISTINCT (prompt_uid, channel)) FROM trajectory_state WHERE n_steps > 0) AS n_groups,
    (SELECT count(*) FROM trajectory_state WHERE complete) AS n_complete,
    (SELECT count(reward) FROM trajectory_state) AS n_scored,
    (SELECT coalesce(sum(n_prompt_tokens), 0)::BIGINT FROM trajectory_state) AS n_prompt_tokens,
    (SELECT coalesce(sum(n_response_tokens), 0)::BIGINT FROM trajectory_state) AS n_response_tokens,
    (SELECT coalesce(sum(n_unique_tokens), 0)::BIGINT FROM trajectory_state) AS n_unique_tokens,
    (SELECT count(*) FROM messages) AS n_messages,
    (SELECT count(*) FROM annotations) AS n_annotations,
    (SELECT count(*) FROM conflicts) AS n_conflicts,
    (SELECT count(*) FROM ingest_errors) AS n_ingest_errors,
    (SELECT count(*) FROM journal_damages) AS n_journal_damages
"""


def stats(cursor: Cursor) -> dict[str, Any]:
    """Counts of everything, and steps by channel, source, token source, call kind and status."""
    result = cursor.execute(_STATS)
    names = [column[0] for column in result.description]
    row: Mapping[str, Any] = dict(zip(names, result.fetchall()[0], strict=True))
    counts: dict[str, Any] = dict(row)
    counts["n_tokens"] = counts["n_prompt_tokens"] + counts["n_response_tokens"]
    columns = ("channel", "source", "token_source", "call_kind", "status")
    for name, values in count_by_sql(cursor, View(), columns, MAX_VALUES).items():
        counts[f"by_{name}"] = dict(values)
    return counts
