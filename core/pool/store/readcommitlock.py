"""A lock that keeps reads of list columns and commits that add rows apart.

DuckDB 2.0 requests more rows of a list column than there are when it skips rows that a filter left out
(``ListColumnData::Skip``). If a commit fills the column's last segment and begins another at that moment, the read
looks for the rows in the wrong segment and raises "Corrupted fixed-size segment", though the file is undamaged. Reads
that don't raise are right. So a statement that reads lists and a commit that adds rows to tables with lists never run
at the same time. Other statements and commits don't wait.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

_STORED_LISTS = """
SELECT table_name, column_name FROM duckdb_columns()
WHERE NOT internal AND database_name = current_database() AND data_type LIKE '%[]'
"""
_ADDS = re.compile(r"\bINSERT(?:\s+OR\s+REPLACE)?\s+INTO\s+(\w+)", re.IGNORECASE)


class ReadCommitLock:
    """Many readers or one commit. A waiting commit has priority over readers that arrive later."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._n_reading = 0
        self._n_waiting = 0
        self._committing = False

    @contextmanager
    def read(self) -> Iterator[None]:
        """Hold the lock shared with other readers."""
        with self._changed:
            self._changed.wait_for(lambda: not self._committing and not self._n_waiting)
            self._n_reading += 1
        try:
            yield
        finally:
            with self._changed:
                self._n_reading -= 1
                self._changed.notify_all()

    @contextmanager
    def commit(self) -> Iterator[None]:
        """Hold the lock exclusively."""
        with self._changed:
            self._n_waiting += 1
            self._changed.wait_for(lambda: not self._committing and not self._n_reading)
            self._n_waiting -= 1
            self._committing = True
        try:
            yield
        finally:
            with self._changed:
                self._committing = False
                self._changed.notify_all()


class ListColumns:
    """Which tables have list columns, and the turns that their reads and commits take."""

    def __init__(self, cursor: Any) -> None:
        list_columns = cursor.execute(_STORED_LISTS).fetchall()
        self.turns = ReadCommitLock()
        self._tables = frozenset(table for table, _ in list_columns)
        columns = "|".join(sorted({column for _, column in list_columns}))
        # A star after a parenthesis is the one of count(*).
        self._names = re.compile(rf"\b(?:{columns})\b|(?<!\()\*|^\s*FROM\b", re.IGNORECASE) if list_columns else None
        self._from = re.compile(rf"\b(?:{'|'.join(sorted(self._tables))})\b")

    def reading(self, sql: str) -> AbstractContextManager[None]:
        """The lock for a statement; a statement that reads no list takes none."""
        if self._names is None or not self._from.search(sql) or not self._names.search(sql):
            return nullcontext()
        return self.turns.read()

    def committing(self, added: set[str]) -> AbstractContextManager[None]:
        """The turn of a commit that added rows to these tables."""
        return self.turns.commit() if added & self._tables else nullcontext()


def inserted_tables(sql: str) -> set[str]:
    """The tables that a statement adds rows to."""
    return set(_ADDS.findall(sql))


class FetchedRows:
    """The rows of a statement that was read to its end within its turn."""

    def __init__(self, result: Any) -> None:
        self.description = result.description
        self._rows: list[tuple[Any, ...]] = result.fetchall()

    def fetchall(self) -> list[tuple[Any, ...]]:
        """As a cursor's own: the rows that were not fetched yet."""
        rows, self._rows = self._rows, []
        return rows

    def fetchone(self) -> tuple[Any, ...] | None:
        """As a cursor's own."""
        return self._rows.pop(0) if self._rows else None


class LockedCursor:
    """A cursor for reading, whose statements take the lock."""

    def __init__(self, cursor: Any, lists: ListColumns) -> None:
        self._cursor = cursor
        self.lists = lists

    def execute(self, sql: str, *more: Any) -> Any:
        """As the cursor's own; a statement that reads lists is read to its end."""
        turn = self.lists.reading(sql)
        if isinstance(turn, nullcontext):
            return self._cursor.execute(sql, *more)
        with turn:
            return FetchedRows(self._cursor.execute(sql, *more))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)
