"""ClawGym's task folders: ``data_entry.json``, ``input_files/``, ``reward/``.

``reward/reward.sh`` is the check. It runs with ``reward/`` inside the workspace, and prints one number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from core.errors import InvalidInput
from core.packs import own_fields
from core.packs.fields import as_object, as_seconds, as_text, as_texts, located, parse_json, rules_of, split_of
from core.packs.model import REWARD_SH, Files, Pack, PackFile, PackTask
from core.packs.tree import MARKERS, read_tree, search, write_tree

NAME = "clawgym"
TITLE = "ClawGym folders: data_entry.json, input_files/, reward/"
ENTRY = "data_entry.json"
_HOME = "/root"
WORKSPACE = f"{_HOME}/.openclaw/workspace"
"""The workspace in ClawGym's containers; its checks name it."""
CHECK = "check.py"
REWARD = "reward.sh"
_INPUT, _REWARD, _ENVIRONMENT, _SOLUTION = _ROLES = ("input_files", "reward", "environment", "solution")

_AVERAGE = (
    "python3 -c 'import json, sys; raw = sys.stdin.read().strip(); data = json.loads(raw);"
    " print(sum(float(v) for v in data.values()) / len(data) if isinstance(data, dict) and data"
    " else float(data) if isinstance(data, (int, float)) else 0.0)'"
)


def reward_script(hook: str = f"python3 {WORKSPACE}/reward/{CHECK} {WORKSPACE}") -> PackFile:
    """ClawGym's ``reward.sh``: runs ``hook`` and prints the mean of the values that it prints as JSON."""
    return PackFile(f"#!/usr/bin/env bash\nset -euo pipefail\n\n{hook} | {_AVERAGE}\n".encode(), executable=True)


def task_folders(folder: Path) -> list[Path]:
    """The task folders in ``folder``, or ``folder`` itself; in order of path."""
    return sorted(one for one in search(folder) if (one / ENTRY).is_file())


def read(folder: Path) -> Pack:
    """Read all tasks.

    Raises:
        InvalidInput: a task can't be read; the error names its folder.
    """
    return Pack(folder.resolve().name, [read_task(one) for one in task_folders(folder)], NAME)


def read_task(folder: Path) -> PackTask:
    """Read one task folder. The error names the folder."""
    try:
        return parse(read_tree(folder))
    except InvalidInput as error:
        raise located(error, str(folder)) from error


def parse(tree: Files) -> PackTask:
    """The task of a folder's files, path -> file.

    Raises:
        InvalidInput: ``data_entry.json`` is missing or invalid.
    """
    if ENTRY not in tree:
        raise InvalidInput(f"{ENTRY} is missing", field=ENTRY, hint="it holds task_id and user_query")
    entry = as_object(parse_json(tree[ENTRY].content, ENTRY), ENTRY)
    kept_fields = entry.pop(own_fields.KEY, None)
    parts = {role: {p.partition("/")[2]: one for p, one in tree.items() if p.startswith(f"{role}/")} for role in _ROLES}
    prefix = mount_prefix(entry.get("input_mount_dir"), entry.get("workspace_root"))
    task = replace(
        task_of_entry(entry),
        input_files={prefix + path: one for path, one in parts[_INPUT].items()},
        checker=REWARD_SH if REWARD in parts[_REWARD] else None,
        checker_files=parts[_REWARD],
        environment_files=parts[_ENVIRONMENT],
        solution_files=parts[_SOLUTION],
        other_files=_others(tree),
    )
    return own_fields.restored(task, kept_fields, tree)


def _others(tree: Files) -> dict[str, PackFile]:
    return {p: one for p, one in tree.items() if p != ENTRY and not p.startswith(tuple(f"{role}/" for role in _ROLES))}


def task_of_entry(entry: Mapping[str, Any]) -> PackTask:
    """The fields of ``data_entry.json``, without files. Unknown fields are in ``extra``."""
    rest = dict(entry)
    metadata = as_object(rest.pop("metadata", None), "metadata")
    category = metadata.pop("category", None) or None
    split = split_of(metadata.get("split"))
    if split is not None and split == metadata.get("split"):
        del metadata["split"]
    rules = rules_of(rest.pop("rules", None) or rest.pop("rubrics", None), "rules")
    if not rules and isinstance(metadata.get("rule"), list):
        rules = rules_of(metadata.pop("rule"), "metadata.rule")
    if rest.get("input_mount_dir") == WORKSPACE:
        del rest["input_mount_dir"]
    if metadata.get("grading_type") == "automated":
        del metadata["grading_type"]
    return PackTask(
        as_text(rest.pop("task_id", None), "task_id"),
        as_text(rest.pop("user_query", None), "user_query"),
        rules=rules,
        category=None if category is None else as_text(category, "metadata.category"),
        tags=as_texts(metadata.pop("tags", None), "metadata.tags"),
        split=split,
        timeout_s=as_seconds(metadata.pop("timeout_seconds", None), "metadata.timeout_seconds"),
        extra={**rest, **({"metadata": metadata} if metadata else {})},
    )


def entry_of_task(task: PackTask) -> dict[str, Any]:
    """``data_entry.json`` in ClawGym's own fields."""
    extra = {name: value for name, value in task.extra.items() if name not in {"metadata", own_fields.KEY}}
    metadata = task.extra.get("metadata")
    entry: dict[str, Any] = {"task_id": task.task_id, "user_query": task.query}
    entry["metadata"] = {
        "category": task.category or "",
        "grading_type": "automated",
        **({} if task.split is None else {"split": task.split}),
        **({} if task.timeout_s is None else {"timeout_seconds": task.timeout_s}),
        **({"tags": list(task.tags)} if task.tags else {}),
        **(metadata if isinstance(metadata, Mapping) else {}),
    }
    if task.rules:
        entry["rules"] = list(task.rules)
    if task.input_files:
        entry["input_mount_dir"] = WORKSPACE
    return {**{name: value for name, value in extra.items() if name not in _OWN}, **entry}


_OWN = {"task_id", "user_query", "rules", "rubrics", "input_mount_dir", "workspace_root"}


def mount_prefix(mount: Any, workspace: Any) -> str:
    """Where ``input_files/`` lies in the workspace: empty, or a folder with ``/`` at its end.

    Raises:
        InvalidInput: ``input_mount_dir`` is no text, or leaves the workspace.
    """
    if mount is None:
        return ""
    where = as_text(mount, "input_mount_dir").rstrip("/")
    roots = [one.rstrip("/") for one in (workspace, WORKSPACE, "/workspace") if isinstance(one, str) and one.strip()]
    for root in roots:
        if where == root:
            return ""
        if where.startswith(f"{root}/"):
            where = where.removeprefix(f"{root}/")
    if where == "{{input_dir}}" or (where.startswith("/") and where.endswith("/input")):
        where = "input"
    if where.startswith("/") or ".." in where.split("/"):
        raise InvalidInput(
            f"{mount!r} is outside the workspace", field="input_mount_dir", hint=f"a folder below {WORKSPACE}"
        )
    return "" if where in {"", "."} else f"{where.removeprefix('./')}/"


def layout(task: PackTask) -> dict[str, PackFile]:
    """The files of the task's folder, path -> file."""
    tree: dict[str, PackFile] = {}
    roles = {
        _INPUT: task.input_files,
        _REWARD: task.checker_files,
        _ENVIRONMENT: task.environment_files,
        _SOLUTION: task.solution_files,
    }
    for role, files in roles.items():
        tree |= {f"{role}/{path}": one for path, one in files.items()}
    taken = {*roles, *MARKERS}
    tree |= {path: one for path, one in task.other_files.items() if path.partition("/")[0] not in taken}
    entry = entry_of_task(task)
    try:
        natural = parse({**tree, ENTRY: _json(entry)})
    except InvalidInput:  # a field of another format has a name that means something else here
        entry = entry_of_task(own_fields.bare(task))
        natural = parse({**tree, ENTRY: _json(entry)})
    stored = own_fields.differing(natural, task, tree)
    return {ENTRY: _json({**entry, own_fields.KEY: stored} if stored else entry), **tree}


def _json(entry: Mapping[str, Any]) -> PackFile:
    return PackFile((json.dumps(entry, indent=2, ensure_ascii=False) + "\n").encode())


def write(pack: Pack, folder: Path, names: Mapping[str, str]) -> None:
    """Write every task into ``folder`` / its name in ``names`` (task id -> folder name)."""
    for task in pack.tasks:
        write_tree(folder / names[task.task_id], layout(task))
