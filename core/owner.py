"""Ownership of a data folder: an advisory lock, and a note with the owner's address.

The kernel releases the lock when the process ends, so a killed owner does not block the next one. The note
(``owner.json``) only helps clients to find a running service; it is valid only while the lock is held.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.errors import AlreadyOwned, PoolError
from core.journal.lock import take

LOCK_NAME = "owner.lock"
NOTE_NAME = "owner.json"


@dataclass
class OwnerLock:
    """A held lock on a data folder."""

    directory: Path
    fd: int

    @classmethod
    def acquire(cls, directory: Path) -> OwnerLock:
        """Lock the folder and create it if needed. Raises AlreadyOwned, which names the owner, or PoolError."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            fd = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as err:
            raise _unusable(directory, err) from err
        # `running_service` of another process may hold the lock for a moment.
        if not take(fd):
            os.close(fd)
            note = _read(directory) or {}
            at = f" at {note['base_url']}" if "base_url" in note else ""
            raise AlreadyOwned(
                f"{directory} already has an owner: process {note.get('pid', 'unknown')}{at}",
                field="data_dir",
                hint="use that service, stop it, or choose another folder with CLAW_STUDIO_DATA_DIR",
            )
        try:
            # A killed owner leaves its note. Another program may have the port now, and clients send their key to it.
            (directory / NOTE_NAME).unlink(missing_ok=True)
        except OSError as err:
            os.close(fd)
            raise _unusable(directory, err) from err
        return cls(directory, fd)

    def announce(self, base_url: str, *, pages_address: str | None = None) -> None:
        """Write the note atomically. ``pages_address``: address of the pages of this process, if it serves them."""
        temporary = self.directory / (NOTE_NAME + ".tmp")
        temporary.write_text(json.dumps({"pid": os.getpid(), "base_url": base_url, "pages_address": pages_address}))
        temporary.replace(self.directory / NOTE_NAME)

    def release(self) -> None:
        """Remove the note and release the lock."""
        (self.directory / NOTE_NAME).unlink(missing_ok=True)
        os.close(self.fd)


def running_service(directory: Path) -> dict[str, Any] | None:
    """``{"pid", "base_url", "pages_address"}`` of the process that owns ``directory`` now, or None."""
    lock = directory / LOCK_NAME
    if not lock.exists():
        return None
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _read(directory)
    return None


def _unusable(directory: Path, error: OSError) -> PoolError:
    return PoolError(
        f"{directory} can't be used: {error.strerror}",
        field="data_dir",
        hint="make it writable for this user, or set CLAW_STUDIO_DATA_DIR to another folder",
    )


def _read(directory: Path) -> dict[str, Any] | None:
    try:
        note = json.loads((directory / NOTE_NAME).read_text())
    except (OSError, ValueError):
        return None
    return note if isinstance(note, dict) else None
