"""Recognises a damaged pool file among other errors, with a hint on how to repair it."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import duckdb

from core.errors import NoRoom, PoolDamaged, PoolError

REPAIR_HINT = "Stop the studio and run `claw-studio doctor --rebuild`: journal and opinions log make the file anew."
RESTART = "Free some room on its disk and start the studio again."

_BROKEN = (
    "checksum", "corrupt", "serializ", "not a valid duckdb", "invalidated", "unexpected end", "out of range",
    "could not read enough bytes", "deserializ", "wal file", "internal error", "malformed", "block id",
    "failed to load", "replaying",
)  # fmt: skip
_LOCKED = ("could not set lock", "conflicting lock")
_NEWER = ("version number", "newer version of duckdb", "storage version")
_FULL = ("no space left", "disk quota", "input/output error", "file too large", "out of memory")
_NO_ROOM = ("no space left", "disk quota")
_HEADERS_BYTES = 3 * 4096


def opening_failed(path: str, error: BaseException) -> PoolError:
    """The StudioError for a failure to open the file."""
    message = str(error)
    low = message.lower()
    if any(word in low for word in _LOCKED):
        return PoolError(
            f"The pool could not be opened: {message}", field="data_dir", hint="Is another studio using this folder?"
        )
    if any(word in low for word in _NO_ROOM):
        return NoRoom(f"The pool could not be opened: {message}", field="data_dir", hint="Free some room on its disk.")
    if any(word in low for word in _FULL) or isinstance(error, OSError | PermissionError) or not _readable(path):
        return PoolError(
            f"The pool could not be opened: {message}", field="data_dir", hint="Is it writable? Has its disk room?"
        )
    if any(word in low for word in _NEWER):
        return PoolError(
            f"The pool could not be opened: {message}",
            field="data_dir",
            hint=f"If a newer claw-studio wrote it, update this one. If it is damaged: {REPAIR_HINT}",
        )
    return PoolDamaged(f"The pool's file {path} is damaged: {message}", field="data_dir", hint=REPAIR_HINT)


def writing_failed(error: duckdb.Error) -> PoolError:
    """The StudioError for a failed write that left the file unchanged."""
    if any(word in str(error).lower() for word in _NO_ROOM):
        return NoRoom(f"The pool could not be written: {error}", field="data_dir", hint="Free some room on its disk.")
    return PoolError(f"The pool could not be written: {error}")


def is_damage(error: BaseException) -> bool:
    """Whether an error of a running pool means that its file is damaged."""
    if isinstance(error, duckdb.FatalException | duckdb.InternalException | duckdb.SerializationException):
        return True
    if may_be_false(error):
        # "Corrupted fixed-size segment: ...": the library gives these errors no class of their own.
        return True
    low = str(error).lower()
    return isinstance(error, duckdb.IOException) and any(word in low for word in _BROKEN)


def may_be_false(error: BaseException) -> bool:
    """Whether DuckDB also raises this for an undamaged file, when a read meets a commit (see ``readcommitlock``)."""
    return isinstance(error, duckdb.Error) and str(error).lower().startswith("corrupted ")


def read_all(cursor: Any) -> None:
    """Read every stored value; raises DuckDB's error for one that can't be read."""
    sql = "SELECT table_name FROM duckdb_tables() WHERE NOT internal AND NOT temporary ORDER BY table_name"
    for (name,) in cursor.execute(sql).fetchall():
        cursor.execute(f'SELECT bit_xor(hash(x)) FROM "{name}" x').fetchall()


def damage_error(path: str, message: str) -> PoolDamaged:
    """The error that readers and writers get from then on."""
    full = any(word in message.lower() for word in _FULL)
    what = "can't be used any more" if full else "is damaged"
    return PoolDamaged(
        f"The pool's file {path} {what}: {message}", field="data_dir", hint=RESTART if full else REPAIR_HINT
    )


def check_length(cursor: Any, path: str) -> None:
    """PoolDamaged when the file is too short for the blocks in use; the library finds out where one is read.

    To be called where the file had no write-ahead log, else blocks count that are in memory only.
    """
    sizes = cursor.execute("SELECT block_size, used_blocks FROM pragma_database_size()").fetchall()
    if not sizes or not sizes[0][0]:
        return
    n_bytes = Path(path).stat().st_size
    expected_size = _HEADERS_BYTES + int(sizes[0][0]) * int(sizes[0][1])
    if n_bytes < expected_size:
        raise PoolDamaged(
            f"The pool's file {path} is cut short: {n_bytes} of {expected_size} bytes",
            field="data_dir",
            hint=REPAIR_HINT,
        )


def make_private(path: Path) -> None:
    """Only its owner reads and writes a file that is there."""
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            path.chmod(0o600)
    except FileNotFoundError:
        return


def _readable(path: str) -> bool:
    return not Path(path).exists() or os.access(path, os.R_OK | os.W_OK)
