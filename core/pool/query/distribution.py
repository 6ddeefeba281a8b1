"""The distribution of a numeric column over the steps of a view, split by the values of another column."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from core.errors import InvalidInput
from core.pool.cache.columncache import IN_SETS, SORTED, ColumnCache, ReadSnapshot
from core.pool.query import reads
from core.pool.query.columns import STEP_COLUMNS
from core.pool.query.viewreader import ViewReader
from core.pool.query.views import compile_view, source_sql
from core.pool.store.database import Cursor, arrow
from core.types import View

COUNTS = ("n_groups", "n_trajectories", "n_steps", "n_tokens")
KINDS = ("text", "boolean")
"""Kinds of columns that a distribution can be split by."""
OTHERS = "(others)"
"""The part of all values but the most frequent."""


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


def distribution(
    column_cache: ColumnCache, reader: ViewReader, view: View, column: str, by: str | None, bins: int, parts: int
) -> pa.Table:
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
    if column not in SORTED or (by is not None and by not in IN_SETS) or column_cache.in_dry_run:
        with reader.reading(view) as (cursor, seen), reads.explained(view):
            return by_sql(cursor, seen, column, by, bins, parts)
    with reads.explained(view), column_cache.reading(view, facets=by is not None, columns=[column]) as snapshot:
        table = _in_memory(snapshot, column, by, bins, parts)
        if table is None:
            return by_sql(snapshot.cursor, snapshot.view, column, by, bins, parts)
    return table


def _in_memory(snapshot: ReadSnapshot, column: str, by: str | None, bins: int, parts: int) -> pa.Table | None:
    """The distribution of a cached column; None: the column, or the one that splits it, is not cached."""
    step_ids = snapshot.step_ids()
    encoded = snapshot.columns.get(column)
    if encoded is None or encoded.values is None:
        values, places = snapshot.keys(column, step_ids), None
    else:
        # A column of few values is counted by value first: its bins are those of the values.
        values, places = encoded.values, encoded.places(step_ids)
    keys = None if by is None else snapshot.keys(by, step_ids)
    if values is None or (by is not None and keys is None):
        return None
    finite = np.isfinite(values)
    known = finite if places is None else finite[places]
    if not known.all():
        values, places = (values[known], None) if places is None else (values, places[known])
        keys = None if keys is None else keys[known]
    part, names = (None, [None]) if by is None or keys is None else _parts(keys, _texts(snapshot, by), parts)
    if places is None:
        span = _Span.of(values, bins)
        return (
            _SCHEMA.empty_table()
            if span is None
            else _table(span, _crossed(span.places(values), part, span.n, len(names)), names)
        )
    counts = _crossed(places, part, values.size, len(names))
    occurring = np.flatnonzero(counts.any(axis=1))
    span = _Span.of(values[occurring], bins)
    if span is None:
        return _SCHEMA.empty_table()
    by_bin = np.zeros((span.n, len(names)), np.int64)
    np.add.at(by_bin, span.places(values[occurring]), counts[occurring])
    return _table(span, by_bin, names)


def _texts(snapshot: ReadSnapshot, by: str) -> list[str]:
    """The text of each key of a column of texts or booleans."""
    if STEP_COLUMNS[by].kind == "boolean":
        return ["false", "true"]
    assert snapshot.facets is not None, "read with facets"
    return snapshot.facets.texts(by)


def _parts(keys: np.ndarray, texts: Sequence[str], parts: int) -> tuple[np.ndarray, list[str | None]]:
    """The part of each row, int64, a place in the second list: texts in order, ``OTHERS`` among them, None last.

    Args:
        keys: float64 [n], places in ``texts``, NaN where unknown.
        texts: in order.
        parts: the most frequent ones that are parts of their own; unknown counts as one.
    """
    unknown = len(texts)
    numbers = np.where(np.isnan(keys), unknown, keys).astype(np.int64)
    totals = np.bincount(numbers, minlength=unknown + 1)
    # Places are in the order of texts, with the unknown one last: equally frequent ones rank so.
    ranked = np.argsort(-totals, kind="stable")[: int((totals > 0).sum())]
    own = sorted({*ranked[:parts].tolist()} - {unknown})
    names: list[str | None] = sorted({*(texts[k] for k in own), OTHERS})
    part_of = np.full(unknown + 1, names.index(OTHERS))
    part_of[own] = [names.index(texts[k]) for k in own]
    part_of[unknown] = len(names)
    return part_of[numbers], [*names, None]


def _crossed(places: np.ndarray, part: np.ndarray | None, n_places: int, n_parts: int) -> np.ndarray:
    """Rows by place and part: int64 [n_places, n_parts]."""
    if part is not None:
        places = places.astype(np.int64) * n_parts + part
    return np.bincount(places, minlength=n_places * n_parts).reshape(n_places, n_parts)


@dataclass(frozen=True, slots=True)
class _Span:
    """Equal bins: ``n`` of them from ``low``."""

    low: float
    width: float
    n: int

    @classmethod
    def of(cls, values: np.ndarray, bins: int) -> _Span | None:
        """The bins of these finite values; None without a value."""
        if not values.size:
            return None
        least, most = float(values.min()), float(values.max())
        if most - least < 4 * bins and bool((values == np.floor(values)).all()):
            return cls(least - 0.5, max(1.0, math.ceil((most - least + 1) / bins)), 4 * bins)
        return cls(least, (most - least) / bins if most > least else 1.0, bins)

    def places(self, values: np.ndarray) -> np.ndarray:
        """int64, the bin of each value."""
        return np.minimum(np.floor((values - self.low) / self.width), self.n - 1).astype(np.int64)


_SCHEMA = pa.schema([("low", pa.float64()), ("high", pa.float64()), ("part", pa.string()), ("n_steps", pa.int64())])


def _table(span: _Span, by_bin: np.ndarray, names: Sequence[str | None]) -> pa.Table:
    """The rows of a distribution from its counts: int64 [bins, parts]."""
    bin, part = np.nonzero(by_bin)
    return pa.table(
        {
            "low": span.low + span.width * bin.astype(np.float64),
            "high": span.low + span.width * (bin + 1).astype(np.float64),
            "part": pa.array([names[k] for k in part.tolist()], pa.string()),
            "n_steps": by_bin[bin, part],
        }
    )


def by_sql(cursor: Cursor, view: View, column: str, by: str | None, bins: int, parts: int) -> pa.Table:
    """The same of a column that is not in memory."""
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
                ELSE '{OTHERS}' END AS part,
            count(*) AS n_steps
        FROM value, span GROUP BY ALL
    )
    SELECT low + width * bin AS low, low + width * (bin + 1) AS high, part, n_steps::BIGINT AS n_steps
    FROM counted, span ORDER BY bin, part NULLS LAST
    """
    return arrow(cursor, sql, list(condition.parameters))
