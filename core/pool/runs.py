"""``pool.runs``: runs (experiments), the trajectories whose producers gave the same name of a run."""

from __future__ import annotations

import pyarrow as pa

from core.pool.cache.cache import Cache
from core.pool.query.runs import attempts_of_run, count_runs, list_runs, tokens_of_run
from core.pool.query.viewreader import ViewReader
from core.pool.query.views import NO_VIEW
from core.types import View


class Runs:
    """``pool.runs``: runs by pages, and one run's attempts."""

    def __init__(self, reader: ViewReader, cache: Cache) -> None:
        self._reader, self._cache = reader, cache

    def page(
        self, view: View = NO_VIEW, *, order: str = "started_at desc", limit: int | None = 50, offset: int = 0
    ) -> pa.Table:
        """A page of runs over the trajectories with at least one step of the view; trajectories without a run are
        left out."""
        return self._cache.ask(list_runs, view, order, limit, offset)

    def count(self, view: View = NO_VIEW) -> int:
        """Runs with at least one step of the view."""
        return self._cache.ask(count_runs, view)

    def attempts(self, run: str, view: View = NO_VIEW) -> pa.Table:
        """The trajectories of a run: ``core.pool.query.runs.attempts_of_run``."""
        with self._reader.reading(view) as (cursor, seen):
            return attempts_of_run(cursor, seen, run)

    def tokens(self, run: str, view: View = NO_VIEW) -> pa.Table:
        """Their tokens by model: ``core.pool.query.runs.tokens_of_run``."""
        with self._reader.reading(view) as (cursor, seen):
            return tokens_of_run(cursor, seen, run)
