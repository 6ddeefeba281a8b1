"""The DuckDB file: opening, migrating, one writer, many readers."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from core.errors import InvalidInput, PoolError
from core.pool.store import damage
from core.pool.store.changes import NO_CHANGES, Changes, ChangeSet
from core.pool.store.readcommitlock import ListColumns, LockedCursor
from core.pool.upkeep.loggedtables import LOGGED, RecordingCursor, changes
from core.pool.upkeep.opinionlog import OpinionLog

Cursor = Any
"""A ``duckdb.DuckDBPyConnection``: the library ships no strict types."""

CLOSING_WAIT_S = 10.0
"""How long the file waits for its reads to end, once they are interrupted."""

_NAME = re.compile(r"^(\d{4})_\w+\.sql$")


def timestamp(seconds: float) -> datetime:
    """UTC seconds -> naive UTC datetime, as the TIMESTAMP columns hold it (microseconds)."""
    return datetime.fromtimestamp(round(seconds * 1e6) / 1e6, UTC).replace(tzinfo=None)


def seconds(value: datetime | None) -> float | None:
    """Naive UTC datetime -> UTC seconds."""
    return None if value is None else value.replace(tzinfo=UTC).timestamp()


def migrations() -> list[tuple[int, str, str]]:
    """The numbered migration files as (number, name, sql), in order."""
    folder = resources.files("core.pool.store") / "migrations"
    scripts = []
    for entry in folder.iterdir():
        match = _NAME.match(entry.name)
        if match:
            scripts.append((int(match.group(1)), entry.name, entry.read_text(encoding="utf-8")))
    return sorted(scripts)


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
        # After a failed commit there is no transaction any more; the original error is more useful.
        with suppress(duckdb.Error):
            cursor.execute("ROLLBACK")
        raise


class Database:
    """One DuckDB file: ``write()`` is a transaction under the one writer lock, ``read()`` a snapshot.

    ``n_writes`` counts the transactions that this process committed; while it is unchanged, so are all query results.
    ``changes`` holds their change sets. ``log`` stores a write's changes in the tables of opinions, durably and before
    the commit. Without a log, ``logged`` is True if the file has a log's position: the first such write deletes it, and
    the next log begins with a snapshot. ``stopping`` is set before the file is closed, which ends long reads.
    ``damage`` is set if the file turned out to be damaged.
    """

    def __init__(self, path: Path | str, *, memory: str, threads: int, clock: Callable[[], float]) -> None:
        self.path = str(path)
        self.clock = clock
        self.lock = threading.RLock()
        self.n_writes = 0
        self.changes = Changes()
        self._touched: ChangeSet | None = None
        self.stopping = threading.Event()
        self._opening = threading.Condition()
        self._reading: dict[int, Cursor] = {}
        self._closing = False
        self.log: OpinionLog | None = None
        self.logged = False
        self._only: frozenset[str] | None = None
        self.damage: str | None = None
        self._dry_run: tuple[int, Cursor] | None = None
        self._place: tuple[int, int] | None = None
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
                Path(self.path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            settled = not self.log_bytes
            self._connection: Cursor = duckdb.connect(self.path, config=dict(config))
        except (duckdb.Error, OSError, RuntimeError, ValueError, MemoryError) as error:
            raise damage.opening_failed(self.path, error) from error
        try:
            if self.path != ":memory:":
                for file in (Path(self.path), Path(f"{self.path}.wal")):
                    damage.make_private(file)
                if settled:
                    damage.check_length(self._connection, self.path)
                status = Path(self.path).stat()
                self._place = status.st_dev, status.st_ino
            migrate(self._connection, clock)
            self._lists = ListColumns(self._connection)
            counts = self._connection.execute("SELECT count(*) FROM opinions_position").fetchall()
            self.logged = bool(counts[0][0])
        except duckdb.Error as error:
            self._connection.close()
            raise damage.opening_failed(self.path, error) from error
        except BaseException:
            self._connection.close()
            raise

    @contextmanager
    def write(self, touches: ChangeSet | None = None) -> Iterator[Cursor]:
        """A cursor inside a transaction: committed on success, rolled back on any failure.

        Args:
            touches: the steps' and trajectories' state that it changes, if that is known beforehand; else ``touch``
                says it inside. Unsaid it may be all.

        InvalidInput when a value does not fit its column, PoolError when the file could not be written, OpinionsError
        when the opinions log could not; nothing is changed then.
        """
        with self.lock:
            self._check()
            self._touched, self._only = touches, None
            cursor = RecordingCursor(self._connection.cursor())
            try:
                cursor.execute("BEGIN")
                try:
                    yield cursor
                    logged = self._write_to_log(cursor)
                except BaseException:
                    self._roll_back(cursor)
                    raise
                self.changes.add(self.n_writes + 1, self._touched)
                try:
                    with self._lists.committing(cursor.added):
                        cursor.execute("COMMIT")
                except duckdb.Error:
                    if self.log is not None and logged is not None:
                        self.log.void(logged)
                    raise
                self.n_writes += 1
                damage.make_private(Path(f"{self.path}.wal"))
            except (duckdb.DataError, duckdb.IntegrityError) as error:
                raise InvalidInput(f"The pool can't hold this: {error}") from error
            except duckdb.Error as error:
                self._note_damage(error)
                raise damage.writing_failed(error) from error
            finally:
                cursor.close()

    def _write_to_log(self, cursor: RecordingCursor) -> int | None:
        """Append this transaction's changes of opinions to the log; returns the record's number."""
        written = cursor.written & (LOGGED.keys() if self._only is None else self._only)
        if not written:
            return None
        if self.log is None:
            if self.logged:
                cursor.execute("DELETE FROM opinions_position")
                self.logged = False
            return None
        parts = changes(cursor, written)
        if not parts:
            return None
        mark = self.log.mark
        n = self.log.append("change", parts)
        try:
            cursor.execute("UPDATE opinions_position SET mark = ?, n = ?", [mark, n])
        except duckdb.Error:
            self.log.void(n)
            raise
        return n

    def _roll_back(self, cursor: RecordingCursor) -> None:
        """Roll back, ignoring errors: after a fatal error there is no transaction, and the original error is kept."""
        with suppress(duckdb.Error):
            cursor.execute("ROLLBACK")

    def _check(self) -> None:
        if self.damage is not None:
            raise damage.damage_error(self.path, self.damage)

    def _note_damage(self, error: duckdb.Error) -> None:
        """Raises PoolDamaged when the error means that the file is damaged.

        PoolError when all of the file can be read all the same: DuckDB has false alarms (``readcommitlock``).
        """
        if damage.is_damage(error):
            if damage.may_be_false(error) and self._is_whole():
                raise PoolError(
                    f"The pool could not be read beside a write: {error}", hint="Nothing is damaged. Ask again."
                ) from error
            self.damage = self.damage or str(error)
            raise damage.damage_error(self.path, self.damage) from error

    def _is_whole(self) -> bool:
        """Whether every stored value can be read while writes wait."""
        with self.lock:
            cursor = self._connection.cursor()
            try:
                damage.read_all(cursor)
            except duckdb.Error:
                return False
            finally:
                cursor.close()
        return True

    def log_only(self, *tables: str) -> None:
        """Declare, inside ``write``, that the log needs only the rows of these tables: others are derived from them."""
        self._only = frozenset(tables)

    def touch(self, *, trajectories: Iterable[int] = (), actions: Iterable[int] = ()) -> None:
        """Declare, inside ``write``, changed trajectories and actions; all calls together must be complete."""
        self._touched = (self._touched or NO_CHANGES) | ChangeSet(frozenset(trajectories), frozenset(actions))

    @contextmanager
    def dry_run(self) -> Iterator[Cursor]:
        """A cursor inside a transaction that is always rolled back, to preview the effect of a write.

        Meanwhile ``read`` in this thread gives the same cursor, so that reads see the uncommitted state, and other
        writers wait. Caches must check ``in_dry_run``. InvalidInput as ``write``.
        """
        with self.lock:
            self._check()
            cursor = self._connection.cursor()
            try:
                cursor.execute("BEGIN")
                self._dry_run = threading.get_ident(), cursor
                try:
                    yield cursor
                finally:
                    self._dry_run = None
                    with suppress(duckdb.Error):
                        cursor.execute("ROLLBACK")
            except (duckdb.DataError, duckdb.IntegrityError) as error:
                raise InvalidInput(f"The pool can't hold this: {error}") from error
            finally:
                cursor.close()

    @property
    def in_dry_run(self) -> bool:
        """Whether this thread is inside ``dry_run``."""
        return self._dry_run is not None and self._dry_run[0] == threading.get_ident()

    @contextmanager
    def read(self) -> Iterator[Cursor]:
        """A new cursor whose queries all see one snapshot. Thread-safe. PoolDamaged when the file is damaged."""
        self._check()
        dry_run = self._dry_run
        if dry_run is not None and dry_run[0] == threading.get_ident():
            yield dry_run[1]
            return
        with self._opening:
            if self._closing:
                raise PoolError("The pool is closed.", hint="The service is shutting down.")
            cursor = self._connection.cursor()
            self._reading[id(cursor)] = cursor
        try:
            cursor.execute("BEGIN TRANSACTION READ ONLY")
            yield LockedCursor(cursor, self._lists)
        except duckdb.Error as error:
            self._note_damage(error)
            raise
        finally:
            cursor.close()
            with self._opening:
                del self._reading[id(cursor)]
                self._opening.notify_all()

    @property
    def in_place(self) -> bool:
        """Whether the file at the path is the one that was opened; also for a pool in memory."""
        if self._place is None:
            return True
        try:
            status = Path(self.path).stat()
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._place

    @property
    def log_bytes(self) -> int:
        """Size of the write-ahead log."""
        log = Path(f"{self.path}.wal")
        return log.stat().st_size if log.exists() else 0

    def checkpoint(self) -> None:
        """Checkpoint the write-ahead log now; otherwise a later commit would have to wait for it."""
        with self.lock:
            cursor = self._connection.cursor()
            try:
                cursor.execute("CHECKPOINT")
            except duckdb.Error as error:
                self._note_damage(error)
                raise damage.writing_failed(error) from error
            finally:
                cursor.close()

    def close(self) -> None:
        """Wait for the writer, end running reads, then close the file.

        A read whose caller has gone may run for seconds, and DuckDB can't close the file meanwhile.
        """
        self.stopping.set()
        with self.lock, self._opening:
            self._closing = True
            for cursor in self._reading.values():
                with suppress(duckdb.Error):
                    cursor.interrupt()
            self._opening.wait_for(lambda: not self._reading, CLOSING_WAIT_S)
            if self.log is not None:
                self.log.close()
            self._connection.close()


Parameters = Sequence[Any] | Mapping[str, Any]
"""Bound values: for ``?`` in order, or for ``$name`` by name."""


def _bound(parameters: Parameters) -> list[Any] | dict[str, Any]:
    return dict(parameters) if isinstance(parameters, Mapping) else list(parameters)


def arrow(cursor: Cursor, sql: str, parameters: Parameters = ()) -> pa.Table:
    """Run one query and take its result as an Arrow table."""
    with cursor.lists.reading(sql) if isinstance(cursor, LockedCursor) else nullcontext():
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


MAX_BOUND_NUMBERS = 1000
"""Up to this many numbers are bound as one list; more are registered as a table, which takes longer to plan."""


@contextmanager
def in_list(
    cursor: Cursor, column: str, numbers: Collection[int] | np.ndarray, *, max_bound: int = MAX_BOUND_NUMBERS
) -> Iterator[tuple[str, list[Any]]]:
    """The condition that a column is one of these numbers, and its bound values; to be used inside the block.

    The least and the greatest number are bound too, so that DuckDB skips blocks outside.
    """
    wanted = np.unique(numbers if isinstance(numbers, np.ndarray) else np.fromiter(numbers, np.int64))
    if not wanted.size:
        yield "FALSE", []
        return
    bounds, values = f"{column} BETWEEN ? AND ?", [int(wanted[0]), int(wanted[-1])]
    if values[1] - values[0] + 1 == wanted.size:
        yield bounds, values
    elif wanted.size <= max_bound:
        yield f"{bounds} AND {column} IN (SELECT unnest(?::BIGINT[]))", [*values, wanted.tolist()]
    else:
        table = f"among_{column.replace('.', '_')}"
        with registered(cursor, **{table: pa.table({"number": wanted})}):
            yield f"{bounds} AND {column} IN (SELECT number FROM {table})", values
