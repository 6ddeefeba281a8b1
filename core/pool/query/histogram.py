"""Histograms of a number or time column over the steps of a view."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from core.errors import InvalidInput
from core.pool.cache.arrayqueries import bins_of
from core.pool.cache.columncache import SORTED, ColumnCache
from core.pool.query.columns import STEP_COLUMNS
from core.pool.query.reads import explained
from core.pool.query.views import compile_view, source_sql
from core.pool.store.database import Cursor, arrow
from core.types import View


def histogram(column_cache: ColumnCache, view: View, column: str, bins: int) -> pa.Table:
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
    quick = column in SORTED
    with explained(view), column_cache.reading(view, columns=[column] if quick else []) as snapshot:
        values = snapshot.keys(column, snapshot.step_ids()) if quick else None
        if values is None:
            return by_sql(snapshot.cursor, snapshot.view, column, bins)
    return _table(values, bins, is_time=known.kind == "time")


def _table(values: np.ndarray, bins: int, *, is_time: bool) -> pa.Table:
    binned = bins_of(values, bins)
    low, high, n = binned if binned is not None else (np.zeros(0), np.zeros(0), np.zeros(0, np.int64))
    edges = [
        pa.array(np.rint(edge).astype(np.int64)).cast(pa.timestamp("us")) if is_time else edge for edge in (low, high)
    ]
    return pa.table({"low": edges[0], "high": edges[1], "n_steps": pa.array(n, pa.int64())})


def by_sql(cursor: Cursor, view: View, column: str, bins: int) -> pa.Table:
    """The same of a column that is not in memory."""
    condition = compile_view(view)
    known = STEP_COLUMNS[column]
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
    return arrow(cursor, sql.replace("$bins", str(int(bins))), list(condition.parameters))
