"""Reads tasks from folders in ClawGym's form: ``data_entry.json``, ``input_files/``, ``reward/check.py``."""

from __future__ import annotations

import json
from pathlib import Path

from core.errors import InvalidInput
from core.tasks.task import Task

ENTRY = "data_entry.json"


def read_pack(folder: Path) -> list[Task]:
    """All tasks of a folder of task folders, in order of name.

    Raises:
        InvalidInput: there is no task in the folder, or one can't be read.
    """
    tasks = [read_task(path.parent) for path in sorted(folder.glob(f"*/{ENTRY}"))]
    if not tasks:
        raise InvalidInput(f"{folder} has no task", field="tasks", hint=f"a task is a folder with {ENTRY}")
    return tasks


def read_task(folder: Path) -> Task:
    """One task folder. Its check is the ``code_check`` of ``reward/check.py``.

    Raises:
        InvalidInput: an entry lacks ``task_id`` or ``user_query``, an input file is not text, or there is no check.
    """
    path, program = folder / ENTRY, folder / "reward" / "check.py"
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
        task_id, query = entry["task_id"], entry["user_query"]
        root = folder / "input_files"
        files = {
            str(one.relative_to(root)): one.read_text(encoding="utf-8") for one in root.rglob("*") if one.is_file()
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{path} can't be read: {error!r}", field="data_entry") from error
    if not program.is_file():
        raise InvalidInput(f"{folder} has no check", field="reward", hint="reward/check.py scores the workspace")
    metadata = entry.get("metadata") or {}
    return Task(task_id, query, files, {"verifier": "code_check", "program": str(program)}, metadata)
