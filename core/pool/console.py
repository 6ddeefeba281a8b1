"""The SQL console: one SELECT over the pool's tables, read-only in fact and bounded in time and size.

Several walls, each enough by itself for what it is about:

- DuckDB's own parser says that the text is one SELECT; its tree is walked, and only known kinds of nodes, known
  functions and the pool's tables pass. So ``INSERT`` inside a ``WITH``, ``read_csv``, ``FROM 'file'``, ``query()``,
  ``getenv``, ``nextval`` and raw scans of memory are refused before anything is bound.
- It runs in a transaction that DuckDB itself holds to be read-only, rolled back at the end.
- The whole database runs with ``enable_external_access`` off and its configuration locked (``database.py``).
- A watcher interrupts it after a time, or when the process has grown by too much; rows and bytes are counted as
  they come.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pyarrow as pa

from core.errors import Conflict, InvalidInput
from core.pool.columns import STEP_COLUMNS
from core.pool.database import Cursor, Database, migrations, rows

MAX_ROWS = 10_000
MAX_BYTES = 64 << 20
MAX_TEXT = 100_000
TIMEOUT_S = 10.0
MAX_TIMEOUT_S = 120.0
MAX_GROWTH = 1 << 30
"""Bytes that the process may grow by while a query runs: what DuckDB builds outside of its own budget."""
POLL_S = 0.05
AT_ONCE = 2

HIDDEN = frozenset({"sessions", "revocations", "schema_migrations"})
"""Tables that are nobody's data: hashes of keys, bookkeeping."""

NODES = frozenset(
    {
        "SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE",
        "BASE_TABLE", "SUBQUERY", "JOIN", "TABLE_FUNCTION", "EXPRESSION_LIST", "EMPTY", "PIVOT", "SHOW_REF",
        "ORDER_MODIFIER", "LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER", "DISTINCT_MODIFIER",
        "ORDER_DEFAULT", "ORDER_ASCENDING", "ORDER_DESCENDING", "ASCENDING", "DESCENDING",
    }
)  # fmt: skip
"""Parts of a parsed query that read."""

TABLE_FUNCTIONS = frozenset({"unnest", "range", "generate_series", "json_each", "json_tree"})

HARMLESS = frozenset({"random", "uuid", "uuidv4", "uuidv7", "gen_random_uuid"})
"""Of the functions that DuckDB marks as volatile."""
REFUSED = frozenset(
    {
        "getenv", "getvariable", "current_setting", "current_query", "pg_sleep", "sleep_ms", "repeat",
        "lpad", "rpad", "list_resize", "array_resize", "bar", "printf", "format",
        "inet_client_addr", "inet_client_port", "inet_server_addr", "inet_server_port",
    }
)  # fmt: skip
"""Functions that look outside, wait, or make much out of little in one step, where no watcher gets a word in."""
ONLY_TABLES = frozenset({"range", "generate_series"})
"""Streams as tables, whole lists as scalars: as lists they are refused."""
SPECIAL = frozenset({"unnest", "list_comprehension", "grouping"})
"""Written like functions, and not in the catalog."""


@dataclass(frozen=True, slots=True)
class SqlResult:
    """What a query gave.

    Attributes:
        table: its rows, at most as many as asked for.
        truncated: there were more rows, or more bytes, than these.
        elapsed_s: seconds.
    """

    table: pa.Table
    truncated: bool
    elapsed_s: float


class Console:
    """The part of ``Pool`` that answers SQL."""

    _db: Database

    def sql(self, text: str, *, limit: int = 1000, timeout_s: float = TIMEOUT_S) -> SqlResult:
        """Run one SELECT.

        Args:
            text: the query; ``sql_schema`` lists what it may read.
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
        with _turn(), self._db.read() as cursor, _explained():
            check(cursor, text)
            return _run(cursor, text, limit, timeout_s)

    def sql_schema(self) -> list[dict[str, Any]]:
        """Tables that ``sql`` may read: ``{table, doc, columns: [{name, type, doc}]}``, by name."""
        docs = schema_docs()
        with self._db.read() as cursor:
            found = rows(
                cursor,
                "SELECT table_name, column_name, data_type FROM duckdb_columns()"
                " WHERE schema_name = 'main' AND NOT internal AND database_name = current_database()"
                " ORDER BY table_name, column_index",
            )
        tables: dict[str, dict[str, Any]] = {}
        for row in found:
            name = row["table_name"]
            if name in HIDDEN:
                continue
            about = docs.get(name, {})
            table = tables.setdefault(name, {"table": name, "doc": about.get("", ""), "columns": []})
            column = row["column_name"]
            doc = about.get(column) or (STEP_COLUMNS[column].doc if column in STEP_COLUMNS else "")
            table["columns"].append({"name": column, "type": row["data_type"], "doc": doc})
        return list(tables.values())


_TURNS = threading.BoundedSemaphore(AT_ONCE)


@contextmanager
def _turn() -> Iterator[None]:
    if not _TURNS.acquire(timeout=1.0):
        raise Conflict(f"{AT_ONCE} queries are running already.", field="sql", hint="Wait for one of them to end.")
    try:
        yield
    finally:
        _TURNS.release()


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except duckdb.InterruptException as error:
        raise InvalidInput("The query was stopped: too slow.", field="sql") from error
    except duckdb.Error as error:
        raise InvalidInput(str(error), field="sql") from error


# Checking -----------------------------------------------------------------------------------------------------


def check(cursor: Cursor, text: str) -> None:
    """InvalidInput unless the text is one SELECT that only reads the pool's tables."""
    statements = cursor.extract_statements(text)
    if len(statements) != 1:
        raise InvalidInput(f"One query at a time; these are {len(statements)}.", field="sql")
    tree = orjson.loads(cursor.execute("SELECT json_serialize_sql(?::VARCHAR)", [text]).fetchall()[0][0])
    if tree.get("error"):
        raise InvalidInput(f"Only SELECT is answered here: {tree.get('error_message')}", field="sql")
    if len(tree["statements"]) != 1:
        raise InvalidInput("One query at a time.", field="sql")
    tables = {
        row[0].lower()
        for row in cursor.execute(
            "SELECT table_name FROM duckdb_tables() WHERE schema_name = 'main' AND NOT temporary"
        ).fetchall()
    }
    named: set[str] = set()
    for node, _ in _walk(tree["statements"][0]):
        named.update(entry["key"].lower() for entry in (node.get("cte_map") or {}).get("map", ()))
        if isinstance(node.get("cte_name"), str):
            named.add(node["cte_name"].lower())
    if named & tables:
        raise InvalidInput(f"{sorted(named & tables)[0]!r} is a table's name already.", field="sql")
    readable = (tables - HIDDEN) | named
    functions = _functions(cursor)
    for node, in_from in _walk(tree["statements"][0]):
        _check_node(node, in_from, readable, functions)


def _check_node(node: Mapping[str, Any], in_from: bool, readable: set[str], functions: frozenset[str]) -> None:
    kind, name = node.get("type"), node.get("function_name")
    if isinstance(kind, str) and kind and "class" not in node and kind not in NODES:
        raise InvalidInput(f"{kind} is not answered here: queries only read.", field="sql")
    if kind == "BASE_TABLE":
        foreign = node.get("catalog_name") or node.get("schema_name", "") not in ("", "main")
        if foreign or node["table_name"].lower() not in readable:
            raise InvalidInput(
                f"No table {node['table_name']!r} to read here.", field="sql", hint="GET /api/v1/sql lists the tables."
            )
    if isinstance(name, str) and name:
        foreign = node.get("catalog") or node.get("schema") not in (None, "", "main")
        if foreign or name.lower() not in (TABLE_FUNCTIONS if in_from else functions):
            where = f" Tables are made by {', '.join(sorted(TABLE_FUNCTIONS))}." if in_from else ""
            raise InvalidInput(f"{name}() is not answered here.{where}", field="sql")


def _walk(tree: Any) -> Iterator[tuple[dict[str, Any], bool]]:
    """Every object of the tree, and whether it is the function of a FROM clause."""
    stack = [(tree, False)]
    while stack:
        at, in_from = stack.pop()
        if isinstance(at, dict):
            yield at, in_from
            makes_table = at.get("type") == "TABLE_FUNCTION"
            stack.extend((value, makes_table and key == "function") for key, value in at.items())
        elif isinstance(at, list):
            stack.extend((value, False) for value in at)


_FUNCTIONS = """
SELECT lower(function_name), bool_or(coalesce(has_side_effects, FALSE) OR coalesce(stability = 'VOLATILE', FALSE))
FROM duckdb_functions() WHERE function_type IN ('scalar', 'aggregate', 'macro', 'window') AND internal
GROUP BY ALL
"""


def _functions(cursor: Cursor) -> frozenset[str]:
    """Functions that a query may call: DuckDB's own that neither change nor look at anything outside."""
    found = cursor.execute(_FUNCTIONS).fetchall()
    pure = {name for name, volatile in found if not volatile and not name.startswith("__internal")}
    return frozenset((pure | HARMLESS | SPECIAL) - REFUSED - ONLY_TABLES)


# Running ------------------------------------------------------------------------------------------------------


def _run(cursor: Cursor, text: str, limit: int, timeout_s: float) -> SqlResult:
    began = time.perf_counter()
    with _watched(cursor, timeout_s) as stopped:
        try:
            # A relation streams; the limit is a node of its plan and no text, so no comment can swallow it.
            reader = cursor.sql(text).limit(limit + 1).to_arrow_reader(256)
            batches: list[pa.RecordBatch] = []
            n_rows = n_bytes = 0
            for batch in reader:
                batches.append(batch)
                n_rows += batch.num_rows
                n_bytes += batch.nbytes
                if n_bytes > MAX_BYTES:
                    break
            schema = reader.schema
        except (duckdb.Error, OSError) as error:
            if stopped:
                raise InvalidInput(stopped[0], field="sql", hint="Ask for less, or narrow it first.") from error
            if isinstance(error, OSError):
                raise InvalidInput(str(error), field="sql") from error
            raise
    table = pa.Table.from_batches(batches, schema)
    more = n_rows > limit or n_bytes > MAX_BYTES
    return SqlResult(table.slice(0, limit), more, time.perf_counter() - began)


@contextmanager
def _watched(cursor: Cursor, timeout_s: float) -> Iterator[list[str]]:
    """Interrupt the cursor after a time or for its size; the list then says why."""
    stopped: list[str] = []
    done = threading.Event()
    deadline = time.monotonic() + timeout_s
    before = _resident()

    def watch() -> None:
        while not done.wait(min(POLL_S, max(0.001, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                stopped.append(f"Stopped after {timeout_s:g} seconds.")
            elif _resident() - before > MAX_GROWTH:
                stopped.append(f"Stopped: it took more than {MAX_GROWTH >> 20} MiB of memory.")
            if stopped:
                cursor.interrupt()
                return

    watcher = threading.Thread(target=watch, name="sql-watch", daemon=True)
    watcher.start()
    try:
        yield stopped
    finally:
        done.set()
        watcher.join()


_STATM = Path("/proc/self/statm")


def _resident() -> int:
    """Bytes of memory this process holds; 0 where the system does not tell."""
    try:
        return int(_STATM.read_text().split()[1]) * 4096
    except OSError:
        return 0


# Words --------------------------------------------------------------------------------------------------------

_CREATE = re.compile(r"^CREATE TABLE (\w+)")
_COLUMN = re.compile(r"^\s+(\w+)\s+[A-Z][\w\[\]()]*[^-]*?(?:--\s*(.+))?$")
_ALTER = re.compile(r"^ALTER TABLE (\w+) ADD COLUMN (?:IF NOT EXISTS )?(\w+)[^-]*--\s*(.+)$")


@cache
def schema_docs() -> dict[str, dict[str, str]]:
    """Table -> column -> what the migrations' comments say of it; the table's own words stand under ''."""
    docs: dict[str, dict[str, str]] = {}
    for _, _, sql in migrations():
        said: list[str] = []
        table: str | None = None
        for line in sql.splitlines():
            if found := _CREATE.match(line):
                table = found.group(1)
                docs[table] = {"": " ".join(said)}
                said = []
            elif line.startswith(")"):
                table = None
            elif table is not None and (found := _COLUMN.match(line)):
                docs[table][found.group(1)] = (found.group(2) or "").strip()
            elif found := _ALTER.match(line):
                docs.setdefault(found.group(1), {"": ""})[found.group(2)] = found.group(3).strip()
            elif line.startswith("-- ") and not line.rstrip().endswith("---"):
                said.append(line[3:].strip())
            elif not line.strip():
                said = []
    return docs
