"""What a run of rollouts does: fixed when it is created, and the same when it is resumed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any

from core.errors import InvalidInput
from core.sandbox import Level, parse_level

MAX_ATTEMPTS = 1024
MAX_WORKERS = 512
SOLVED_ABOVE = 0.5
UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Names of runs, which are names of folders as well."""


@dataclass(frozen=True)
class RunSettings:
    """Settings of a run.

    Attributes:
        run: uid of the run, also the name of its folder.
        pack, pack_version: name and version of the pack.
        pack_path: where the pack was read from.
        task_ids: the tasks, in order.
        harness: name of the harness.
        command: program and arguments with placeholders, for the harness ``command``.
        readable: absolute paths of files and folders of this machine that the agent may read, beside its program.
        model: name of the model that the agent asks for.
        attempts: attempts of each task.
        workers: attempts at a time.
        channel: channel of the trajectories; None: the studio's default.
        seed: attempt ``n`` of a task has the seed ``seed + n``, where the harness can pass one on.
        isolation: the lowest level of isolation.
        time_s: time limit of the agent, seconds; None: the task's own, or the harness's.
        check_time_s: time limit of the verification, seconds; None: the verifier's own.
        memory_mb: memory limit of an attempt, MiB; None: the harness's.
        max_calls: most model calls of an attempt; None: no limit.
        solved_above: an attempt is solved if its score is above this; 0.5 is ClawGym's rule.
        created_at: seconds since the epoch.
    """

    run: str
    pack: str
    pack_version: str
    pack_path: str
    task_ids: tuple[str, ...]
    harness: str
    model: str
    attempts: int
    workers: int
    created_at: float
    command: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    channel: str | None = None
    seed: int = 0
    isolation: Level = "process"
    time_s: float | None = None
    check_time_s: float | None = None
    memory_mb: int | None = None
    max_calls: int | None = None
    solved_above: float = SOLVED_ABOVE

    def __post_init__(self) -> None:
        if not UID.fullmatch(self.run):
            raise InvalidInput(
                f"{self.run!r} is no name of a run",
                field="run",
                hint="1 to 100 letters, digits, dots, underscores and hyphens",
            )
        if not self.task_ids:
            raise InvalidInput("the run has no task", field="tasks", hint="name tasks of the pack, or leave it out")
        _in_range("attempts", self.attempts, 1, MAX_ATTEMPTS)
        _in_range("workers", self.workers, 1, MAX_WORKERS)
        parse_level(self.isolation)
        for name in ("time_s", "check_time_s", "memory_mb", "max_calls"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidInput(f"{name} is {value}", field=name, hint="above 0")

    @property
    def n_slots(self) -> int:
        """Number of attempts of the run, retries not counted."""
        return len(self.task_ids) * self.attempts

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON values."""
        return {**asdict(self), **{name: list(getattr(self, name)) for name in LISTS}}


LISTS = ("task_ids", "command", "readable")
FIELDS = frozenset(one.name for one in fields(RunSettings))


def parse_settings(data: Mapping[str, Any]) -> RunSettings:
    """Settings from ``RunSettings.to_json``.

    Raises:
        InvalidInput: a field is missing or invalid.
    """
    values = {name: value for name, value in data.items() if name in FIELDS}
    try:
        values |= {name: tuple(values.get(name) or ()) for name in LISTS}
        return RunSettings(**values)
    except (KeyError, TypeError) as error:
        raise InvalidInput(f"the settings of a run are incomplete: {error}", field="run") from error


def run_name(now: float, token: str) -> str:
    """Name of a run that begins at ``now`` (seconds since the epoch); ``token`` tells runs of one second apart."""
    return f"{datetime.fromtimestamp(now, UTC):%Y%m%d-%H%M%S}-{token}"


def _in_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidInput(f"{value} {name}", field=name, hint=f"a number from {low} to {high}")
