"""Reading lists: steps, trajectories, groups, facets, histograms. All of a view, all in SQL."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import duckdb
import orjson
import pyarrow as pa

from core.errors import InvalidInput
from core.pool.columns import GROUP_COLUMNS, STEP_COLUMNS, TRAJECTORY_COLUMNS, order_sql, parse_order
from core.pool.database import Cursor, arrow
from core.pool.facets import count_by_sql
from core.pool.views import compile_view, source_sql
from core.pool.where import HINT, Condition
from core.types import View

_STEP_SELECT = ", ".join(f"{column.sql} AS {column.name}" for column in STEP_COLUMNS.values())
_STEP_SQL = {column.name: column.sql for column in STEP_COLUMNS.values()}


@contextmanager
def explained(view: View) -> Iterator[None]:
    """A condition that reads well and fails on the data (text compared with a number) is the user's to mend."""
    try:
        yield
    except (duckdb.DataError, duckdb.BinderException, duckdb.NotSupportedError, duckdb.ProgrammingError) as error:
        if not view.where.strip():
            raise
        raise InvalidInput(f"The condition does not fit the data: {error}", field="where", hint=HINT) from error


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


def list_steps(cursor: Cursor, view: View, order: str, limit: int | None, offset: int) -> pa.Table:
    """One page of steps with all step columns."""
    condition = compile_view(view)
    parsed = parse_order(order, _STEP_SQL)
    paging, parameters = page(limit, offset)
    sql = _page_sql(condition, parsed, "", paging)
    with explained(view):
        return arrow(cursor, sql, [*condition.parameters, *parameters]).drop_columns(["step_id"])


def _page_sql(
    condition: Condition, parsed: list[tuple[str, str, bool]], key: str, paging: str, *, metadata: bool = False
) -> str:
    """The page is found by the columns that decide it; only its rows are then read whole."""
    ordering = order_sql(parsed, "s.step_id")
    needs_trajectory = any(STEP_COLUMNS[name].needs_trajectory for name, _, _ in parsed)
    found = f"SELECT s.step_id {source_sql(condition, trajectory=needs_trajectory)} {key} {ordering} {paging}"
    extra = ", coalesce(f.metadata, '{}') AS metadata" if metadata else ""
    fact = " JOIN steps f USING (step_id)" if metadata else ""
    return (
        f"SELECT {_STEP_SELECT}, s.step_id AS step_id{extra} FROM ({found}) AS found"
        f" JOIN step_state s USING (step_id){fact}"
        f" JOIN trajectory_state t ON t.trajectory_id = s.trajectory_id {ordering}"
    )


def encode_cursor(order: str, value: Any, step_id: int) -> str:
    """Where a page ended, as an opaque text."""
    if isinstance(value, datetime):
        value = value.isoformat()
    return base64.urlsafe_b64encode(orjson.dumps([order, value, step_id])).decode("ascii")


def decode_cursor(text: str, order: str) -> tuple[Any, int]:
    """Read a cursor back. InvalidInput when it is not one, or belongs to another order."""
    try:
        found_order, value, step_id = orjson.loads(base64.b64decode(text, altchars=b"-_", validate=True))
        fits = found_order == order and isinstance(step_id, int) and isinstance(value, str | int | float | None)
    except (ValueError, TypeError) as error:
        raise InvalidInput("This cursor is not one.", field="cursor") from error
    if not fits:
        raise InvalidInput("This cursor belongs to another order.", field="cursor", hint="Start without a cursor.")
    return value, step_id


def list_steps_after(
    cursor: Cursor, view: View, order: str, limit: int, after: str | None
) -> tuple[pa.Table, str | None]:
    """A page that begins where the cursor ended, and the next cursor (None on the last page).

    Beside the step columns each row has ``metadata``, as JSON text.

    Steps that arrive meanwhile neither shift nor repeat rows. One order column; unknown values come last.
    """
    parsed = parse_order(order, _STEP_SQL)
    if len(parsed) != 1:
        raise InvalidInput("Give one column to order by.", field="order")
    if limit < 1:
        raise InvalidInput("limit is at least 1.", field="limit")
    name, sql, descending = parsed[0]
    if STEP_COLUMNS[name].kind == "list":
        raise InvalidInput(f"Cannot page by the list {name!r}.", field="order")
    canonical_order = f"{name} {'desc' if descending else 'asc'}"
    condition = compile_view(view)
    key, parameters = "", []
    if after is not None:
        value, step_id = decode_cursor(after, canonical_order)
        symbol = "<" if descending else ">"
        if value is None:
            key, parameters = f"AND ({sql} IS NULL AND s.step_id {symbol} ?)", [step_id]
        else:
            bound = "?::TIMESTAMP" if STEP_COLUMNS[name].kind == "time" else "?"
            key = f"AND ({sql} {symbol} {bound} OR ({sql} = {bound} AND s.step_id {symbol} ?) OR {sql} IS NULL)"
            parameters = [value, value, step_id]
    query = _page_sql(condition, parsed, key, "LIMIT ?", metadata=True)
    with explained(view):
        try:
            table = arrow(cursor, query, [*condition.parameters, *parameters, limit + 1])
        except duckdb.ConversionException as error:
            if after is None:
                raise
            raise InvalidInput("This cursor does not fit.", field="cursor") from error
    next_cursor = None
    if table.num_rows > limit:
        table = table.slice(0, limit)
        last = table.slice(limit - 1).to_pylist()[0]
        next_cursor = encode_cursor(canonical_order, last[name], last["step_id"])
    return table.drop_columns(["step_id"]), next_cursor


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
    CASE WHEN count(reward) > 0 THEN stddev_pop(reward ORDER BY trajectory_id) END AS reward_std,
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

    ``reward_std`` is the population standard deviation of the known trajectory rewards.
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


def histogram(cursor: Cursor, view: View, column: str, bins: int) -> pa.Table:
    """Equal bins from the least to the greatest known value: columns ``low``, ``high``, ``n_steps``.

    Number columns give float64 edges, time columns timestamps. The last bin includes its upper edge; empty bins
    are there with 0. No known value gives no rows.
    """
    known = STEP_COLUMNS.get(column)
    if known is None or known.kind not in ("number", "time"):
        names = ", ".join(c.name for c in STEP_COLUMNS.values() if c.kind in ("number", "time"))
        raise InvalidInput(f"No histogram of {column!r}.", field="column", hint=f"Columns: {names}.")
    if not 1 <= bins <= 10_000:
        raise InvalidInput("bins is between 1 and 10000.", field="bins")
    condition = compile_view(view)
    is_time = known.kind == "time"
    value = f"epoch_us({known.sql})::DOUBLE" if is_time else f"{known.sql}::DOUBLE"
    edge = "make_timestamp(({})::BIGINT)" if is_time else "{}"
    low, high = edge.format("low + width * bin.i / $bins"), edge.format("low + width * (bin.i + 1) / $bins")
    sql = f"""
    WITH value AS (
        SELECT {value} AS x {source_sql(condition, trajectory=known.needs_trajectory)}
            AND {known.sql} IS NOT NULL AND isfinite({value})
    ), span AS (
        SELECT min(x) AS low, CASE WHEN max(x) > min(x) THEN max(x) - min(x) ELSE 1 END AS width FROM value
    ), counted AS (
        SELECT least(floor((x - low) / width * $bins), $bins - 1)::INTEGER AS bin, count(*) AS n
        FROM value, span GROUP BY bin
    )
    SELECT {low} AS low, {high} AS high, coalesce(n, 0) AS n_steps
    FROM span, range($bins) bin(i) LEFT JOIN counted ON counted.bin = bin.i
    WHERE span.low IS NOT NULL ORDER BY bin.i
    """
    with explained(view):
        return arrow(cursor, sql.replace("$bins", str(int(bins))), list(condition.parameters))


_PLAN = """
WITH chosen AS (
    SELECT s.step_id {source}
), first AS (
    SELECT prompt_uid, channel, min(started_at) AS group_first_at FROM trajectory_state GROUP BY prompt_uid, channel
)
SELECT s.step_uid, t.trajectory_uid, s.prompt_uid, s.channel, s.step_index,
    s.n_prompt_tokens, s.n_response_tokens, s.n_shared_tokens,
    s.reward, t.reward AS trajectory_reward, s.quality, t.quality AS trajectory_quality,
    s.trainable, t.complete, s.status, s.token_source, s.call_kind, s.policy_version, s.policy_version_end,
    s.created_at, first.group_first_at, s.has_logprobs, s.is_last
FROM step_state s
SEMI JOIN chosen ON s.step_id = chosen.step_id
JOIN trajectory_state t USING (trajectory_id)
JOIN first ON first.prompt_uid = s.prompt_uid AND first.channel = s.channel
WHERE $channel IS NULL OR s.channel = $channel
ORDER BY first.group_first_at, s.prompt_uid, t.started_at, t.trajectory_uid, s.step_index, s.step_id
"""


def plan_rows(cursor: Cursor, view: View, channel: str | None) -> pa.Table:
    """One row per step of the view in a channel (None: all), in the order plans are made in."""
    condition = compile_view(view)
    sql = _PLAN.format(source=source_sql(condition)).replace("$channel", "?::VARCHAR")
    with explained(view):
        return arrow(cursor, sql, [*condition.parameters, channel, channel])


MOST_VALUES = 200
"""Values of a facet that are told."""

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
    (SELECT count(*) FROM ingest_errors) AS n_ingest_errors
"""


def stats(cursor: Cursor) -> dict[str, Any]:
    """Counts of everything, and steps by channel, source, token source, call kind and status."""
    result = cursor.execute(_STATS)
    names = [column[0] for column in result.description]
    found: Mapping[str, Any] = dict(zip(names, result.fetchall()[0], strict=True))
    counts: dict[str, Any] = dict(found)
    counts["n_tokens"] = counts["n_prompt_tokens"] + counts["n_response_tokens"]
    columns = ("channel", "source", "token_source", "call_kind", "status")
    for name, values in count_by_sql(cursor, View(), columns, MOST_VALUES).items():
        counts[f"by_{name}"] = dict(values)
    return counts
