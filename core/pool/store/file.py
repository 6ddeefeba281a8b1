"""``pool.file``: copies the pool's file while it is in use, measures it, and checkpoints it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from core.errors import InvalidInput
from core.pool.store.database import Database

COPY_BYTES = 8 << 20


class PoolFile:
    """``pool.file``: the file as a whole.

    Attributes:
        lock: held while files of the data folder are copied or put elsewhere: a backup is of one moment.
    """

    def __init__(self, database: Database) -> None:
        self._db = database
        self.lock = threading.Lock()

    @property
    def damage(self) -> str | None:
        """What showed that the file is damaged; None while nothing did."""
        return self._db.damage

    @property
    def gone(self) -> str | None:
        """That the file, or the folder of the opinions log, was removed or replaced since it was opened, or None.

        What is written to the file meanwhile is in the journal and in the opinions log too; labels are refused without
        the log.
        """
        log = self._db.log
        if self._db.in_place and (log is None or log.in_place):
            return None
        gone = self._db.path if log is None or log.in_place else log.directory
        return f"{gone} was removed or replaced while the studio uses it; put it back, or start the studio again"

    def copy_to(self, target: Path, folders: Sequence[Path], clock: Callable[[], float]) -> dict[str, Any]:
        """Copy the file and its write-ahead log between two writes; writers wait, readers don't.

        Returns ``{files: [names beside target], positions, n_steps, sizes: {segment of folders: bytes}, at}``, of that
        very moment; ``at`` is what ``clock`` said of it.
        """
        source = Path(self._db.path)
        if self._db.path == ":memory:":
            raise InvalidInput("A pool in memory has no file to copy.", field="data_dir")
        with self._db.lock:
            sizes = {path: path.stat().st_size for folder in folders for path in sorted(folder.glob("*.seg"))}
            at = clock()
            with self._db.read() as cursor:
                positions = dict(cursor.execute("SELECT segment, next_offset FROM journal_positions").fetchall())
                n_steps = cursor.execute("SELECT count(*) FROM steps").fetchall()[0][0]
            names = []
            for path in (source, source.with_name(source.name + ".wal")):
                if path.exists():
                    copy_file(path, target.with_name(target.name + path.name.removeprefix(source.name)))
                    names.append(target.name + path.name.removeprefix(source.name))
        return {"files": names, "positions": positions, "n_steps": n_steps, "sizes": sizes, "at": at}

    @property
    def n_bytes(self) -> int:
        """Size of the file and its write-ahead log, bytes."""
        source = Path(self._db.path)
        paths = (source, source.with_name(source.name + ".wal"))
        return sum(path.stat().st_size for path in paths if path.exists())

    def table_counts(self, tables: Sequence[str]) -> dict[str, int]:
        """Rows by table."""
        with self._db.read() as cursor:
            return {name: cursor.execute(f"SELECT count(*) FROM {name}").fetchall()[0][0] for name in tables}

    def settle(self) -> None:
        """Take the write-ahead log into the file: it may be moved once it is closed."""
        self._db.checkpoint()


def copy_file(source: Path, target: Path, n_bytes: int | None = None) -> None:
    """Copy one file, or its first bytes, for its owner alone, and sync it."""
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    n_left = source.stat().st_size if n_bytes is None else n_bytes
    with source.open("rb") as reading, os.fdopen(handle, "wb") as writing:
        while n_left > 0 and (piece := reading.read(min(n_left, COPY_BYTES))):
            writing.write(piece)
            n_left -= len(piece)
        writing.flush()
        os.fsync(writing.fileno())
