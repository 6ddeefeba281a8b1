"""A file whose bytes are hashed and written by a separate thread while the next ones are encoded.

The system is told to write to the disk as the file grows. Otherwise it would begin when the whole file is synced, and
large exports would wait for the disk at their end.
"""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import BinaryIO

from core.durable import begin_sync

BATCH_BYTES = 4 << 20
"""Bytes per batch for the thread."""
BATCHES_WAITING = 3
"""Batches that may wait for the thread; then ``write`` blocks, if the encoder is faster than the disk."""

LARGE_BYTES = 1 << 20
"""Pieces of this size are hashed and written alone; smaller ones are put together first."""
SYNC_BYTES = 32 << 20
"""Bytes after which the system is told to write them to the disk."""

Piece = bytes | memoryview


class Sink:
    """A binary file that is hashed as it is written.

    A ``memoryview`` is kept until it is written, so its memory must not change before.
    Use it as a context manager: leaving it ends the thread; after an error, waiting batches are not written.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._pieces: list[Piece] = []
        self._n_pending = 0
        self._batches: queue.Queue[list[Piece] | None] = queue.Queue(BATCHES_WAITING)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._n_stored = self._n_syncing = 0
        self.n_bytes = 0
        self.closed = False

    def __enter__(self) -> Sink:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.drain()
        elif self._thread is not None:
            # The first error is raised; a later one of the thread is ignored.
            self._error = error
        self._end()

    def write(self, data: Piece) -> int:
        """Append. OSError: an earlier piece could not be written."""
        # Copied, because a view from a C++ library is valid only during the call.
        owned = isinstance(data, bytes) or (isinstance(data, memoryview) and data.obj is not None)
        self._pieces.append(data if owned else bytes(data))
        n = len(data)
        self.n_bytes += n
        self._n_pending += n
        if self._n_pending >= BATCH_BYTES:
            self._hand_over()
        return n

    def flush(self) -> None:
        """Hand buffered bytes to the operating system."""
        self.drain()
        self._file.flush()

    def close(self) -> None:
        """Refuse further writes; the owner closes the file."""
        self.closed = True

    def drain(self) -> None:
        """Wait until every byte so far is hashed and written. OSError: one could not be written."""
        if self._thread is None:
            self._store(self._pieces)
            self._pieces, self._n_pending = [], 0
            return
        self._hand_over()
        self._batches.join()
        self._refuse_after_error()

    @property
    def sha256(self) -> str:
        """The hash of all bytes written so far."""
        self.drain()
        return self._digest.hexdigest()

    def _store(self, pieces: list[Piece]) -> None:
        for piece in _joined(pieces):
            self._digest.update(piece)
            self._file.write(piece)
            self._n_stored += len(piece)
        if self._n_stored - self._n_syncing >= SYNC_BYTES:
            begin_sync(self._file, self._n_syncing, self._n_stored - self._n_syncing)
            self._n_syncing = self._n_stored

    def _hand_over(self) -> None:
        self._refuse_after_error()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="export-sink", daemon=True)
            self._thread.start()
        self._batches.put(self._pieces)
        self._pieces, self._n_pending = [], 0

    def _refuse_after_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while (batch := self._batches.get()) is not None:
            # After an error batches are dropped, so that the writer never blocks.
            if self._error is None:
                try:
                    self._store(batch)
                except BaseException as error:
                    self._error = error
            self._batches.task_done()

    def _end(self) -> None:
        if self._thread is not None:
            self._batches.put(None)
            self._thread.join()
            self._thread = None


def _joined(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """The pieces in order, small ones put together: each call of a hash or file waits for the interpreter's lock."""
    small: list[Piece] = []
    for piece in pieces:
        if len(piece) < LARGE_BYTES:
            small.append(piece)
            continue
        if small:
            yield b"".join(small)
            small = []
        yield piece
    if small:
        yield b"".join(small)
