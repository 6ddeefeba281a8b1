"""The learning run's tasks: a pack of ClawGym folders whose checks run in place."""

from __future__ import annotations

from pathlib import Path

from core import packs
from core.errors import InvalidInput
from core.tasks.task import Task


def read_pack(folder: Path) -> list[Task]:
    """All tasks of a folder of task folders that are named by their ids, in order of id.

    The check of a task is the ``code_check`` of its ``reward/check.py``: a run makes hundreds of attempts, and this way
    a check is one process.

    Raises:
        InvalidInput: there is no task in the folder, one can't be read or has no check, or an input file is not text.
    """
    return [_task(folder / one.task_id, one) for one in packs.read_pack(folder).tasks]


def _task(folder: Path, one: packs.PackTask) -> Task:
    program = folder / "reward" / "check.py"
    if not program.is_file():
        raise InvalidInput(f"{folder} has no check", field="reward", hint="reward/check.py scores the workspace")
    files: dict[str, str] = {}
    for name, file in one.input_files.items():
        text = file.text
        if text is None:
            raise InvalidInput(f"{folder}: {name} is not text", field="input_files")
        files[name] = text
    check = {"verifier": "code_check", "program": str(program)}
    about = {name: value for name, value in (("category", one.category), ("split", one.split)) if value is not None}
    return Task(one.task_id, one.query, files, check, about)
