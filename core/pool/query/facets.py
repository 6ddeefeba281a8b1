"""Facets: the number of steps for each value of a column in a view, for twenty columns in a few scans.

Columns of a step are counted together: one scan counts the distinct combinations of a set of columns, of which there
are hundreds for a million steps, and each column's counts are sums over them. Columns of the trajectory
are counted by trajectory first. ``core.pool.cache.facetindex`` is quicker, once it is built.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from core.errors import InvalidInput
from core.pool.cache.columncache import ReadSnapshot, is_unfiltered
from core.pool.cache.facetindex import SETS, Counts
from core.pool.query.columns import STEP_COLUMNS, Column
from core.pool.query.views import compile_view, source_sql
from core.pool.query.where import Condition
from core.pool.state.findings import names_of
from core.pool.store.database import Cursor, rows
from core.types import View


def count_facets(snapshot: ReadSnapshot, columns: Sequence[str], limit: int) -> dict[str, Counts]:
    """Values of each column with their number of steps, most frequent first; lists count each element."""
    facets: dict[str, Counts] = {}
    if snapshot.facets is not None:
        everything = is_unfiltered(snapshot.view)
        facets = snapshot.facets.counts(None if everything else snapshot.step_ids(), columns, limit)
    remaining = [name for name in columns if name not in facets]
    facets |= count_by_sql(snapshot.cursor, snapshot.view, remaining, limit)
    return {name: facets[name] for name in columns}


def check_columns(columns: Sequence[str]) -> None:
    """InvalidInput names what isn't a column."""
    for name in columns:
        if name not in STEP_COLUMNS:
            raise InvalidInput(f"No column {name!r}.", field="columns", hint=f"Columns: {', '.join(STEP_COLUMNS)}.")


def count_by_sql(cursor: Cursor, view: View, columns: Sequence[str], limit: int) -> dict[str, Counts]:
    """The same without an index."""
    condition = compile_view(view)
    counted: dict[str, Counter[Any]] = {}
    for together in SETS[:2]:
        chosen = [name for name in together if name in columns]
        if len(chosen) > 1:
            counted |= _count_joint(cursor, condition, chosen)
    of_trajectories = [name for name in columns if _plain_of_trajectory(STEP_COLUMNS[name]) or name == "findings"]
    if of_trajectories:
        counted |= _by_trajectory(cursor, condition, of_trajectories)
    facets = {name: _ordered(counts, limit) for name, counts in counted.items()}
    for name in columns:
        if name not in facets:
            facets[name] = _alone(cursor, condition, STEP_COLUMNS[name], limit)
    return facets


def count_trajectories_by(cursor: Cursor, view: View, columns: Sequence[str], limit: int) -> dict[str, Counts]:
    """Values of each column with the number of trajectories that have a step of the view with this value."""
    condition = compile_view(view)
    facets: dict[str, Counts] = {}
    for name in columns:
        column = STEP_COLUMNS[name]
        value = f"unnest({column.sql})" if column.kind == "list" else column.sql
        sql = (
            f"SELECT value, count(DISTINCT trajectory_id) AS n FROM (SELECT {value} AS value, s.trajectory_id"
            f" {source_sql(condition, trajectory=column.needs_trajectory)})"
            " GROUP BY value ORDER BY n DESC, value NULLS LAST LIMIT ?"
        )
        facets[name] = [tuple(row) for row in cursor.execute(sql, [*condition.parameters, limit]).fetchall()]
    return facets


def _plain_of_trajectory(column: Column) -> bool:
    return column.sql == f"t.{column.sql.removeprefix('t.')}" and column.kind != "list"


def _count_joint(cursor: Cursor, condition: Condition, names: Sequence[str]) -> dict[str, Counter[Any]]:
    # Combinations are grouped by 64-bit hashes: grouping by numbers is much quicker than by eight texts. That two
    # of even 100,000 combinations meet in one has a chance of one in 10^9.
    sql = f"""
    WITH combination AS (
        SELECT hash({", ".join(f"s.{name}" for name in names)}) AS h, min(s.step_id) AS step_id, count(*) AS n
        {source_sql(condition)} GROUP BY h
    )
    SELECT {", ".join(f"s.{name} AS {name}" for name in names)}, c.n FROM combination c
    JOIN step_state s ON s.step_id = c.step_id
    """
    return _summed(rows(cursor, sql, condition.parameters), names)


def _by_trajectory(cursor: Cursor, condition: Condition, names: Sequence[str]) -> dict[str, Counter[Any]]:
    bits = ", s.finding_bits" if "findings" in names else ""
    values = [f"{STEP_COLUMNS[name].sql} AS {name}" for name in names if name != "findings"]
    if bits:
        values.append("c.finding_bits | t.finding_bits AS findings")
    sql = f"""
    WITH counted AS (
        SELECT s.trajectory_id{bits}, count(*) AS n {source_sql(condition)} GROUP BY s.trajectory_id{bits}
    )
    SELECT {", ".join(values)}, sum(c.n)::BIGINT AS n FROM counted c JOIN trajectory_state t USING (trajectory_id)
    GROUP BY ALL
    """
    summed = _summed(rows(cursor, sql, condition.parameters), names)
    if bits:
        by_name: Counter[Any] = Counter()
        for each, n in summed["findings"].items():
            by_name.update(dict.fromkeys(names_of(each), n))
        summed["findings"] = by_name
    return summed


def _summed(counted_rows: Iterable[dict[str, Any]], names: Sequence[str]) -> dict[str, Counter[Any]]:
    counted: dict[str, Counter[Any]] = {name: Counter() for name in names}
    for row in counted_rows:
        n = row["n"]
        for name in names:
            counted[name][row[name]] += n
    return counted


def _ordered(counts: Counter[Any], limit: int) -> Counts:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0] is None, item[0]))[:limit]


def _alone(cursor: Cursor, condition: Condition, column: Column, limit: int) -> Counts:
    if column.name == "tags":
        return _tags(cursor, condition, limit)
    value = f"unnest({column.sql})" if column.kind == "list" else column.sql
    sql = (
        f"SELECT value, count(*) AS n FROM (SELECT {value} AS value"
        f" {source_sql(condition, trajectory=column.needs_trajectory)})"
        " GROUP BY value ORDER BY n DESC, value NULLS LAST LIMIT ?"
    )
    return [tuple(row) for row in cursor.execute(sql, [*condition.parameters, limit]).fetchall()]


def _tags(cursor: Cursor, condition: Condition, limit: int) -> Counts:
    sql = f"""
    WITH counted AS (SELECT s.tags_json, min(s.step_id) AS step_id, count(*) AS n {source_sql(condition)} GROUP BY ALL)
    SELECT value, sum(n)::BIGINT AS n FROM (
        SELECT unnest(s.tags) AS value, c.n FROM counted c JOIN step_state s USING (step_id)
    ) GROUP BY value ORDER BY n DESC, value LIMIT ?
    """
    return [tuple(row) for row in cursor.execute(sql, [*condition.parameters, limit]).fetchall()]
