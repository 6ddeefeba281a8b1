"""Finds out by content which form a pack has, reads it, and writes it in another."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from core.errors import InvalidInput
from core.packs import clawgym, clawgym_rows, harbor, pinchbench, plain_rows, rows, verl_rows
from core.packs.fields import split_of
from core.packs.model import ANSWER, GRADE, HARBOR, Pack, PackTask

READS: Mapping[str, str] = {
    clawgym.NAME: clawgym.TITLE,
    **clawgym_rows.TITLES,
    harbor.NAME: harbor.TITLE,
    pinchbench.NAME: pinchbench.TITLE,
    verl_rows.NAME: verl_rows.TITLE,
    plain_rows.NAME: plain_rows.TITLE,
}
"""Formats that can be read -> what they are."""


@dataclass(frozen=True, slots=True)
class Writer:
    """One format that can be written: what it is, its function, and whether it makes one file."""

    title: str
    write: Callable[[Pack, Path], None]
    one_file: bool


def _write_clawgym(pack: Pack, folder: Path) -> None:
    clawgym.write(pack, folder, folder_names(pack))


def _write_harbor(pack: Pack, folder: Path) -> None:
    harbor.write(pack, folder, folder_names(pack))


WRITES: Mapping[str, Writer] = {
    "clawgym": Writer(clawgym.TITLE, _write_clawgym, one_file=False),
    "hub": Writer(clawgym_rows.TITLES[clawgym_rows.HUB], rows.write_jsonl, one_file=True),
    "harbor": Writer(harbor.TITLE, _write_harbor, one_file=False),
}
"""Formats that can be written."""

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def read_pack(path: Path) -> Pack:
    """Read a pack from a folder or a file; the format is detected by content.

    Raises:
        InvalidInput: nothing is there, no format fits, or a task can't be read. The error names file, field and fix.
    """
    if path.is_file():
        if path.suffix not in rows.SUFFIXES:
            raise InvalidInput(
                f"{path} is no file of tasks", field="path", hint=f"a folder, or a file {', '.join(rows.SUFFIXES)}"
            )
        return rows.read(path)
    if not path.is_dir():
        raise InvalidInput(f"{path} does not exist", field="path", hint="name a folder or a file of tasks")
    try:
        if clawgym.task_folders(path):
            return clawgym.read(path)
        if harbor.task_folders(path):
            return harbor.read(path)
        if pinchbench.task_files(path):
            return pinchbench.read(path)
        files = sorted(one for one in path.iterdir() if one.suffix in rows.SUFFIXES and one.is_file())
    except OSError as error:
        raise InvalidInput(f"{path} can't be read: {error}", field="path", hint="check the folder's rights") from error
    if not files:
        raise InvalidInput(f"{path} has no task", field="path", hint="docs/packs.md lists the formats")
    return _joined(path, [rows.read(one) for one in files])


def _joined(folder: Path, packs: list[Pack]) -> Pack:
    """The tasks of several files; a file's name is the split of tasks that name none."""
    tasks = [_with_split(task, split_of(pack.name)) for pack in packs for task in pack.tasks]
    forms = sorted({pack.format for pack in packs})
    return Pack(folder.resolve().name, tasks, ", ".join(forms))


def _with_split(task: PackTask, split: str | None) -> PackTask:
    return task if split is None or task.split is not None else replace(task, split=split)


def write_pack(pack: Pack, out: Path, format: str) -> list[str]:
    """Write a pack to a new folder or file, and return notes on what other programs will not use of it.

    Reading it back gives the same tasks: what the format has no field for is stored under ``claw_studio``.

    Raises:
        InvalidInput: the format is unknown, ``out`` exists, or it can't be written.
    """
    writer = WRITES.get(format)
    if writer is None:
        raise InvalidInput(f"{format!r} can't be written", field="format", hint=", ".join(WRITES))
    if out.exists():
        raise InvalidInput(f"{out} exists", field="out", hint="name a new folder or file")
    if writer.one_file and out.suffix != ".jsonl":
        raise InvalidInput(f"{out.name} does not end with .jsonl", field="out", hint=f"{out.name}.jsonl")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        writer.write(pack, out)
    except OSError as error:
        raise InvalidInput(f"{out} can't be written: {error}", field="out", hint="check space and rights") from error
    return notes_on(pack, format)


def notes_on(pack: Pack, format: str) -> list[str]:
    """What programs other than the studio will not use of this pack in this format."""
    tasks = pack.tasks
    runs = {"clawgym": (HARBOR, GRADE, ANSWER), "hub": (HARBOR, GRADE, ANSWER), "harbor": (GRADE, ANSWER)}[format]
    binary = sum(any(one.text is None for one in task.input_files.values()) for task in tasks)
    counts = {
        f"have a check of a kind that {format} does not run": sum(task.checker in runs for task in tasks),
        "need a container image, which this format does not name": sum(
            task.image is not None for task in tasks if format != "harbor"
        ),
        "have several sessions; others see the first": sum(bool(task.sessions) for task in tasks),
        "have input files that are no text; others read them as base64": binary if format == "hub" else 0,
        "have inputs that their own image does not contain": sum(
            bool(task.input_files and task.environment_files) for task in tasks if format == "harbor"
        ),
    }
    return [f"{n} of {len(tasks)} tasks {what}" for what, n in counts.items() if n]


def folder_names(pack: Pack) -> dict[str, str]:
    """Task id -> folder name: the id, or a name with a hash where the id can't be a folder's name or is used twice."""
    names: dict[str, str] = {}
    used: set[str] = set()
    for task in pack.tasks:
        name = task.task_id
        if not _SAFE.fullmatch(name) or name.casefold() in used:
            slug = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:60] or "task"
            name = f"{slug}-{hashlib.sha256(task.task_id.encode()).hexdigest()[:12]}"
        used.add(name.casefold())
        names[task.task_id] = name
    return names
