"""The runs of a data folder: ``rollouts/RUN/`` has the settings, the attempts log, and the output of each attempt."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import orjson

from core.durable import sync_folder
from core.errors import Conflict, InvalidInput, NotFound
from core.journal.lock import is_held
from core.rollouts.attempt import Attempt
from core.rollouts.log import LOCK, LOG, AttemptReader, AttemptWriter
from core.rollouts.settings import UID, RunSettings, parse_settings

SETTINGS = "run.json"
LOGS = "logs"
MAX_LOG_BYTES = 4 << 20
_NOT_SAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        settings: what it does.
        folder: its folder.
    """

    settings: RunSettings
    folder: Path
    reader: AttemptReader = field(compare=False, repr=False)

    def attempts(self) -> list[Attempt]:
        """Every attempt that was begun, retries included, in order of their beginning."""
        return self.reader.read()

    def newest(self) -> dict[tuple[str, int], Attempt]:
        """Slot (task, number) -> its attempt with the highest retry. Slots that were not begun are missing."""
        newest: dict[tuple[str, int], Attempt] = {}
        for attempt in self.attempts():
            if attempt.slot not in newest or attempt.retry > newest[attempt.slot].retry:
                newest[attempt.slot] = attempt
        return newest

    @property
    def in_progress(self) -> bool:
        """Whether some process works on it."""
        return is_held(self.folder, LOCK.removesuffix(".lock"))

    def writer(self) -> AttemptWriter:
        """The writer of its log. AlreadyOwned if another process works on it."""
        return AttemptWriter(self.folder)

    def write_log(self, attempt: Attempt, content: bytes) -> str:
        """Store an attempt's output; the name is for ``Attempt.log``."""
        name = f"{LOGS}/{file_name(attempt)}"
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        return name

    def read_log(self, attempt: Attempt) -> bytes | None:
        """An attempt's output, at most 4 MiB; None if there is none (yet)."""
        if attempt.log is None:
            return None
        try:
            with (self.folder / LOGS / file_name(attempt)).open("rb") as file:
                return file.read(MAX_LOG_BYTES)
        except FileNotFoundError:
            return None


class RunStore:
    """The runs below ``folder``. Thread-safe; logs are read only as far as they are new."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs: dict[str, Run] = {}
        self._lock = threading.Lock()

    def create(self, settings: RunSettings) -> Run:
        """Create a run; it is on disk when this returns.

        Raises:
            Conflict: there is a run of this name.
        """
        folder = self.folder / settings.run
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            raise Conflict(f"there is a run {settings.run}", field="run", hint="choose another name") from None
        _write(folder / SETTINGS, orjson.dumps(settings.to_json(), option=orjson.OPT_INDENT_2))
        sync_folder(folder.parent)
        return self.get(settings.run)

    def get(self, run: str) -> Run:
        """One run by its uid.

        Raises:
            NotFound: there is no such run.
        """
        with self._lock:
            known = self._runs.get(run)
            if known is None:
                folder = self.folder / run
                path = folder / SETTINGS
                if not UID.fullmatch(run) or not path.is_file():
                    raise NotFound(f"no run {run!r}", field="run", hint="GET /api/v1/rollouts lists them")
                settings = parse_settings(orjson.loads(path.read_bytes()))
                known = self._runs[run] = Run(settings, folder, AttemptReader(folder / LOG))
            return known

    def all(self) -> list[Run]:
        """All runs, newest first. A folder without valid settings is left out."""
        runs = []
        with contextlib.suppress(FileNotFoundError):
            for path in self.folder.iterdir():
                with contextlib.suppress(NotFound, InvalidInput, ValueError):
                    runs.append(self.get(path.name))
        return sorted(runs, key=lambda one: (one.settings.created_at, one.settings.run), reverse=True)

    def find(self, trajectory_uid: str) -> tuple[Run, Attempt] | None:
        """The attempt behind a trajectory, with its run."""
        for run in self.all():
            for attempt in run.attempts():
                if attempt.trajectory_uid == trajectory_uid:
                    return run, attempt
        return None


def file_name(attempt: Attempt) -> str:
    """Name of an attempt's log: readable, unique in its run, and safe as a file name."""
    readable = _NOT_SAFE.sub("-", attempt.task_id)[:60]
    unique = sha256(attempt.task_id.encode()).hexdigest()[:8]
    return f"{readable}-{unique}.{attempt.number}.{attempt.retry}.log"


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)
