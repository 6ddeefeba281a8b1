"""The DuckDB file: opening, migrating, one writer, many readers."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from core.errors import InvalidInput, PoolError
from core.pool.changes import NOTHING, Changes, Touched

Cursor = Any
"""A ``duckdb.DuckDBPyConnection``: the library ships no strict types."""

_NAME = re.compile(r"^(\d{4})_\w+\.sql$")


def timestamp(seconds: float) -> datetime:
    """UTC seconds -> naive UTC datetime, as the TIMESTAMP columns hold it (microseconds)."""
    return datetime.fromtimestamp(round(seconds * 1e6) / 1e6, UTC).replace(tzinfo=None)


def seconds(value: datetime | None) -> float | None:
    """Naive UTC datetime -> UTC seconds."""
    return None if value is None else value.replace(tzinfo=UTC).timestamp()


def migrations() -> list[tuple[int, str, str]]:
    """The numbered migration files as (number, name, sql), in order."""
    folder = resources.files("core.pool") / "migrations"
    found = []
    for entry in folder.iterdir():
        match = _NAME.match(entry.name)
        if match:
            found.append((int(match.group(1)), entry.name, entry.read_text(encoding="utf-8")))
    return sorted(found)


def migrate(cursor: Cursor, clock: Callable[[], float]) -> None:
    """Bring the file to this code's schema, all or nothing. PoolError when the file is newer than the code."""
    known = migrations()
    cursor.execute("BEGIN")
    try:
        cursor.execute(
            "CREATE TABLE IF NOT EXISTS schema_migrations"
            " (number INTEGER PRIMARY KEY, name VARCHAR NOT NULL, applied_at TIMESTAMP NOT NULL)"
        )
        applied = {row[0] for row in cursor.execute("SELECT number FROM schema_migrations").fetchall()}
        newest = known[-1][0] if known else 0
        if applied and max(applied) > newest:
            raise PoolError(
                f"This pool has schema {max(applied)}, newer than this version of Claw Studio knows ({newest}).",
                field="data_dir",
                hint="Update claw-studio, or point data_dir to another folder.",
            )
        for number, name, sql in known:
            if number not in applied:
                cursor.execute(sql)
                cursor.execute("INSERT INTO schema_migrations VALUES (?, ?, ?)", [number, name, timestamp(clock())])
        cursor.execute("COMMIT")
    except BaseException:
        cursor.execute("ROLLBACK")
        raise


class Database:
    """One DuckDB file: ``write()`` is a transaction under the one writer lock, ``read()`` a snapshot.

    ``n_writes`` counts the transactions that this process committed: while it stands still, so do all answers.
    ``changes`` says what they touched. ``beside`` is what modules keep in memory beside the file, each under its own
    name.
    """

    def __init__(self, path: Path | str, *, memory: str, threads: int, clock: Callable[[], float]) -> None:
        self.path = str(path)
        self.clock = clock
        self.lock = threading.RLock()
        self.n_writes = 0
        self.changes = Changes()
        self._touched: Touched | None = None
        self.beside: dict[str, Any] = {}
        config: Mapping[str, Any] = {
            "memory_limit": memory,
            "threads": threads,
            # The file takes in what the write-ahead log holds inside some commit, which then waits: a second for bulk
            # labels. Four times the usual size makes that as much rarer, and a start after a crash reads 64 MB.
            "checkpoint_threshold": "64MB",
            # A snapshot is of the moment that its cursor is opened, not of its first query.
            "immediate_transaction_mode": True,
            "autoinstall_known_extensions": False,
            # SQL that people write (console.py) must not reach files, the network or variables of this process.
            "enable_external_access": False,
            "python_enable_replacements": False,
            "lock_configuration": True,
        }
        try:
            if self.path != ":memory:":
                Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            self._connection: Cursor = duckdb.connect(self.path, config=dict(config))
        except (duckdb.Error, OSError) as error:
            raise PoolError(
                f"The pool could not be opened: {error}",
                field="data_dir",
                hint="Is another studio using this folder? Is it writable?",
            ) from error
        try:
            migrate(self._connection, clock)
        except BaseException:
            self._connection.close()
            raise

    @contextmanager
    def write(self, touches: Touched | None = None) -> Iterator[Cursor]:
        """A cursor inside a transaction: committed on success, rolled back on any failure.

        Args:
            touches: the steps' and trajectories' state that it changes, if that is known beforehand; else ``touch``
                says it inside. Unsaid it may be all.

        InvalidInput when a value does not fit its column, PoolError when the file could not be written.
        """
        with self.lock:
            self._touched = touches
            cursor = self._connection.cursor()
            try:
                cursor.execute("BEGIN")
                try:
                    yield cursor
                except BaseException:
                    cursor.execute("ROLLBACK")
                    raise
                self.changes.add(self.n_writes + 1, self._touched)
                cursor.execute("COMMIT")
                self.n_writes += 1
            except (duckdb.DataError, duckdb.IntegrityError) as error:
                raise InvalidInput(f"The pool can't hold this: {error}") from error
            except duckdb.Error as error:
                raise PoolError(f"The pool could not be written: {error}") from error
            finally:
                cursor.close()

    def touch(self, *, trajectories: Iterable[int] = (), actions: Iterable[int] = ()) -> None:
        """Say, inside ``write``, what it changes; all that is said together is all that it changes."""
        self._touched = (self._touched or NOTHING) | Touched(frozenset(trajectories), frozenset(actions))

    @contextmanager
    def read(self) -> Iterator[Cursor]:
        """An own cursor whose queries all see one snapshot. Safe in any thread."""
        cursor = self._connection.cursor()
        try:
            cursor.execute("BEGIN TRANSACTION READ ONLY")
            yield cursor
        finally:
            cursor.close()

    @property
    def log_bytes(self) -> int:
        """Size of the write-ahead log."""
        log = Path(f"{self.path}.wal")
        return log.stat().st_size if log.exists() else 0

    def checkpoint(self) -> None:
        """Take what the write-ahead log holds into the file now: some commit would have to wait for it later."""
        with self.lock:
            cursor = self._connection.cursor()
            try:
                cursor.execute("CHECKPOINT")
            finally:
                cursor.close()

    def close(self) -> None:
        """Wait for the writer, then close the file."""
        with self.lock:
            self._connection.close()


Parameters = Sequence[Any] | Mapping[str, Any]
"""Bound values: for ``?`` in order, or for ``$name`` by name."""


def _bound(parameters: Parameters) -> list[Any] | dict[str, Any]:
    return dict(parameters) if isinstance(parameters, Mapping) else list(parameters)


def arrow(cursor: Cursor, sql: str, parameters: Parameters = ()) -> pa.Table:
    """Run one query and take its result as an Arrow table."""
    return cursor.sql(sql, params=_bound(parameters)).to_arrow_table()


def rows(cursor: Cursor, sql: str, parameters: Parameters = ()) -> list[dict[str, Any]]:
    """Run one query and take its result as dicts."""
    result = cursor.execute(sql, _bound(parameters))
    names = [column[0] for column in result.description]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


@contextmanager
def registered(cursor: Cursor, **tables: pa.Table) -> Iterator[None]:
    """Make Arrow tables readable by name inside the block."""
    for name, table in tables.items():
        cursor.register(name, table)
    try:
        yield
    finally:
        for name in tables:
            cursor.unregister(name)


MOST_BOUND = 1000
"""So many numbers are bound as one list; more are registered as a table, which takes longer to plan."""


@contextmanager
def among(
    cursor: Cursor, column: str, numbers: Collection[int] | np.ndarray, *, most_bound: int = MOST_BOUND
) -> Iterator[tuple[str, list[Any]]]:
    """The condition that a column is one of these numbers, and its bound values; to be used inside the block.

    Their bounds are said too: what is stored elsewhere is not read.
    """
    wanted = np.unique(numbers if isinstance(numbers, np.ndarray) else np.fromiter(numbers, np.int64))
    if not wanted.size:
        yield "FALSE", []
        return
    bounds, values = f"{column} BETWEEN ? AND ?", [int(wanted[0]), int(wanted[-1])]
    if values[1] - values[0] + 1 == wanted.size:
        yield bounds, values
    elif wanted.size <= most_bound:
        yield f"{bounds} AND {column} IN (SELECT unnest(?::BIGINT[]))", [*values, wanted.tolist()]
    else:
        table = f"among_{column.replace('.', '_')}"
        with registered(cursor, **{table: pa.table({"number": wanted})}):
            yield f"{bounds} AND {column} IN (SELECT number FROM {table})", values
