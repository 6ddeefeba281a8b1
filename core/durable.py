"""Syncs files and folders to disk."""

from __future__ import annotations

import ctypes
import errno
import os
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

SYNC_FILE_RANGE_WRITE = 2
"""Begin to write a range to the disk and do not wait for its end (fcntl.h of Linux)."""


def sync_folder(path: Path) -> None:
    """Make created, renamed and removed files of a folder durable (fsync of the folder). Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_place(handle: int, path: Path) -> None:
    """OSError if the open file is not the one at ``path``: it, or a parent folder, was removed or replaced."""
    try:
        current, opened = path.stat(), os.fstat(handle)
        same = (current.st_dev, current.st_ino) == (opened.st_dev, opened.st_ino)
    except FileNotFoundError:
        same = False
    if not same:
        raise OSError(errno.ESTALE, "it was removed or replaced while the studio uses it", str(path))


def begin_sync(file: BinaryIO, begin: int, n: int) -> None:
    """Let the system begin to write ``n`` bytes of a file from ``begin`` on to the disk; nothing is durable by this.

    A later fsync then waits less. Nothing is done for a file in memory, and where the system has no such call.
    """
    start = _sync_file_range()
    try:
        handle = file.fileno()
    except (OSError, AttributeError):
        return
    if start is not None:
        file.flush()
        start(handle, begin, n, SYNC_FILE_RANGE_WRITE)


@cache
def _sync_file_range() -> Any:
    """``sync_file_range`` of the C library; None where it has none."""
    try:
        function = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError, TypeError):
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return function
