"""What a view names is looked up before it is read: saved views by name, and the steps of a searched text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from core.errors import InvalidInput, NotFound
from core.pool.content import decode
from core.pool.database import Cursor, Database, registered, rows
from core.pool.textsearch import Hits, TextSearch
from core.pool.views import Within, names_of_views
from core.types import View

DEEPEST = 8
"""Saved views that name saved views: so many levels, and none that comes back to itself."""


@contextmanager
def viewing(database: Database, view: View) -> Iterator[tuple[Cursor, View]]:
    """A cursor to read with, and the view to read with it, see ``seeing``."""
    with database.read() as cursor, seeing(database, cursor, view) as seen:
        yield cursor, seen


@contextmanager
def seeing(database: Database, cursor: Cursor, view: View) -> Iterator[View]:
    """The view to read with this cursor: the same, with what it names in place of the names.

    Raises:
        NotFound: no such saved view.
        InvalidInput: saved views that name each other.
    """
    with ExitStack() as stack:
        yield _Lookup(database, cursor, stack).seen(view, ())


def saved_view(cursor: Cursor, name: str) -> View:
    """A saved view. NotFound when there is none of this name."""
    found = rows(cursor, "SELECT filters, where_text FROM saved_views WHERE name = ?", [name.strip()])
    if not found:
        raise NotFound(f"No saved view {name!r}.", field="view", hint="GET /api/v1/views lists them.")
    return View(decode(found[0]["filters"]), found[0]["where_text"])


class _Lookup:
    def __init__(self, database: Database, cursor: Cursor, stack: ExitStack) -> None:
        self._database, self._cursor, self._stack = database, cursor, stack
        self._n_tables = 0

    def seen(self, view: View, above: tuple[str, ...]) -> View:
        filters = dict(view.filters)
        if filters.get("saved_view") is not None:
            filters["saved_view"] = Within(tuple(self._saved(name, above) for name in names_of_views(filters)))
        text = filters.get("text")
        if isinstance(text, str) and text:
            filters["text"] = self._hits(text)
        return View(filters, view.where)

    def _saved(self, name: str, above: tuple[str, ...]) -> View:
        if name in above or len(above) >= DEEPEST:
            raise InvalidInput(
                f"The saved view {name!r} names itself: {' → '.join([*above, name])}.", field="filters.saved_view"
            )
        return self.seen(saved_view(self._cursor, name), (*above, name))

    def _hits(self, text: str) -> Hits:
        table = f"text_hits_{self._n_tables}"
        self._n_tables += 1
        search: TextSearch = self._database.beside.setdefault("texts", TextSearch())
        self._stack.enter_context(registered(self._cursor, **{table: search.steps(self._cursor, text)}))
        return Hits(table)
