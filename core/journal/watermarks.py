"""How far the records of other machines' writers are visible in this folder.

A mirror copies the segments of other machines into the journal's folder and writes the file ``watermarks.json``:
writer -> UTC seconds; every record that the writer wrote up to that time is in the folder. A writer that is not in the
file writes to the folder itself, so its records are visible at once.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import orjson

from core.errors import JournalError

FILE: Final = "watermarks.json"


def write_watermarks(directory: Path, until: Mapping[str, float]) -> None:
    """Replace the file: writer -> UTC seconds. Writers that are left out count as writers of this machine.

    The copied segments must be on disk before. Only one process may write watermarks of a folder. Raises OSError.
    """
    temporary = directory / f".{FILE}.{os.getpid()}"
    with temporary.open("wb") as file:
        file.write(orjson.dumps(dict(until)))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(directory / FILE)


class Watermarks:
    """Reads the file again when it has changed."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._version: tuple[int, int, int] | None = None
        self._until: dict[str, float] = {}

    def read(self) -> Mapping[str, float]:
        """Writer -> UTC seconds; empty on a single machine.

        Raises:
            JournalError: the file is not valid.
        """
        try:
            status = self._path.stat()
            version = status.st_ino, status.st_mtime_ns, status.st_size
            if version != self._version:
                self._until = _parse(self._path.read_bytes())
                self._version = version
        except FileNotFoundError:
            self._version, self._until = None, {}
        except (OSError, ValueError) as error:
            raise JournalError(
                f"{self._path} can't be read: {error}",
                field="watermarks",
                hint="start the cluster's mirror, which writes it again, or remove it if no other machine takes calls",
            ) from error
        return self._until


def _parse(data: bytes) -> dict[str, float]:
    until = orjson.loads(data)
    if not isinstance(until, dict):
        raise ValueError("it must be an object: writer -> UTC seconds")
    for writer, at in until.items():
        if not isinstance(at, int | float) or isinstance(at, bool) or not math.isfinite(at):
            raise ValueError(f"the time of {writer!r} is {at!r}, which is no number of seconds")
    return {writer: float(at) for writer, at in until.items()}
