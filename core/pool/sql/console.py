"""``pool.sql``: runs one SELECT over the pool's tables, read-only and bounded in time and size.

There are three independent protections:

- Anything but a SELECT over the pool's tables with functions that only compute is refused (``check``).
- The query runs in a process of its own (``worker``), which has only copies of the tables that it reads, has no access
  to files, network and settings, and is ended when it takes too long or too much memory (``runner``).
- The service reads those tables in a transaction that DuckDB enforces to be read-only.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from core.errors import InvalidInput
from core.pool.query.columns import STEP_COLUMNS
from core.pool.sql.readable import READABLE
from core.pool.sql.runner import CopyBudget, QueryRunner, write_table
from core.pool.store.database import Cursor, Database, migrations

MAX_ROWS = 10_000
MAX_TEXT = 100_000
TIMEOUT_S = 10.0
MAX_TIMEOUT_S = 120.0

HIDDEN = frozenset({"sessions", "revocations", "schema_migrations"})
"""Tables that are not data: hashes of keys, bookkeeping."""

_COLUMNS = """
SELECT table_name, column_name, data_type FROM duckdb_columns()
WHERE schema_name = 'main' AND NOT internal AND database_name = current_database()
ORDER BY table_name, column_index
"""


@dataclass(frozen=True, slots=True)
class SqlResult:
    """The result of a query.

    Attributes:
        table: its rows, up to the limit.
        truncated: there were more rows, or more bytes, than these.
        elapsed_s: seconds.
    """

    table: pa.Table
    truncated: bool
    elapsed_s: float


class Console:
    """``pool.sql``: answers people's SQL."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._box = QueryRunner(database.stopping)
        self._readable: dict[str, dict[str, str]] = {}

    def run(self, text: str, *, limit: int = 1000, timeout_s: float = TIMEOUT_S) -> SqlResult:
        """Run one SELECT.

        Args:
            text: the query; ``schema`` lists the tables that it may read.
            limit: most rows, up to ``MAX_ROWS``.
            timeout_s: most seconds, up to ``MAX_TIMEOUT_S``.

        Raises:
            InvalidInput: no SELECT, something that may not be read or called, a mistake in it, or too slow.
            Conflict: as many queries as are let run at once are running.
        """
        if not 1 <= limit <= MAX_ROWS:
            raise InvalidInput(f"limit is from 1 to {MAX_ROWS}.", field="limit")
        if not 0 < timeout_s <= MAX_TIMEOUT_S:
            raise InvalidInput(f"timeout_s is more than 0 and at most {MAX_TIMEOUT_S:g}.", field="timeout_s")
        if len(text) > MAX_TEXT:
            raise InvalidInput(f"More than {MAX_TEXT} characters.", field="sql")
        began = time.perf_counter()
        with self._db.read() as cursor:
            tables = self._tables(cursor)

        def hand_over(reads: Sequence[Any], check: Callable[[], None]) -> list[tuple[str, IO[bytes]]]:
            files: list[tuple[str, IO[bytes]]] = []
            budget = CopyBudget(None if self._db.path == ":memory:" else Path(self._db.path).parent)
            try:
                # All of one moment: that at which the query is known to be one.
                with self._db.read() as cursor:
                    for read in reads:
                        source = READABLE[read[0]].source if read[0] in READABLE else None
                        files.append((read[0], write_table(cursor, read, tables[read[0]], budget, check, source)))
            except BaseException:
                for _, file in files:
                    file.close()
                raise
            return files

        request = {"sql": text, "limit": limit, "timeout_s": timeout_s, "tables": tables, "hidden": sorted(HIDDEN)}
        with self._box.worker() as worker:
            answer, truncated = worker.answer(request, hand_over, self._db.stopping)
        return SqlResult(answer, truncated, time.perf_counter() - began)

    def stop(self) -> None:
        """End what people's queries and conditions compute: the service ends and does not wait for them."""
        self._db.stopping.set()
        self._box.close()

    def schema(self) -> list[dict[str, Any]]:
        """Tables that ``run`` may read: ``{table, doc, columns: [{name, type, doc}]}``, by name."""
        docs = schema_docs()
        self._box.warm()
        with self._db.read() as cursor:
            tables = self._tables(cursor)
        listed = []
        for table, columns in tables.items():
            about = {"": READABLE[table].doc} if table in READABLE else docs.get(table, {})
            meanings = {name: doc for name, (_, doc) in READABLE[table].columns.items()} if table in READABLE else about
            listed.append(
                {
                    "table": table,
                    "doc": about.get("", ""),
                    "columns": [
                        {
                            "name": name,
                            "type": kind,
                            "doc": meanings.get(name) or (STEP_COLUMNS[name].doc if name in STEP_COLUMNS else ""),
                        }
                        for name, kind in columns.items()
                    ],
                }
            )
        return listed

    def _tables(self, cursor: Cursor) -> dict[str, dict[str, str]]:
        """Table -> column -> type, of all tables that ``run`` may read, by name."""
        tables: dict[str, dict[str, str]] = {}
        for table, column, kind in cursor.execute(_COLUMNS).fetchall():
            if table not in HIDDEN:
                tables.setdefault(table, {})[column] = kind
        for name, readable in READABLE.items():
            if name not in self._readable:
                described = cursor.execute(f"DESCRIBE {readable.source(list(readable.columns))}").fetchall()
                self._readable[name] = {row[0]: row[1] for row in described}
            tables[name] = self._readable[name]
        return dict(sorted(tables.items()))


# Words --------------------------------------------------------------------------------------------------------

_CREATE = re.compile(r"^CREATE TABLE (\w+)")
_COLUMN = re.compile(r"^\s+(\w+)\s+[A-Z][\w\[\]()]*[^-]*?(?:--\s*(.+))?$")
_ALTER = re.compile(r"^ALTER TABLE (\w+) ADD COLUMN (?:IF NOT EXISTS )?(\w+)[^-]*--\s*(.+)$")


@cache
def schema_docs() -> dict[str, dict[str, str]]:
    """Table -> column -> its comment in the migrations; the table's own comment is under ''."""
    docs: dict[str, dict[str, str]] = {}
    for _, _, sql in migrations():
        comments: list[str] = []
        table: str | None = None
        for line in sql.splitlines():
            if match := _CREATE.match(line):
                table = match.group(1)
                docs[table] = {"": " ".join(comments)}
                comments = []
            elif line.startswith(")"):
                table = None
            elif table is not None and (match := _COLUMN.match(line)):
                docs[table][match.group(1)] = (match.group(2) or "").strip()
            elif match := _ALTER.match(line):
                docs.setdefault(match.group(1), {"": ""})[match.group(2)] = match.group(3).strip()
            elif line.startswith("-- ") and not line.rstrip().endswith("---"):
                comments.append(line[3:].strip())
            elif not line.strip():
                comments = []
    return docs
