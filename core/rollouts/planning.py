"""Makes the settings of a run from what a user asks for, and checks it before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from core.errors import InvalidInput
from core.harnesses import harness_of
from core.packs import Pack
from core.packs.model import SPLITS
from core.rollouts.runner import default_workers
from core.rollouts.settings import SOLVED_ABOVE, RunSettings
from core.sandbox import choose, parse_level
from core.types import is_uid


@dataclass(frozen=True)
class Wish:
    """What a user asks for. ``tasks``: ids; empty means all. ``split``: only tasks of this split. None: the default."""

    agent: str = "demo"
    command: Sequence[str] = ()
    readable: Sequence[str] = ()
    attempts: int = 1
    workers: int | None = None
    model: str | None = None
    channel: str | None = None
    seed: int = 0
    isolation: str = "process"
    tasks: Sequence[str] = ()
    split: str | None = None
    time_s: float | None = None
    check_time_s: float | None = None
    memory_mb: int | None = None
    max_calls: int | None = None
    solved_above: float = SOLVED_ABOVE


def plan_run(wish: Wish, pack: Pack, *, run: str, pack_path: str, now: float, models: Sequence[str]) -> RunSettings:
    """The settings of a run.

    Args:
        models: the models that the engines serve now; a single one is the default.

    Raises:
        InvalidInput: a task, harness or number is wrong, or the model is not clear.
        HarnessMissing: the agent is not installed.
        IsolationMissing: the machine does not have the level of isolation.
    """
    harness = harness_of(wish.agent, wish.command)
    harness.find()
    level = parse_level(wish.isolation)
    choose(level)
    task_ids = tuple(_tasks(pack, wish))
    model = wish.model
    if model is None:
        if len(models) != 1:
            served = ", ".join(models[:10]) if models else "none"
            raise InvalidInput("the model is not clear", field="model", hint=f"name one; served now: {served}")
        model = models[0]
    if wish.channel is not None and not is_uid(wish.channel):
        raise InvalidInput(
            f"{wish.channel!r} is no channel", field="channel", hint="1 to 256 printable characters without blanks"
        )
    n_slots = len(task_ids) * wish.attempts
    return RunSettings(
        run=run,
        pack=pack.name,
        pack_version=pack.version,
        pack_path=pack_path,
        task_ids=task_ids,
        harness=harness.name,
        command=tuple(wish.command),
        readable=tuple(_readable(wish.readable)),
        model=model,
        attempts=wish.attempts,
        workers=default_workers(harness, n_slots) if wish.workers is None else wish.workers,
        created_at=now,
        channel=wish.channel,
        seed=wish.seed,
        isolation=level,
        time_s=wish.time_s,
        check_time_s=wish.check_time_s,
        memory_mb=wish.memory_mb,
        max_calls=wish.max_calls,
        solved_above=wish.solved_above,
    )


def _readable(paths: Sequence[str]) -> list[str]:
    for path in paths:
        if not Path(path).is_absolute() or not Path(path).exists():
            raise InvalidInput(
                f"there is no file or folder {path!r}", field="readable", hint="an absolute path of this machine"
            )
        if Path(path).resolve() == Path("/"):
            raise InvalidInput("the agent may not read all of this machine", field="readable", hint="name a folder")
    return list(dict.fromkeys(paths))


def _tasks(pack: Pack, wish: Wish) -> list[str]:
    unknown = [one for one in wish.tasks if one not in pack.by_id]
    if unknown:
        raise InvalidInput(
            f"the pack {pack.name} has no task {unknown[0]!r}", field="tasks", hint="claw-studio pack show lists them"
        )
    if wish.split is not None and wish.split not in SPLITS:
        raise InvalidInput(f"{wish.split!r} is no split", field="split", hint="train or val")
    named = set(wish.tasks)
    chosen = [
        task.task_id for task in pack.tasks if (not named or task.task_id in named) and wish.split in (None, task.split)
    ]
    if not chosen:
        raise InvalidInput("no task is left", field="split", hint=f"the pack {pack.name} has no task in {wish.split}")
    return chosen
