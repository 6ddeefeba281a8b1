"""Syncs a folder's entries to disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path


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
