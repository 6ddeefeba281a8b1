"""``pool.groups``: prompt groups, the trajectories of one prompt by channel."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from core.errors import NotFound
from core.pool.cache.cache import Cache
from core.pool.query import reads
from core.pool.query.viewreader import ViewReader
from core.pool.query.views import NO_VIEW
from core.pool.store.database import Database
from core.types import View


class PromptGroups:
    """``pool.groups``: the trajectories of one prompt each."""

    def __init__(self, database: Database, reader: ViewReader, cache: Cache) -> None:
        self._db, self._reader, self._cache = database, reader, cache

    def get(self, prompt_uid: str) -> dict[str, Any]:
        """One prompt group: its row per channel merged into ``channels``, and its trajectories in order."""
        view = View({"prompt_uid": prompt_uid})
        with self._db.read() as cursor:
            channels = reads.list_groups(cursor, view, "channel", None, 0).to_pylist()
            if not channels:
                raise NotFound(f"No prompt group {prompt_uid!r}.", field="prompt_uid")
            members = reads.list_trajectories(cursor, view, "started_at", None, 0).to_pylist()
        return {**channels[0], "channels": channels, "trajectories": members}

    def page(
        self, view: View = NO_VIEW, *, order: str = "started_at desc", limit: int | None = 50, offset: int = 0
    ) -> pa.Table:
        """A page of prompt groups over the trajectories with at least one step of the view."""
        with self._reader.reading(view) as (cursor, seen):
            return reads.list_groups(cursor, seen, order, limit, offset)

    def count(self, view: View = NO_VIEW) -> int:
        """Prompt groups (per channel) with at least one step of the view."""
        return self._cache.ask(reads.count_groups, view)
