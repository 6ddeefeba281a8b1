"""Writes the journal: one writer thread, group commit.

Each writer owns its segments, ``{writer}-{number:08d}.seg`` (``core.journal.layout``), so several processes share a
directory without locks between them.

One ``fdatasync`` serves all appends that are waiting at that moment. Acknowledged records are never rewritten or cut. A
new process starts a new segment and does not change the last one. After a disk error, the unsynced bytes are cut and
the next append starts a new segment, so an offset that was read is never used twice.

With a target (``core.journal.target``) a commit is on disk first, and acknowledged when its copy is confirmed.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import os
import re
import threading
import time
import zlib
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from core.durable import check_place, sync_folder
from core.errors import JournalError
from core.journal import layout
from core.journal.layout import FRAME_BYTES, MAX_PAYLOAD_BYTES, number_of, writer_of
from core.journal.lock import hold_lock
from core.journal.pending import AsyncWaiter, Pending, Position, answer, take
from core.journal.target import Target, join

PROBE_BYTES = 64 << 10

# macOS has no fdatasync; fsync gives the same guarantee at a higher cost.
_sync = getattr(os, "fdatasync", os.fsync)

_log = logging.getLogger(__name__)


class Journal:
    """The writing end. Thread-safe; ``append`` never blocks on the disk.

    Args:
        directory: folder of the segments; created if missing.
        writer: name of this writer (letters, digits, ``_``, ``.``); only one process at a time can use it.
        segment_bytes: a segment that has reached this size is closed and the next one opened.
        used: names of segments that were read before, even if they no longer exist. New segments get higher numbers,
            so that a position never refers to two records.
        target: where each commit is copied before it is acknowledged (``core.journal.target``); None: nowhere. The
            writer's name must then be unique, see ``incarnation``.

    Raises:
        AlreadyOwned: another process writes under this name.
        JournalError: the folder can't be made or read, or the target can't be reached.
    """

    def __init__(
        self,
        directory: Path,
        *,
        writer: str = "w0",
        segment_bytes: int = 256 << 20,
        used: Iterable[str] = (),
        target: Target | None = None,
    ) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.]+", writer):
            raise JournalError(f"bad writer name {writer!r}", field="writer", hint="letters, digits, _ and .")
        self.directory = directory
        self.writer = writer
        self.segment_bytes = segment_bytes
        self.error: str | None = None
        self._target = target
        self._uncopied = b""
        self._copied = 0
        self._copying: tuple[int, float] | None = None
        self._finishing = ThreadPoolExecutor(1, f"finish-{writer}") if target is not None else None
        self._fd = -1
        self._segment = ""
        self._size = 0
        self._salt = b""
        self._key = 0
        self._mark = ""
        self._waiting: list[Pending] = []
        self._closed = False
        self._wake = threading.Condition(threading.Lock())
        self._synced = threading.Event()
        if target is not None:
            join(target, directory)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock_fd = hold_lock(directory / f"{writer}.lock")
            self._folder = layout.make_folder_id(directory)
            self._number, self._before, self.n_bytes = self._find_segments(used)
        except OSError as error:
            raise _journal_error(directory, error) from error
        self._mark = f"{writer}.{self._number + 1}.0"
        self._thread = self._start()

    @property
    def running(self) -> bool:
        """Whether the writer's thread is running; without it, appends wait."""
        return self._closed or self._thread.is_alive()

    def revive(self) -> None:
        """Start the writer's thread again if it ended without ``close``. Waiting appends continue."""
        with self._wake:
            if not self.running:
                self._abandon()
                self._thread = self._start()

    def append(self, payload: bytes) -> Future[Position]:
        """Queue one record.

        Returns:
            A future of ``(segment, offset)``, done once the record is synced to disk; JournalError when it is not.
        """
        future: Future[Position] = Future()
        # Queued records are always written; they can't be cancelled.
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
        """A position as text; every record appended from now on is after it; see ``read_after``."""
        return self._mark

    def mark_for(self, uid: str) -> str:
        """``mark`` with a signature over a uid; see ``read_since_mark``.

        A forged mark, or one for another uid, is rejected before the journal is read.
        """
        mark = self._mark
        return f"{mark}.{sign(self._folder, mark, uid)}"

    def probe(self) -> str | None:
        """Write, sync and remove a small file in the journal's folder; returns the error, or None.

        A success clears ``error``, so that freed disk space is noticed before the next call.
        """
        path = self.directory / f".{self.writer}.probe"
        try:
            self._check_folder()
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                _write_all(fd, bytes(PROBE_BYTES))
                _sync(fd)
            finally:
                os.close(fd)
                path.unlink(missing_ok=True)
            if self._target is not None:
                self._target.probe(self.writer)
        except OSError as error:
            self.error = _journal_error(self.directory, error).message
        else:
            self.error = None
        return self.error

    @property
    def unshipped(self) -> tuple[int, float]:
        """Bytes that are on this disk and not confirmed by the target yet, and for how long, seconds.

        Their calls wait for it. (0, 0.0) without a target.
        """
        copying = self._copying
        return (0, 0.0) if copying is None else (copying[0], time.monotonic() - copying[1])

    @property
    def in_place(self) -> bool:
        """Whether the folder is the one that was opened: not removed, renamed or replaced since."""
        try:
            self._check_folder()
        except OSError:
            return False
        return True

    def _check_folder(self) -> None:
        check_place(self._lock_fd, self.directory / f"{self.writer}.lock")

    def wait(self, timeout_s: float) -> bool:
        """Wait until something is synced; True when something was since the last wait. For one waiter."""
        happened = self._synced.wait(timeout_s)
        self._synced.clear()
        return happened

    def notice(self) -> None:
        """End a ``wait``: another writer of this folder has synced something."""
        self._synced.set()

    def close(self) -> None:
        """Write and sync everything queued, end the writer thread, release the writer's name."""
        with self._wake:
            if self._closed:
                return
            self._closed = True
            self._wake.notify()
        self._thread.join()
        self._synced.set()
        self._abandon()
        if self._finishing is not None:
            self._finishing.shutdown(wait=True)
        os.close(self._lock_fd)

    def _enqueue(self, payload: bytes, waiter: Future[Position] | AsyncWaiter) -> JournalError | None:
        if len(payload) > MAX_PAYLOAD_BYTES:
            return JournalError(f"a record of {len(payload)} bytes is over the limit of {MAX_PAYLOAD_BYTES}")
        # Computed here and not in the writer's thread, which avoids one thread switch per record.
        crc = zlib.crc32(payload)
        with self._wake:
            if self._closed:
                return JournalError("the journal is closed", hint="the service is shutting down")
            self._waiting.append(Pending(payload, crc, waiter))
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

    def _start(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name=f"journal-{self.writer}", daemon=True)
        thread.start()
        return thread

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._waiting and not self._closed:
                    self._wake.wait()
                if not self._waiting:
                    return
                batch, self._waiting = take(self._waiting)
            try:
                positions = self._commit(batch)
            except Exception as error:
                if not isinstance(error, OSError | MemoryError):
                    _log.exception("the journal's writer failed")
                failure = _journal_error(self.directory, error)
                self.error = failure.message
                self._truncate()
                answer(batch, None, failure)
            except BaseException as error:
                # The thread ends; appends that wait for this batch fail first.
                self.error = f"the journal's writer ended: {error!r}"
                answer(batch, None, JournalError(self.error))
                raise
            else:
                self.error = None
                answer(batch, positions, None)
                self._synced.set()

    def _commit(self, batch: list[Pending]) -> list[Position]:
        if self._fd < 0 or self._size >= self.segment_bytes:
            self._roll()
        segment, salt, key = self._segment, self._salt, self._key
        offset = self._size
        positions: list[Position] = []
        buffers: list[bytes] = []
        for payload, crc, _ in batch:
            positions.append((segment, offset))
            length = len(payload)
            buffers.append(layout.pack_frame(salt, key, offset, length, crc))
            buffers.append(payload)
            offset += FRAME_BYTES + length
            buffers.append(layout.pack_end(offset, key))
        data = b"".join(buffers)
        _write_all(self._fd, data)
        _sync(self._fd)
        # What is synced to a file that has no name any more would be lost with an answer.
        check_place(self._fd, self.directory / segment)
        if self._target is not None:
            self._copy(self._target, segment, data)
        self.n_bytes += offset - self._size
        self._size = offset
        # A single assignment: readers in other threads see the new position or the previous one.
        self._mark = f"{self.writer}.{self._number}.{offset}"
        return positions

    def _copy(self, target: Target, segment: str, data: bytes) -> None:
        """Copy a commit, and with a segment's first one its head."""
        uncopied = self._uncopied + data
        self._copying = len(uncopied), time.monotonic()
        try:
            target.commit(segment, self._copied, uncopied)
        finally:
            self._copying = None
        self._copied += len(uncopied)
        self._uncopied = b""

    def _roll(self) -> None:
        self._check_folder()
        self._abandon()
        self._number += 1
        self._segment = layout.segment_name(self.writer, self._number)
        self._size = 0
        self._salt, self._key = layout.new_salt(), layout.key_of(self._segment)
        path = self.directory / self._segment
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        head = layout.pack_head(layout.Head(self._segment, self._salt, self._folder, self._before))
        _write_all(self._fd, head)
        self._size = len(head)
        self._uncopied, self._copied = head, 0
        self.n_bytes += len(head)
        # The file name must survive a power failure, too.
        sync_folder(self.directory)

    def _abandon(self) -> None:
        """Close the open segment; the header of the next one stores its end."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._before = self._number, self._size
            if self._target is not None and self._finishing is not None:
                self._finishing.submit(_finish, self._target, self._segment, self.directory / self._segment)

    def _truncate(self) -> None:
        """Truncate the failed batch; the next batch starts a new segment."""
        if self._fd < 0:
            return
        path = self.directory / self._segment
        if self._target is not None:
            # The call failed, so a copy that remains does no harm: it is as if the process had ended before the reply.
            with contextlib.suppress(OSError):
                self._target.cut(self._segment, self._copied)
        try:
            if self._size <= layout.head_bytes(self._segment):
                self.n_bytes -= self._size
                if self.in_place:
                    path.unlink(missing_ok=True)
                os.close(self._fd)
                self._fd = -1
            else:
                os.ftruncate(self._fd, self._size)
        except OSError as error:
            # Readers recognise an unfinished record, so a leftover tail is reported and does no harm.
            self.error = f"{self.error}; cutting the unfinished tail failed too: {error.strerror}"
        finally:
            self._abandon()

    def _find_segments(self, used: Iterable[str]) -> tuple[int, tuple[int, int], int]:
        """The highest number in use, the last own segment's number and end (0 if not known), bytes of all own ones."""
        own_segments = [name for name in layout.segments(self.directory) if writer_of(name) == self.writer]
        sizes = [(self.directory / name).stat().st_size for name in own_segments]
        before = 0, 0
        if own_segments and _ends_whole(self.directory / own_segments[-1], sizes[-1]):
            before = number_of(own_segments[-1]), sizes[-1]
        taken = [name for name in used if layout.is_segment_name(name) and writer_of(name) == self.writer]
        return max(map(number_of, [*own_segments, *taken]), default=0), before, sum(sizes)


def _ends_whole(path: Path, size: int) -> bool:
    """Whether the segment's last byte is where its writer put the end of a record, or of the head."""
    end = layout.pack_end(size, layout.key_of(path.name))
    with path.open("rb") as file:
        file.seek(max(size - len(end), 0))
        if file.read(len(end)) == end:
            return True
    head = layout.read_head(path)
    return head is not None and head.name == path.name and size == layout.head_bytes(path.name)


def _finish(target: Target, segment: str, path: Path) -> None:
    try:
        target.finish(segment, path)
    except OSError as error:
        _log.warning("%s stays in several pieces in %s: %s", segment, target.address, error.strerror)


def sign(folder: bytes, mark: str, uid: str) -> str:
    """The signature of a mark and a uid: sixteen hex digits."""
    return hmac.digest(folder, f"{mark}/{uid}".encode(), "sha256").hex()[:16]


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _journal_error(directory: Path, error: Exception) -> JournalError:
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return JournalError(
        f"the journal in {directory} can't be written: {reason}",
        hint="free disk space, make the folder writable or put it back; calls go through again by themselves after "
        "that",
    )
