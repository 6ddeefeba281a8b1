"""The log of a run: append-only lines of JSON, each with a checksum, synced before the writer goes on.

A line is ``CRC32 JSON``. A torn last line, as a killed writer leaves it, is ignored by readers and cut by the next
writer.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson

from core.durable import sync_folder
from core.errors import AlreadyOwned
from core.journal.lock import hold_lock

LOG = "synthesis.log"
LOCK = "writer.lock"


def line_of(record: Mapping[str, Any]) -> bytes:
    """The line of a record."""
    body = orjson.dumps(dict(record))
    return b"%08x %s\n" % (zlib.crc32(body), body)


def record_of(line: bytes) -> dict[str, Any] | None:
    """The record of a line without its line break; None if the line is damaged."""
    checksum, _, body = line.partition(b" ")
    try:
        if int(checksum, 16) != zlib.crc32(body):
            return None
        record = orjson.loads(body)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def read_log(path: Path) -> tuple[list[dict[str, Any]], int]:
    """All whole records in order, and the number of damaged lines before the end, which are skipped."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    whole, end, _ = content.rpartition(b"\n")
    lines = [record_of(line) for line in whole.split(b"\n")] if end else []
    records = [one for one in lines if one is not None]
    return records, len(lines) - len(records)


class LogWriter:
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

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a record; it is on disk when this returns."""
        line = line_of(record)
        with self._lock:
            n_written = os.write(self._fd, line)
            if n_written < len(line):
                os.ftruncate(self._fd, os.fstat(self._fd).st_size - n_written)
                raise OSError(f"only {n_written} of {len(line)} bytes could be written to {LOG}")
        os.fdatasync(self._fd)

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)
        os.close(self._held)
