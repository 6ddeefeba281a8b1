"""``pool.stats``: facets, histograms and distributions over a view, a label's reach, and counts of the whole pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from core.pool.cache.cache import Cache
from core.pool.query import reads
from core.pool.query.distribution import count_reach, distribution
from core.pool.query.facets import check_columns, count_facets, count_trajectories_by
from core.pool.query.histogram import histogram
from core.pool.query.trends import trends
from core.pool.query.viewreader import ViewReader
from core.pool.query.views import NO_VIEW
from core.pool.store.database import Cursor
from core.types import View


class Stats:
    """``pool.stats``: counts over steps."""

    def __init__(self, reader: ViewReader, cache: Cache) -> None:
        self._reader, self._cache = reader, cache

    def totals(self) -> dict[str, Any]:
        """Counts of everything the pool holds."""

        def stats(cursor: Cursor, _view: View) -> dict[str, Any]:
            return reads.stats(cursor)

        return dict(self._cache.ask(stats, NO_VIEW))

    def facets(self, view: View, columns: Sequence[str]) -> dict[str, list[tuple[Any, int]]]:
        """Values of each column with their number of steps, most frequent first."""
        check_columns(columns)

        def count() -> dict[str, list[tuple[Any, int]]]:
            with reads.explained(view), self._cache.columns.reading(view, facets=len(columns) > 1) as snapshot:
                return count_facets(snapshot, columns, reads.MAX_VALUES)

        facets = self._cache.cached(("facets", view, list(columns)), count)
        return {name: list(counts) for name, counts in facets.items()}

    def trajectory_facets(self, view: View, columns: Sequence[str]) -> dict[str, list[tuple[Any, int]]]:
        """Values of each column with their number of trajectories: those with such a step in the view.

        Counted by SQL without an index, about a millisecond per column and thousand steps.
        """
        check_columns(columns)

        def count() -> dict[str, list[tuple[Any, int]]]:
            with reads.explained(view), self._reader.reading(view) as (cursor, seen):
                return count_trajectories_by(cursor, seen, columns, reads.MAX_VALUES)

        facets = self._cache.cached(("trajectory_facets", view, list(columns)), count)
        return {name: list(counts) for name, counts in facets.items()}

    def histogram(self, view: View, column: str, bins: int = 30) -> pa.Table:
        """Columns ``low``, ``high``, ``n_steps``: equal bins over the known values."""
        return self._cache.cached(
            ("histogram", view, column, bins),
            lambda: histogram(self._cache.columns, view, column, bins),
        )

    def distribution(
        self, view: View, column: str, *, by: str | None = None, bins: int = 24, parts: int = 6
    ) -> pa.Table:
        """Columns ``low``, ``high``, ``part``, ``n_steps``, see ``core.pool.query.distribution.distribution``."""
        return self._cache.cached(
            ("distribution", view, column, by, bins, parts),
            lambda: distribution(self._cache.columns, self._reader, view, column, by, bins, parts),
        )

    def trends(
        self, view: View = NO_VIEW, *, axis: str = "time", by: str | None = None, points: int = 40, parts: int = 6
    ) -> pa.Table:
        """Rewards, success, length, tokens and errors over time or policy versions: ``core.pool.query.trends``."""
        return self._cache.cached(
            ("trends", view, axis, by, points, parts), lambda: trends(self._reader, view, axis, by, points, parts)
        )

    def reach(self, view: View, target: str) -> dict[str, int]:
        """``n_groups``, ``n_trajectories``, ``n_steps``, ``n_tokens`` that a label on all of a view is about.

        On steps (``target`` step) it is about those that match, on trajectories about all steps of each that has one.
        """
        return count_reach(self._reader, view, target)
