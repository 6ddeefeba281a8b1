"""Resolves saved views and text searches that a view names, before it is compiled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from core.errors import InvalidInput, NotFound
from core.pool.query.textsearch import Hits, TextSearch
from core.pool.query.views import ResolvedViews, names_of_views
from core.pool.query.where import watched
from core.pool.store.content import decode
from core.pool.store.database import Cursor, Database, registered, rows
from core.types import View

MAX_DEPTH = 8
"""The most levels of saved views that refer to saved views. Circular references are refused."""


class ViewReader:
    """Opens cursors for views, and resolves the names in a view."""

    def __init__(self, database: Database, texts: TextSearch) -> None:
        self._db, self._texts = database, texts

    @contextmanager
    def reading(self, view: View) -> Iterator[tuple[Cursor, View]]:
        """A cursor to read with, and the view to read with it, see ``resolved``."""
        with self._db.read() as cursor, self.resolved(cursor, view) as resolved:
            yield cursor, resolved

    @contextmanager
    def resolved(self, cursor: Cursor, view: View) -> Iterator[View]:
        """The view with its saved views and text searches resolved for this cursor.

        Raises:
            NotFound: no such saved view.
            InvalidInput: saved views that name each other; a condition that takes too long inside the block.
        """
        with ExitStack() as stack:
            if view.where.strip() or view.filters.get("saved_view") is not None:
                stack.enter_context(watched(self._db, cursor))
            yield _Lookup(self._texts, cursor, stack).resolved(view, ())


def saved_view(cursor: Cursor, name: str) -> View:
    """A saved view. NotFound when there is none of this name."""
    views = rows(cursor, "SELECT filters, where_text FROM saved_views WHERE name = ?", [name.strip()])
    if not views:
        raise NotFound(f"No saved view {name!r}.", field="view", hint="GET /api/v1/views lists them.")
    return View(decode(views[0]["filters"]), views[0]["where_text"])


class _Lookup:
    def __init__(self, texts: TextSearch, cursor: Cursor, stack: ExitStack) -> None:
        self._texts, self._cursor, self._stack = texts, cursor, stack
        self._n_tables = 0

    def resolved(self, view: View, above: tuple[str, ...]) -> View:
        filters = dict(view.filters)
        if filters.get("saved_view") is not None:
            filters["saved_view"] = ResolvedViews(tuple(self._saved(name, above) for name in names_of_views(filters)))
        text = filters.get("text")
        if isinstance(text, str) and text:
            filters["text"] = self._hits(text)
        return View(filters, view.where)

    def _saved(self, name: str, above: tuple[str, ...]) -> View:
        if name in above or len(above) >= MAX_DEPTH:
            raise InvalidInput(
                f"The saved view {name!r} names itself: {' → '.join([*above, name])}.", field="filters.saved_view"
            )
        return self.resolved(saved_view(self._cursor, name), (*above, name))

    def _hits(self, text: str) -> Hits:
        table = f"text_hits_{self._n_tables}"
        self._n_tables += 1
        self._stack.enter_context(registered(self._cursor, **{table: self._texts.steps(self._cursor, text)}))
        return Hits(table)
