"""The distribution of a numeric column over the steps of a view, split by the values of another column."""

from __future__ import annotations

import pyarrow as pa

from core.errors import InvalidInput
from core.pool.query import reads
from core.pool.query.columns import STEP_COLUMNS
from core.pool.query.viewreader import ViewReader
from core.pool.query.views import compile_view, source_sql
from core.pool.store.database import Cursor, arrow
from core.types import View

COUNTS = ("n_groups", "n_trajectories", "n_steps", "n_tokens")
KINDS = ("text", "boolean")
"""Kinds of columns that a distribution can be split by."""


def count_reach(reader: ViewReader, view: View, target: str) -> dict[str, int]:
    """``n_groups``, ``n_trajectories``, ``n_steps``, ``n_tokens`` that a label on all of a view is about.

    On steps (``target`` step) it is about those that match, on trajectories about all steps of each that has one.
    """
    if target not in ("step", "trajectory"):
        raise InvalidInput("The target is 'step' or 'trajectory'.", field="target")
    with reader.reading(view) as (cursor, seen), reads.explained(view):
        if target == "step":
            condition = compile_view(seen)
            source = source_sql(condition, trajectory=True)
            counts = "count(DISTINCT s.trajectory_id), count(*), sum(s.n_prompt_tokens + s.n_response_tokens)"
        else:
            condition = reads.matching_trajectories(seen)
            source = f"FROM trajectory_state t WHERE {condition.sql}"
            counts = "count(*), sum(t.n_steps), sum(t.n_prompt_tokens + t.n_response_tokens)"
        sql = f"SELECT count(DISTINCT (t.prompt_uid, t.channel)), {counts} {source}"
        sums = cursor.execute(sql, list(condition.parameters)).fetchall()[0]
    return dict(zip(COUNTS, (int(n or 0) for n in sums), strict=True))


def distribution(reader: ViewReader, view: View, column: str, by: str | None, bins: int, parts: int) -> pa.Table:
    """Columns ``low``, ``high``, ``part``, ``n_steps``: equal bins over the known values of a number column.

    Whole numbers that reach no further than ``4 * bins`` get bins of whole width around them. ``part`` is the text
    of the value of ``by`` (null: unknown), ``(others)`` beyond the ``parts`` most frequent. Empty bins are left
    out; no known value gives no rows.
    """
    known = STEP_COLUMNS.get(column)
    if known is None or known.kind != "number":
        names = ", ".join(c.name for c in STEP_COLUMNS.values() if c.kind == "number")
        raise InvalidInput(f"No distribution of {column!r}.", field="column", hint=f"Columns: {names}.")
    apart = None if by is None else STEP_COLUMNS.get(by)
    if by is not None and (apart is None or apart.kind not in KINDS):
        names = ", ".join(c.name for c in STEP_COLUMNS.values() if c.kind in KINDS)
        raise InvalidInput(f"Steps can't be split by {by!r}.", field="by", hint=f"Columns: {names}.")
    if not 1 <= bins <= 1000:
        raise InvalidInput("bins is between 1 and 1000.", field="bins")
    with reader.reading(view) as (cursor, seen), reads.explained(view):
        return _read(cursor, seen, column, by, bins, parts)


def _read(cursor: Cursor, view: View, column: str, by: str | None, bins: int, parts: int) -> pa.Table:
    condition, known = compile_view(view), STEP_COLUMNS[column]
    apart = None if by is None else STEP_COLUMNS[by]
    needs = known.needs_trajectory or (apart is not None and apart.needs_trajectory)
    sql = f"""
    WITH value AS (
        SELECT ({known.sql})::DOUBLE AS x, {"NULL" if apart is None else apart.sql}::VARCHAR AS part
        {source_sql(condition, trajectory=needs)}
            AND ({known.sql}) IS NOT NULL AND isfinite(({known.sql})::DOUBLE)
    ), ends AS (
        SELECT min(x) AS least, max(x) AS most, bool_and(x = floor(x)) AND max(x) - min(x) < 4 * {bins} AS whole
        FROM value
    ), span AS (
        SELECT whole,
            CASE WHEN whole THEN least - 0.5 ELSE least END AS low,
            CASE WHEN whole THEN greatest(1, ceil((most - least + 1) / {bins}))
                WHEN most > least THEN (most - least) / {bins} ELSE 1 END AS width,
            CASE WHEN whole THEN 4 * {bins} ELSE {bins} END AS last
        FROM ends
    ), frequent AS (
        SELECT part FROM value GROUP BY part ORDER BY count(*) DESC, part NULLS LAST LIMIT {parts}
    ), counted AS (
        SELECT least(floor((x - low) / width), last - 1) AS bin,
            CASE WHEN part IS NULL OR part IN (SELECT part FROM frequent WHERE part IS NOT NULL) THEN part
                ELSE '(others)' END AS part,
            count(*) AS n_steps
        FROM value, span GROUP BY ALL
    )
    SELECT low + width * bin AS low, low + width * (bin + 1) AS high, part, n_steps::BIGINT AS n_steps
    FROM counted, span ORDER BY bin, part NULLS LAST
    """
    return arrow(cursor, sql, list(condition.parameters))
