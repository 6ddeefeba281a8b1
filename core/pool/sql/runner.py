"""Runs SQL queries in worker processes: hands them the tables they read, and ends them at their limits.

Another process can't open the pool's file while it is open here, and a copy of the whole file would be large. So the
tables and columns that the query reads are written, in one snapshot, to unnamed files, whose descriptors are passed to
the worker. The result matches that snapshot, and the worker has no other data.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from core.errors import Conflict, InvalidInput, NoRoom, PoolError, is_full
from core.pool.sql.worker import LENGTH, MAX_BYTES, MAX_MESSAGE, send
from core.pool.store.database import Cursor
from core.pool.store.memoryuse import own_memory

AT_ONCE = 2
MAX_GROWTH = 3 << 29
"""Bytes of private memory that a process may hold."""
MAX_READ = 4 << 30
"""Bytes that are handed to one query, all its tables together."""
MAX_SHARE = 0.5
"""Of the disk's free space when the query begins: the most that its copies may take."""
POLL_S = 0.05
START_TIMEOUT_S = 60.0
EXPORT_ROWS = 16_384


class Stopped(Exception):
    """Why a query was ended."""


class Worker:
    """One process, which answers one query at a time."""

    def __init__(self) -> None:
        self._sock, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from core.pool.sql.worker import main; main()"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                # A Ctrl-C in the terminal is for the owner, which ends this one.
                start_new_session=True,
                # The worker gets only the module path: other environment variables may hold keys.
                env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONDONTWRITEBYTECODE": "1"},
            )
        self._sock.setblocking(False)
        self._ready = False

    @property
    def alive(self) -> bool:
        """Whether it still takes queries."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End it at once, whatever it does."""
        self._process.kill()
        self._process.wait()
        self._sock.close()

    def wait_ready(self, stopping: threading.Event) -> None:
        """Wait until it has started. PoolError when it does not."""
        if not self._ready:
            try:
                self._receive(_Limits(time.monotonic() + START_TIMEOUT_S, START_TIMEOUT_S, stopping))
            except Stopped as error:
                raise PoolError("The process for queries did not start.", hint="Its log has why.") from error
            self._ready = True

    def answer(
        self,
        request: Mapping[str, Any],
        hand_over: Callable[[Sequence[Any], Callable[[], None]], list[tuple[str, IO[bytes]]]],
        stopping: threading.Event,
    ) -> tuple[pa.Table, bool]:
        """The answer, and whether there was more.

        Args:
            request: the query's message to the worker.
            hand_over: what it reads -> a file of each table; calls its second argument now and then, which raises
                ``Stopped``.

        Raises:
            InvalidInput: the worker's error message about the query.
            Stopped: it took too much; the process has to be ended.
        """
        limits = _Limits(time.monotonic() + request["timeout_s"], request["timeout_s"], stopping)
        self._send(dict(request), limits)
        needed = _checked_answer(self._receive(limits))["reads"]
        with ExitStack() as stack:
            try:
                files = [
                    (name, stack.enter_context(file)) for name, file in hand_over(needed, lambda: self._check(limits))
                ]
            except BaseException:
                # It waits for the files, and would take the next query for them.
                self.kill()
                raise
            self._send({"tables": [name for name, _ in files]}, limits, [file.fileno() for _, file in files])
        answer = _checked_answer(self._receive(limits))
        if not 0 <= answer["n_bytes"] <= 2 * MAX_BYTES:
            raise Stopped("Stopped: its answer is too large.")
        body = self._receive_exactly(answer["n_bytes"], limits)
        return pa.ipc.open_stream(pa.py_buffer(body)).read_all(), bool(answer["truncated"])

    def _check(self, limits: _Limits) -> None:
        if limits.stopping.is_set():
            raise Stopped("Stopped: the service ends.")
        if time.monotonic() >= limits.deadline:
            raise Stopped(f"Stopped after {limits.timeout_s:g} seconds.")
        if own_memory(self._process.pid) > MAX_GROWTH:
            raise Stopped(f"Stopped: it took more than {MAX_GROWTH >> 20} MiB of memory.")

    def _wait(self, limits: _Limits, *, write: bool = False) -> None:
        # `select` refuses descriptors over 1023, which a process with many connections has.
        poll = select.poll()
        poll.register(self._sock, select.POLLOUT if write else select.POLLIN)
        while True:
            self._check(limits)
            if poll.poll(POLL_S * 1000):
                return

    def _send(self, message: dict[str, Any], limits: _Limits, fds: list[int] | None = None) -> None:
        # Messages sent before an answer is read are small, so the socket's buffer can't block.
        self._wait(limits, write=True)
        self._sock.settimeout(max(0.1, limits.deadline - time.monotonic()))
        try:
            send(self._sock, message, fds=fds)
        except OSError as error:
            raise Stopped(self._why_ended()) from error
        finally:
            self._sock.setblocking(False)

    def _receive(self, limits: _Limits) -> dict[str, Any]:
        n_bytes = LENGTH.unpack(self._receive_exactly(LENGTH.size, limits))[0]
        if n_bytes > MAX_MESSAGE:
            raise Stopped("Stopped: its answer is too large.")
        message: dict[str, Any] = json.loads(bytes(self._receive_exactly(n_bytes, limits)))
        return message

    def _receive_exactly(self, n_bytes: int, limits: _Limits) -> bytearray:
        held = bytearray(n_bytes)
        view, at = memoryview(held), 0
        while at < n_bytes:
            self._wait(limits)
            try:
                n = self._sock.recv_into(view[at:])
            except OSError as error:
                raise Stopped(self._why_ended()) from error
            if not n:
                raise Stopped(self._why_ended())
            at += n
        return held

    def _why_ended(self) -> str:
        try:
            code = self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            code = None
        return f"Stopped by the system: too much memory or processor time (its process ended with {code})."


class _Limits:
    def __init__(self, deadline: float, timeout_s: float, stopping: threading.Event) -> None:
        self.deadline, self.timeout_s, self.stopping = deadline, timeout_s, stopping


def _checked_answer(answer: dict[str, Any]) -> dict[str, Any]:
    if "error" in answer:
        raise InvalidInput(str(answer["error"]), field="sql", hint=answer.get("hint"))
    return answer


class QueryRunner:
    """Runs queries in worker processes, at most ``AT_ONCE`` at a time. One idle worker is kept for the next query."""

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self._turns = threading.BoundedSemaphore(AT_ONCE)
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self._busy: set[Worker] = set()

    def warm(self) -> None:
        """Begin to start a process, unless there is one, so that the next query need not wait for it."""
        with self._lock:
            self._reap()
            if not self._idle and not self._busy and not self._stopping.is_set():
                self._idle.append(Worker())

    def _reap(self) -> None:
        for worker in [worker for worker in self._idle if not worker.alive]:
            self._idle.remove(worker)
            worker.kill()

    @contextmanager
    def worker(self) -> Iterator[Worker]:
        """A process for one query; ended with it when it was stopped or failed.

        Raises:
            Conflict: as many queries as are let run at once are running.
            InvalidInput: the query was stopped.
        """
        if not self._turns.acquire(timeout=1.0):
            raise Conflict(f"{AT_ONCE} queries are running already.", field="sql", hint="Wait for one of them to end.")
        try:
            with self._lock:
                self._reap()
                worker = self._idle.pop() if self._idle else Worker()
                self._busy.add(worker)
            fit = False
            try:
                worker.wait_ready(self._stopping)
                yield worker
                fit = own_memory(worker._process.pid) < MAX_GROWTH // 2
            except InvalidInput:
                fit = True
                raise
            except Stopped as error:
                raise InvalidInput(str(error), field="sql", hint="Ask for less, or narrow it first.") from error
            finally:
                with self._lock:
                    self._busy.discard(worker)
                    fit = fit and worker.alive and not self._stopping.is_set()
                    if fit:
                        self._idle.append(worker)
                if not fit:
                    worker.kill()
                    self.warm()
        finally:
            self._turns.release()

    def close(self) -> None:
        """End all processes; running queries fail with a message."""
        self._stopping.set()
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.kill()


class CopyBudget:
    """How much one query's copies may still take: ``MAX_READ``, and a share of what the disk had free.

    Args:
        folder: where the copies are; None is the system's for temporary files.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._free = shutil.disk_usage(folder or tempfile.gettempdir()).free
        self._left = min(MAX_READ, int(self._free * MAX_SHARE))

    def take(self, n_bytes: int, table: str) -> None:
        """Count bytes before they are written.

        Raises:
            InvalidInput: they are more than a query may read.
            NoRoom: they are more than the disk has room for.
        """
        self._left -= n_bytes
        if self._left >= 0:
            return
        hint = "Name the columns that you need, or compare a column of one table with a constant."
        if self._free * MAX_SHARE >= MAX_READ:
            raise InvalidInput(
                f"The query reads more than {MAX_READ >> 30} GiB; {table} goes beyond.", field="sql", hint=hint
            )
        raise NoRoom(
            f"The query copies what it reads, {table} too, and the disk has only {self._free >> 20} MiB free.",
            field="sql",
            hint=f"{hint} Or free some room.",
        )


def write_table(
    cursor: Cursor,
    read: Sequence[Any],
    known: Mapping[str, str],
    budget: CopyBudget,
    check: Callable[[], None],
    source: Callable[[Sequence[str], int | None], str] | None = None,
) -> IO[bytes]:
    """Write the rows that a query reads of one table to an unnamed Arrow file, which is gone when the process ends.

    Args:
        read: table, columns, ``(column, comparison, constant)`` that rows fulfil, and most rows or None.
        known: the table's columns with their types; what is not among them is not read.
        budget: what the query's files may still take, and where they are.
        check: called now and then; ends the reading with an exception.
        source: columns and limit -> SQL of a joined table; None: a table of the file.

    Raises:
        InvalidInput: more bytes than a query may read.
        NoRoom: no room for the file.
        PoolError: the file can't be written.
    """
    table, columns, keep, limit = read
    if not set(columns) <= known.keys() or not {part[0] for part in keep} <= known.keys():
        raise InvalidInput(f"No such columns of {table}.", field="sql")
    if any(symbol not in ("=", "<", ">", "<=", ">=") for _, symbol, _ in keep):
        raise InvalidInput(f"{table} can't be read like this.", field="sql")
    where = " AND ".join(f'"{column}" {symbol} ?' for column, symbol, _ in keep) or "TRUE"
    used = list(dict.fromkeys((*columns, *(part[0] for part in keep))))
    held = f'main."{table}"' if source is None else source(used, None if keep else limit)
    sql = f"SELECT {', '.join(f'{chr(34)}{name}{chr(34)}' for name in columns)} FROM {held} WHERE {where}"
    relation = cursor.sql(sql, params=[value for _, _, value in keep])
    reader = (relation if limit is None else relation.limit(limit)).to_arrow_reader(EXPORT_ROWS)
    file: IO[bytes] = tempfile.TemporaryFile(dir=budget.folder)  # noqa: SIM115 (who asked closes it)
    try:
        with pa.ipc.new_file(file, reader.schema) as writer:
            for batch in reader:
                check()
                budget.take(batch.nbytes, table)
                writer.write_batch(batch)
        file.flush()
    except OSError as error:
        file.close()
        refused = NoRoom if is_full(error) else PoolError
        raise refused(f"What the query reads could not be written to a file: {error}", field="data_dir") from error
    except BaseException:
        file.close()
        raise
    return file
