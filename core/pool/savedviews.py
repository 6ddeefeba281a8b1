"""``pool.views``: saved views by name."""

from __future__ import annotations

from typing import Any

from core.errors import InvalidInput, NotFound
from core.pool.query.viewreader import ViewReader, saved_view
from core.pool.query.views import check_view
from core.pool.store.changes import NO_CHANGES
from core.pool.store.content import canonical, decode
from core.pool.store.database import Database, rows, seconds, timestamp
from core.types import View


def _name(name: str) -> str:
    if not name.strip():
        raise InvalidInput("A name is needed.", field="name")
    return name.strip()


class SavedViews:
    """``pool.views``: views that a user gave a name."""

    def __init__(self, database: Database, reader: ViewReader) -> None:
        self._db, self._reader = database, reader

    def save(self, name: str, view: View) -> None:
        """Save a view under a name, replacing an older one. NotFound when it refers to an unknown saved view."""
        name = _name(name)
        check_view(view)
        with self._db.write(NO_CHANGES) as cursor:
            cursor.execute(
                "INSERT OR REPLACE INTO saved_views VALUES (?, ?, ?, ?)",
                [name, canonical(dict(view.filters)).decode("utf-8"), view.where, timestamp(self._db.clock())],
            )
            with self._reader.resolved(cursor, View({"saved_view": name})):
                pass  # the views that it names are there, and none leads back to it

    def get(self, name: str) -> View:
        """A saved view. NotFound when there is none of this name."""
        with self._db.read() as cursor:
            return saved_view(cursor, name)

    def all(self) -> list[dict[str, Any]]:
        """Saved views by name: ``{name, view, created_at}``."""
        with self._db.read() as cursor:
            views = rows(cursor, "SELECT * FROM saved_views ORDER BY name")
        return [
            {
                "name": row["name"],
                "view": View(decode(row["filters"]), row["where_text"]),
                "created_at": seconds(row["created_at"]),
            }
            for row in views
        ]

    def delete(self, name: str) -> None:
        """Forget a saved view. NotFound when there is none of this name."""
        with self._db.write(NO_CHANGES) as cursor:
            n = cursor.execute("DELETE FROM saved_views WHERE name = ?", [name]).fetchone()[0]
            if not n:
                raise NotFound(f"No saved view {name!r}.", field="name")
