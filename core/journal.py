"""The durable log of captured calls: append-only segments, one writer thread, group commit.

A segment is ``MAGIC`` followed by records; a record is a header (payload length, CRC-32 of length and
payload, both little-endian uint32) and the payload. Segments are named ``{writer}-{number:08d}.seg``; each
writer owns its own, so several processes share a directory without locks between them.

An append is answered after one ``fdatasync`` that serves every append waiting at that moment. Nothing that
was answered is ever rewritten: a new process starts a new segment, and after a disk error the unsynced bytes
are cut and the next append starts a new segment, so an offset that a reader has passed is never used twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import struct
import threading
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from core.errors import AlreadyOwned, JournalError

MAGIC = b"CLAWJNL1"
SUFFIX = ".seg"
MAX_PAYLOAD_BYTES = 1 << 30
_HEADER = struct.Struct("<II")
_LENGTH = struct.Struct("<I")
_NAME = re.compile(r"^(?P<writer>[A-Za-z0-9_.]+)-(?P<number>\d{8,})\.seg$")
_READ_BUFFER = 1 << 20
_MAX_BATCH_BYTES = 32 << 20

# macOS has no fdatasync; fsync is the same promise at a higher price.
_sync = getattr(os, "fdatasync", os.fsync)

Position = tuple[str, int]
_AsyncWaiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Position]"]


class Record(NamedTuple):
    """One record: the segment it stands in, its first byte, the byte after it, and what was appended."""

    segment: str
    offset: int
    next_offset: int
    payload: bytes


class _Pending(NamedTuple):
    payload: bytes
    header: bytes
    waiter: Future[Position] | _AsyncWaiter


class Journal:
    """The writing end. Thread-safe; ``append`` never blocks on the disk.

    Args:
        directory: folder of the segments, made when absent.
        writer: name of this writer (letters, digits, ``_``, ``.``); one process at a time may hold it.
        segment_bytes: a segment that has reached this size is closed and the next one opened.

    Raises:
        AlreadyOwned: another process writes under this name.
        JournalError: the folder can't be made or read.
    """

    def __init__(self, directory: Path, *, writer: str = "w0", segment_bytes: int = 256 << 20) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.]+", writer):
            raise JournalError(f"bad writer name {writer!r}", field="writer", hint="letters, digits, _ and .")
        self.directory = directory
        self.writer = writer
        self.segment_bytes = segment_bytes
        self.error: str | None = None
        self._fd = -1
        self._segment = ""
        self._size = 0
        self._mark = ""
        self._waiting: list[_Pending] = []
        self._closed = False
        self._wake = threading.Condition(threading.Lock())
        self._synced = threading.Event()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock_fd = _hold(directory / f"{writer}.lock")
            self._number, self.n_bytes = self._recover()
        except OSError as error:
            raise _journal_error(directory, error) from error
        self._mark = f"{writer}.{self._number + 1}.0"
        self._thread = threading.Thread(target=self._run, name=f"journal-{writer}", daemon=True)
        self._thread.start()

    def append(self, payload: bytes) -> Future[Position]:
        """Queue one record.

        Returns:
            A future of ``(segment, offset)``, done once the record is synced to disk; JournalError when it is not.
        """
        future: Future[Position] = Future()
        # What is queued gets written: cancelling is not offered.
        future.set_running_or_notify_cancel()
        refusal = self._enqueue(payload, future)
        if refusal is not None:
            future.set_exception(refusal)
        return future

    async def append_async(self, payload: bytes) -> Position:
        """Append and wait for the sync without blocking the event loop.

        Raises:
            JournalError: the record is not durable.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Position] = loop.create_future()
        refusal = self._enqueue(payload, (loop, future))
        if refusal is not None:
            raise refusal
        return await future

    def mark(self) -> str:
        """A place, as text, at or before which no record stands that is appended from now on; see ``read_after``."""
        return self._mark

    def wait(self, timeout_s: float) -> bool:
        """Wait until something is synced; True when something was since the last wait. For one waiter."""
        happened = self._synced.wait(timeout_s)
        self._synced.clear()
        return happened

    def notice(self) -> None:
        """End a ``wait``: another writer of this folder has synced something."""
        self._synced.set()

    def close(self) -> None:
        """Write and sync everything queued, end the writer thread, give the name back."""
        with self._wake:
            if self._closed:
                return
            self._closed = True
            self._wake.notify()
        self._thread.join()
        self._synced.set()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        os.close(self._lock_fd)

    def _enqueue(self, payload: bytes, waiter: Future[Position] | _AsyncWaiter) -> JournalError | None:
        if len(payload) > MAX_PAYLOAD_BYTES:
            return JournalError(f"a record of {len(payload)} bytes is over the limit of {MAX_PAYLOAD_BYTES}")
        # Here and not in the writer's thread, which would hand the interpreter over once more for each record.
        crc = zlib.crc32(payload, zlib.crc32(_LENGTH.pack(len(payload))))
        header = _HEADER.pack(len(payload), crc)
        with self._wake:
            if self._closed:
                return JournalError("the journal is closed", hint="the service is shutting down")
            self._waiting.append(_Pending(payload, header, waiter))
            if not isinstance(waiter, tuple):
                self._wake.notify()
            elif len(self._waiting) == 1:
                # Only the first of a batch has to wake the writer, once the loop has done what is ready now: records
                # of the same turn share a sync, and the two threads do not contend for the interpreter meanwhile.
                waiter[0].call_soon(self._notify)
        return None

    def _notify(self) -> None:
        with self._wake:
            self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._waiting and not self._closed:
                    self._wake.wait()
                if not self._waiting:
                    return
                batch, self._waiting = _take(self._waiting)
            try:
                positions = self._commit(batch)
            except (OSError, MemoryError) as error:
                failure = _journal_error(self.directory, error)
                self.error = failure.message
                self._cut()
                _answer(batch, None, failure)
            else:
                self.error = None
                _answer(batch, positions, None)
                self._synced.set()

    def _commit(self, batch: list[_Pending]) -> list[Position]:
        if self._fd < 0 or self._size >= self.segment_bytes:
            self._roll()
        offset = self._size
        positions: list[Position] = []
        buffers: list[bytes] = []
        for payload, header, _ in batch:
            positions.append((self._segment, offset))
            buffers.append(header)
            buffers.append(payload)
            offset += _HEADER.size + len(payload)
        _write_all(self._fd, buffers[0] + buffers[1] if len(batch) == 1 else b"".join(buffers))
        _sync(self._fd)
        self.n_bytes += offset - self._size
        self._size = offset
        # One assignment: readers in other threads see this place or the one before.
        self._mark = f"{self.writer}.{self._number}.{offset}"
        return positions

    def _roll(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._number += 1
        self._segment = f"{self.writer}-{self._number:08d}{SUFFIX}"
        self._size = 0
        path = self.directory / self._segment
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        _write_all(self._fd, MAGIC)
        self._size = len(MAGIC)
        self.n_bytes += len(MAGIC)
        # The name has to survive a power cut as well as the bytes do.
        _sync_directory(self.directory)

    def _cut(self) -> None:
        """Take back what the failed batch wrote; the next batch starts a new segment."""
        if self._fd < 0:
            return
        path = self.directory / self._segment
        try:
            if self._size <= len(MAGIC):
                self.n_bytes -= self._size
                path.unlink(missing_ok=True)
            else:
                os.ftruncate(self._fd, self._size)
        except OSError as error:
            # Readers stop at an unfinished record by its checksum, so a tail that stays is harmless.
            self.error = f"{self.error}; cutting the unfinished tail failed too: {error.strerror}"
        finally:
            os.close(self._fd)
            self._fd = -1

    def _recover(self) -> tuple[int, int]:
        """Cut the torn tail of the own last segment.

        Returns:
            The highest segment number in use and the bytes of all own segments.
        """
        own = [name for name in _segments(self.directory) if _writer_of(name) == self.writer]
        n_bytes = 0
        for name in own:
            path = self.directory / name
            size = path.stat().st_size
            if name == own[-1] and _is_segment(path):
                end = len(MAGIC)
                for record in _read_segment(path, len(MAGIC)):
                    end = record.next_offset
                os.truncate(path, end)
                size = end
            n_bytes += size
        return (_number_of(own[-1]) if own else 0), n_bytes


def read_records(directory: Path, after: Mapping[str, int]) -> Iterator[Record]:
    """Read every whole record past the given positions, segment by segment in order of their names.

    May run while writers write: a record that is not there in full yet ends its segment's turn, and a later
    call with the new positions finds it.

    Args:
        directory: folder of the segments; an absent one is empty.
        after: segment name -> offset of the first unread byte (``Record.next_offset``); absent means unread.
    """
    for name in _segments(directory):
        yield from _read_segment(directory / name, max(after.get(name, 0), len(MAGIC)))


def read_writers(directory: Path, after: Mapping[str, int]) -> list[Iterator[Record]]:
    """Like ``read_records``, each writer's records by themselves."""
    by_writer: dict[str, list[str]] = {}
    for name in _segments(directory):
        by_writer.setdefault(_writer_of(name), []).append(name)
    return [
        chain.from_iterable(_read_segment(directory / name, max(after.get(name, 0), len(MAGIC))) for name in names)
        for names in by_writer.values()
    ]


def read_after(directory: Path, mark: str) -> Iterator[Record]:
    """Read the whole records of one writer from a mark on. A mark that names no place reads nothing."""
    rest, _, offset = mark.rpartition(".")
    writer, _, number = rest.rpartition(".")
    if not (number.isdecimal() and offset.isdecimal()):
        return
    for name in _segments(directory):
        if _writer_of(name) == writer and _number_of(name) >= int(number):
            first = _number_of(name) == int(number)
            yield from _read_segment(directory / name, max(int(offset) if first else 0, len(MAGIC)))


def read_segment(directory: Path, segment: str, offset: int) -> Iterator[Record]:
    """The whole records of one segment from where one begins; ends where one is damaged or not there in full."""
    if _NAME.match(segment):
        yield from _read_segment(directory / segment, offset)


def journal_bytes(directory: Path) -> int:
    """Bytes of all segments of all writers in the folder."""
    total = 0
    for name in _segments(directory):
        # A segment whose first batch failed is taken away again.
        with contextlib.suppress(FileNotFoundError):
            total += (directory / name).stat().st_size
    return total


def _read_segment(path: Path, offset: int) -> Iterator[Record]:
    try:
        if path.stat().st_size <= offset:
            return
        file = path.open("rb", buffering=_READ_BUFFER)
    except FileNotFoundError:
        # A segment whose first batch failed is taken away again between listing and opening.
        return
    with file:
        if file.read(len(MAGIC)) != MAGIC:
            return
        file.seek(offset)
        while True:
            header = file.read(_HEADER.size)
            if len(header) < _HEADER.size:
                return
            length, crc = _HEADER.unpack(header)
            if length > MAX_PAYLOAD_BYTES:
                return
            payload = file.read(length)
            if len(payload) < length or zlib.crc32(payload, zlib.crc32(header[:4])) != crc:
                return
            end = offset + _HEADER.size + length
            yield Record(path.name, offset, end, payload)
            offset = end


def _is_segment(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _segments(directory: Path) -> list[str]:
    try:
        names = [entry.name for entry in os.scandir(directory)]
    except FileNotFoundError:
        return []
    return sorted((name for name in names if _NAME.match(name)), key=lambda name: (_writer_of(name), _number_of(name)))


def _writer_of(name: str) -> str:
    return name.rpartition("-")[0]


def _number_of(name: str) -> int:
    return int(name.rpartition("-")[2].removesuffix(SUFFIX))


def _take(waiting: list[_Pending]) -> tuple[list[_Pending], list[_Pending]]:
    """Split off one batch: at least one record, and then up to ``_MAX_BATCH_BYTES``."""
    n_bytes = 0
    for index, pending in enumerate(waiting):
        n_bytes += len(pending.payload)
        if index and n_bytes > _MAX_BATCH_BYTES:
            return waiting[:index], waiting[index:]
    return waiting, []


def _answer(batch: list[_Pending], positions: list[Position] | None, failure: JournalError | None) -> None:
    """Resolve every waiter; the waiters of one event loop are woken together, by one system call."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Position], Position | None]]] = {}
    for index, (_, _, waiter) in enumerate(batch):
        position = positions[index] if positions is not None else None
        if isinstance(waiter, tuple):
            by_loop.setdefault(waiter[0], []).append((waiter[1], position))
        elif position is not None:
            waiter.set_result(position)
        else:
            waiter.set_exception(failure)
    for loop, results in by_loop.items():
        # A loop that has ended has nobody left to tell.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_resolve, results, failure)


def _resolve(results: list[tuple[asyncio.Future[Position], Position | None]], failure: JournalError | None) -> None:
    for future, position in results:
        if future.done():
            continue
        if position is not None:
            future.set_result(position)
        elif failure is not None:
            future.set_exception(failure)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _hold(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise AlreadyOwned(
            f"another process writes the journal as {path.stem!r} in {path.parent}",
            hint="stop it, or use another data folder",
        ) from error
    return fd


def _journal_error(directory: Path, error: OSError | MemoryError) -> JournalError:
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return JournalError(
        f"the journal in {directory} can't be written: {reason}",
        hint="free disk space or make the folder writable; calls go through again by themselves after that",
    )
