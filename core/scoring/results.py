"""Re-scorings of a data folder: ``rescores/NAME/`` has the settings and an append-only file of results."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from core.durable import sync_folder
from core.errors import Conflict, InvalidInput, NotFound

SETTINGS, RESULTS, STATE = "settings.json", "results.jsonl", "state.json"
MAX_REPEATS = 100
TASK, RUBRIC = "task", "rubric"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class RescoreSettings:
    """What is scored again, and how.

    Attributes:
        name: name of the re-scoring; also of the reward policy that adopts it.
        view: filters and condition that choose steps; their trajectories are scored.
        verifier: ``task`` (each task's own check), ``rubric`` (each task's rubric), or a check for
            ``core.rewards.score`` that is the same for all.
        repeats: how often each trajectory is scored.
        judge: ``core.scoring.judge.JudgeSettings`` as JSON, for verifiers that ask a judge; else None.
        isolation: lowest level of isolation of checks that run programs.
        created_at: seconds since the epoch.
    """

    name: str
    created_at: float
    view: Mapping[str, Any] = field(default_factory=dict)
    verifier: str | Mapping[str, Any] = TASK
    repeats: int = 1
    judge: Mapping[str, Any] | None = None
    isolation: str = "process"
    author: str = "api"

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidInput(
                f"{self.name!r} is no name",
                field="name",
                hint="1 to 100 letters, digits, dots, underscores and hyphens",
            )
        if not 1 <= self.repeats <= MAX_REPEATS:
            raise InvalidInput(f"{self.repeats} repeats", field="repeats", hint=f"a number from 1 to {MAX_REPEATS}")
        if isinstance(self.verifier, str) and self.verifier not in (TASK, RUBRIC):
            raise InvalidInput(
                f"no verifier {self.verifier!r}", field="verifier", hint="task, rubric, or a check as an object"
            )

    @property
    def source(self) -> str:
        """Source of the rewards that it gives when it is adopted."""
        return f"rescore:{self.name}"


@dataclass(frozen=True, slots=True)
class Result:
    """One score of one trajectory.

    Attributes:
        trajectory_uid: the trajectory.
        repeat: 0 .. repeats − 1.
        old: its effective reward when the re-scoring read it; None if it had none.
        value: the new reward; None if the verifier failed.
        outcome: a key of ``core.rewards.OUTCOMES``.
        error: why there is no value.
        details: the verifier's reasons.
        environment: what the score depends on besides.
        channel: channel of the trajectory.
    """

    trajectory_uid: str
    repeat: int
    old: float | None
    value: float | None
    outcome: str
    channel: str = ""
    error: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)


class Rescoring:
    """One re-scoring on disk. Thread-safe.

    Attributes:
        settings: what it does.
        folder: its folder.
    """

    def __init__(self, folder: Path, settings: RescoreSettings) -> None:
        self.folder, self.settings = folder, settings
        self._lock = threading.Lock()

    def append(self, result: Result) -> None:
        """Append a result; it is on disk when this returns."""
        line = json.dumps(asdict(result), ensure_ascii=False, default=str) + "\n"
        with self._lock, (self.folder / RESULTS).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def results(self) -> list[Result]:
        """All results, in order. A line that was cut by a crash is left out."""
        return list(self._read())

    @property
    def n_results(self) -> int:
        """Number of results."""
        with contextlib.suppress(FileNotFoundError), (self.folder / RESULTS).open("rb") as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
        return 0

    def _read(self) -> Iterator[Result]:
        with contextlib.suppress(FileNotFoundError), (self.folder / RESULTS).open(encoding="utf-8") as file:
            for line in file:
                with contextlib.suppress(ValueError, TypeError):
                    yield Result(**json.loads(line))

    def repair(self) -> None:
        """End a cut last line, so that the next result begins a new one."""
        with contextlib.suppress(FileNotFoundError), (self.folder / RESULTS).open("rb+") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")

    @property
    def state(self) -> dict[str, Any]:
        """``{n_total, error, adopted, spending}`` as far as it is known."""
        try:
            state: dict[str, Any] = json.loads((self.folder / STATE).read_bytes())
            return state
        except (OSError, ValueError):
            return {}

    def note(self, **fields: Any) -> None:
        """Set fields of the state."""
        with self._lock:
            _write(self.folder / STATE, {**self.state, **fields})


class RescoreStore:
    """The re-scorings below ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: dict[str, Rescoring] = {}
        self._lock = threading.Lock()

    def create(self, settings: RescoreSettings) -> Rescoring:
        """Create one.

        Raises:
            Conflict: there is one of this name.
        """
        folder = self.folder / settings.name
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            raise Conflict(
                f"there is a re-scoring {settings.name}", field="name", hint="choose another name, or discard it"
            ) from None
        _write(folder / SETTINGS, asdict(settings))
        sync_folder(folder.parent)
        return self.get(settings.name)

    def get(self, name: str) -> Rescoring:
        """One by its name.

        Raises:
            NotFound: there is none of this name.
        """
        with self._lock:
            if name not in self._open:
                try:
                    if not _NAME.fullmatch(name):
                        raise FileNotFoundError(name)
                    fields = json.loads((self.folder / name / SETTINGS).read_bytes())
                except (OSError, ValueError):
                    raise NotFound(
                        f"no re-scoring {name!r}", field="name", hint="GET /api/v1/rescores lists them"
                    ) from None
                self._open[name] = Rescoring(self.folder / name, RescoreSettings(**fields))
            return self._open[name]

    def all(self) -> list[Rescoring]:
        """All, newest first."""
        stored = []
        with contextlib.suppress(FileNotFoundError):
            for path in self.folder.iterdir():
                with contextlib.suppress(NotFound, InvalidInput, TypeError):
                    stored.append(self.get(path.name))
        return sorted(stored, key=lambda one: (one.settings.created_at, one.settings.name), reverse=True)

    def remove(self, name: str) -> None:
        """Remove one with its results.

        Raises:
            NotFound: there is none of this name.
        """
        folder = self.get(name).folder
        with self._lock:
            self._open.pop(name, None)
            shutil.rmtree(folder)


def _write(path: Path, value: Any) -> None:
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)
