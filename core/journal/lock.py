"""The lock file of a journal writer: one process at a time writes under a name."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from core.errors import AlreadyOwned

_HOLD_S = 1.0
"""Seconds to retry: a reader may hold the lock for a moment to check for a writer."""


def take(fd: int) -> bool:
    """Lock the open file for this process alone; False if another process has held it for a second."""
    deadline = time.monotonic() + _HOLD_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        else:
            return True


def is_held(directory: Path, writer: str) -> bool:
    """Whether some process writes under this name now."""
    try:
        fd = os.open(directory / f"{writer}.lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def hold_lock(path: Path) -> int:
    """Take the lock; returns its descriptor. AlreadyOwned if another process has it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if take(fd):
        return fd
    os.close(fd)
    raise AlreadyOwned(
        f"another process writes the journal as {path.stem!r} in {path.parent}",
        hint="stop it, or use another data folder",
    )
