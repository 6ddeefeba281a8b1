"""Pages of steps: first the ids of the page's rows by a query on few columns, then the rows themselves."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Any

import duckdb
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from core.errors import InvalidInput
from core.pool.cache.arrayqueries import page_of
from core.pool.cache.columncache import SORTED, ColumnCache, ReadSnapshot, is_unfiltered
from core.pool.query.columns import STEP_COLUMNS, order_sql, parse_order
from core.pool.query.reads import explained, page
from core.pool.query.views import compile_view, source_sql
from core.pool.state.findings import names_of
from core.pool.state.policyversion import versions_in_force
from core.pool.store.database import Cursor, arrow, in_list
from core.types import View

Order = list[tuple[str, str, bool]]
"""(column, its SQL, descending)."""

_SQL = {column.name: column.sql for column in STEP_COLUMNS.values()}
_OF_STEP = {c.name: c.sql for c in STEP_COLUMNS.values() if not c.needs_trajectory}
_OF_TRAJECTORY = {c.name: c.sql for c in STEP_COLUMNS.values() if c.needs_trajectory}
# Two columns are finished after (``_finished``), which takes less than to plan their SQL.
_OF_STEP |= {"staleness": "s.policy_version", "findings": "s.finding_bits"}
_OF_TRAJECTORY["findings"] = "t.finding_bits"

TOP = 1000
"""Up to this row, pages of all steps by one of their own columns are read by SQL: DuckDB reads little for them."""


def list_steps(column_cache: ColumnCache, view: View, order: str, limit: int | None, offset: int) -> pa.Table:
    """One page of steps with all step columns."""
    parsed = parse_order(order, _SQL)
    page(limit, offset)
    name = parsed[0][0] if len(parsed) == 1 else ""
    quick = name in SORTED and limit is not None and not _is_top(name, view, offset + limit)
    with explained(view), column_cache.reading(view, columns=[name] if quick else [], versions=True) as snapshot:
        step_ids = _in_memory(snapshot, parsed, limit or 0, offset) if quick else None
        if step_ids is None:
            step_ids = _by_sql(snapshot.cursor, snapshot.view, parsed, limit, offset)
        return rows_of(snapshot.cursor, step_ids, snapshot.versions)


def _is_top(name: str, view: View, n: int) -> bool:
    return is_unfiltered(view) and n <= TOP and not STEP_COLUMNS[name].needs_trajectory


def _in_memory(snapshot: ReadSnapshot, parsed: Order, limit: int, offset: int) -> np.ndarray | None:
    name, _, descending = parsed[0]
    step_ids = snapshot.step_ids()
    keys = snapshot.keys(name, step_ids)
    return None if keys is None else page_of(step_ids, keys, descending=descending, offset=offset, limit=limit)


def _by_sql(cursor: Cursor, view: View, parsed: Order, limit: int | None, offset: int) -> np.ndarray:
    condition = compile_view(view)
    paging, parameters = page(limit, offset)
    table = arrow(cursor, _ids_sql(condition, parsed, "", paging), [*condition.parameters, *parameters])
    step_ids: np.ndarray = table["step_id"].to_numpy()
    return step_ids


def _ids_sql(condition: Any, parsed: Order, key: str, paging: str) -> str:
    needs_trajectory = any(STEP_COLUMNS[name].needs_trajectory for name, _, _ in parsed)
    source = source_sql(condition, trajectory=needs_trajectory)
    return f"SELECT s.step_id {source} {key} {order_sql(parsed, 's.step_id')} {paging}"


def rows_of(
    cursor: Cursor, step_ids: np.ndarray, current: dict[str, int | None], *, metadata: bool = False
) -> pa.Table:
    """These steps with all step columns, in the order given; with ``metadata`` that too, as JSON text.

    Args:
        current: ``versions_in_force`` of the cursor's snapshot.
    """
    # One table at a time: to plan a join of them takes longer than to read them and put the rows together here.
    steps = _read(cursor, "step_state s", "step_id", step_ids, _OF_STEP | {"trajectory_id": "s.trajectory_id"})
    owners = _read(cursor, "trajectory_state t", "trajectory_id", steps["trajectory_id"].to_numpy(), _OF_TRAJECTORY)
    columns = {name: (steps if name in _OF_STEP else owners)[name] for name in STEP_COLUMNS}
    columns["staleness"] = _staleness(steps["channel"], steps["staleness"], current)
    columns["findings"] = _names(pc.bit_wise_or(steps["findings"], owners["findings"]))
    if metadata:
        texts = _read(cursor, "steps f", "step_id", step_ids, {"metadata": "coalesce(f.metadata, '{}')"})
        columns["metadata"] = texts["metadata"]
    return pa.table(columns)


def _read(cursor: Cursor, source: str, key: str, wanted: np.ndarray, columns: dict[str, str]) -> pa.Table:
    """A row for each of these keys, in their order."""
    alias = source.split()[1]
    selected = ", ".join(f"{sql} AS {name}" for name, sql in columns.items())
    with in_list(cursor, f"{alias}.{key}", wanted) as (condition, bound):
        table = arrow(cursor, f"SELECT {alias}.{key} AS row_key, {selected} FROM {source} WHERE {condition}", bound)
    keys = table["row_key"].to_numpy()
    order = np.argsort(keys)
    return table.take(order[np.searchsorted(keys, wanted, sorter=order)])


ROWS_PER_READ = 512
"""DuckDB's storage blocks have more rows than this: reading one row of each stretch loads all blocks."""


def touch_rows(cursor: Cursor, newest: int) -> None:
    """Load the storage blocks of the ``newest`` steps' rows into the database's memory."""
    columns = ", ".join(sql for name, sql in _OF_STEP.items() if STEP_COLUMNS[name].kind != "list")
    cursor.execute(
        f"SELECT bit_xor(hash({columns}, s.tool_names)) FROM step_state s"
        " WHERE s.step_id > (SELECT max(step_id) - ? FROM step_state) AND s.step_id % ? = 0",
        [newest, ROWS_PER_READ],
    ).fetchall()


def _staleness(channels: pa.ChunkedArray, versions: pa.ChunkedArray, current: dict[str, int | None]) -> pa.Array:
    encoded = channels.combine_chunks().dictionary_encode()
    now = pa.array([current.get(channel) for channel in encoded.dictionary.to_pylist()], pa.int64())
    return pc.subtract(now.take(encoded.indices), versions.combine_chunks())


def _names(bits: pa.ChunkedArray) -> pa.Array:
    encoded = bits.combine_chunks().dictionary_encode()
    names = pa.array([names_of(each) for each in encoded.dictionary.to_pylist()], pa.list_(pa.string()))
    return names.take(encoded.indices)


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

    Steps that arrive between two pages neither shift nor repeat rows. One order column; unknown values come last.
    """
    parsed = parse_order(order, _SQL)
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
    query = _ids_sql(condition, parsed, key, "LIMIT ?")
    with explained(view):
        try:
            step_ids = arrow(cursor, query, [*condition.parameters, *parameters, limit + 1])["step_id"].to_numpy()
        except duckdb.ConversionException as error:
            if after is None:
                raise
            raise InvalidInput("This cursor does not fit.", field="cursor") from error
        table = rows_of(cursor, step_ids[:limit], versions_in_force(cursor), metadata=True)
    next_cursor = None
    if step_ids.size > limit:
        last = table.slice(limit - 1).to_pylist()[0]
        next_cursor = encode_cursor(canonical_order, last[name], int(step_ids[limit - 1]))
    return table, next_cursor
