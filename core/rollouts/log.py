"""The attempts log of a run: append-only lines, each with a checksum, synced before the writer goes on.

A line is ``CRC32 JSON``. The newest line of an attempt is its state. A torn last line, as a killed writer leaves it, is
ignored by readers and cut by the next writer.
"""

from __future__ import annotations

import os
import threading
import zlib
from pathlib import Path
from types import TracebackType

import orjson

from core.durable import sync_folder
from core.errors import AlreadyOwned, InvalidInput
from core.journal.lock import hold_lock
from core.rollouts.attempt import Attempt, parse_attempt

LOG = "attempts.log"
LOCK = "writer.lock"


def line_of(attempt: Attempt) -> bytes:
    """The line of an attempt."""
    body = orjson.dumps(attempt.to_json(), option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
    return b"%08x %s\n" % (zlib.crc32(body), body)


def attempt_of(line: bytes) -> Attempt | None:
    """The attempt of a line without its line break; None if the line is damaged."""
    checksum, _, body = line.partition(b" ")
    try:
        if int(checksum, 16) != zlib.crc32(body):
            return None
        return parse_attempt(orjson.loads(body))
    except (ValueError, InvalidInput):
        return None


class AttemptReader:
    """Reads a log as it grows. Thread-safe.

    Attributes:
        n_damaged: damaged lines before the end, which are skipped.
    """

    def __init__(self, path: Path) -> None:
        self.n_damaged = 0
        self._path = path
        self._offset = 0
        self._attempts: dict[tuple[str, int, int], Attempt] = {}
        self._lock = threading.Lock()

    def read(self) -> list[Attempt]:
        """The newest state of every attempt, in order of their beginning."""
        with self._lock:
            try:
                with self._path.open("rb") as file:
                    if os.fstat(file.fileno()).st_size < self._offset:  # a writer cut a torn line
                        self._offset, self.n_damaged = 0, 0
                        self._attempts.clear()
                    file.seek(self._offset)
                    whole, end, _ = file.read().rpartition(b"\n")
            except FileNotFoundError:
                return []
            self._offset += len(whole) + len(end)
            for line in whole.split(b"\n") if whole else ():
                attempt = attempt_of(line)
                if attempt is None:
                    self.n_damaged += 1
                else:
                    self._attempts[(*attempt.slot, attempt.retry)] = attempt
            return list(self._attempts.values())


class AttemptWriter:
    """The one writer of a log, in ``with``. ``write`` is thread-safe.

    Raises:
        AlreadyOwned: another process writes this run.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self._held = hold_lock(folder / LOCK)
        except AlreadyOwned as error:
            raise AlreadyOwned(
                f"the run {folder.name} is in progress", field="run", hint="cancel it, or wait for its end"
            ) from error
        self._lock = threading.Lock()
        path = folder / LOG
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        content = path.read_bytes()
        n_whole = content.rfind(b"\n") + 1
        if n_whole < len(content):
            os.ftruncate(self._fd, n_whole)
        os.fsync(self._fd)
        sync_folder(folder)

    def write(self, attempt: Attempt) -> None:
        """Append the state of an attempt; it is on disk when this returns."""
        line = line_of(attempt)
        with self._lock:
            n_written = os.write(self._fd, line)
            if n_written < len(line):
                os.ftruncate(self._fd, os.fstat(self._fd).st_size - n_written)
                raise OSError(f"only {n_written} of {len(line)} bytes could be written to {LOG}")
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Release the run."""
        os.close(self._fd)
        os.close(self._held)

    def __enter__(self) -> AttemptWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
