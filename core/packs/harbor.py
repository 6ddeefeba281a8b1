"""Harbor's and terminal-bench 2's task folders: ``task.toml``, ``instruction.md``, ``environment/``, ``tests/``.

The agent works in a container that is built from ``environment/`` or named in ``task.toml``. ``tests/test.sh`` writes
``reward.txt`` or ``reward.json`` into ``/logs/verifier``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.errors import InvalidInput
from core.packs import own_fields
from core.packs.clawgym import WORKSPACE
from core.packs.fields import as_object, as_seconds, as_text, as_texts, located, parse_json
from core.packs.model import HARBOR, REWARD_SH, Files, Pack, PackFile, PackTask, canonical
from core.packs.toml import read_toml, toml_text
from core.packs.tree import MARKERS, read_tree, search, write_tree

NAME = "harbor"
TITLE = "Harbor and terminal-bench 2 folders: task.toml, instruction.md, environment/, tests/"
TASK = "task.toml"
QUERY = "instruction.md"
TEST = "test.sh"
BUILDS = ("Dockerfile", "docker-compose.yaml", "docker-compose.yml")
_ROLES = ("environment", "tests", "solution")
_INPUTS = "claw_studio_inputs"
_CHECKER = "reward"

_FIELDS = {
    *("schema_version", "version", "artifacts", "source", "steps", "multi_step_reward_strategy"),
    *("task", "metadata", "agent", "verifier", "environment", "solution"),
}
"""What a ``task.toml`` has at its top; fields of other formats are not written there."""

DOCKERFILE = f"FROM python:3.11-slim\nWORKDIR {WORKSPACE}\nCOPY {_INPUTS}/ {WORKSPACE}/\n"
EMPTY_DOCKERFILE = f"FROM python:3.11-slim\nWORKDIR {WORKSPACE}\n"
TEST_SH = f"""#!/usr/bin/env bash
# Runs the task's reward.sh with the checker's folder in the workspace; its last line is the reward.
set -euo pipefail
rm -rf {WORKSPACE}/reward
cp -R "$(dirname "$0")/{_CHECKER}" {WORKSPACE}/reward
mkdir -p /logs/verifier
bash {WORKSPACE}/reward/reward.sh | tail -n 1 > /logs/verifier/reward.txt
"""


def task_folders(folder: Path) -> list[Path]:
    """The task folders in ``folder``, or ``folder`` itself; in order of path."""
    return sorted(one for one in search(folder) if (one / TASK).is_file())


def read(folder: Path) -> Pack:
    """Read all tasks.

    Raises:
        InvalidInput: a task can't be read; the error names its folder.
    """
    return Pack(folder.resolve().name, [read_task(one) for one in task_folders(folder)], NAME)


def read_task(folder: Path) -> PackTask:
    """Read one task folder; its name is the task's id. The error names the folder."""
    try:
        return parse(read_tree(folder), folder.resolve().name)
    except InvalidInput as error:
        raise located(error, str(folder)) from error


def parse(tree: Files, name: str) -> PackTask:
    """The task of a folder's files, path -> file.

    Raises:
        InvalidInput: ``task.toml`` or ``instruction.md`` is missing or invalid.
    """
    for path in (TASK, QUERY):
        if path not in tree:
            raise InvalidInput(f"{path} is missing", field=path, hint=f"a task folder has {TASK} and {QUERY}")
    rest = read_toml(tree[TASK].content, TASK)
    query = tree[QUERY].text
    if query is None:
        raise InvalidInput(f"{QUERY} is not UTF-8", field=QUERY, hint="write it as UTF-8")
    metadata = as_object(rest.pop("metadata", None), "metadata")
    stored = metadata.pop(own_fields.KEY, None)
    agent = as_object(rest.pop("agent", None), "agent")
    environment = as_object(rest.get("environment"), "environment")
    parts = {role: {p.partition("/")[2]: one for p, one in tree.items() if p.startswith(f"{role}/")} for role in _ROLES}
    category = metadata.pop("category", None)
    timeout_s = as_seconds(agent.pop("timeout_sec", None), "agent.timeout_sec")
    for table, value in (("metadata", metadata), ("agent", agent)):
        if value:
            rest[table] = value
    task = PackTask(
        name,
        as_text(query, QUERY),
        checker=HARBOR if TEST in parts["tests"] else None,
        checker_files=parts["tests"],
        category=as_text(category, "metadata.category") if category else None,
        tags=_tags(metadata, rest),
        timeout_s=timeout_s,
        image=_image(environment, parts["environment"]),
        environment_files=parts["environment"],
        solution_files=parts["solution"],
        other_files=_others(tree),
        extra=rest,
    )
    fields = (
        None
        if stored is None
        else parse_json(as_text(stored, f"metadata.{own_fields.KEY}"), f"metadata.{own_fields.KEY}")
    )
    return own_fields.restored(task, fields, tree)


def _others(tree: Files) -> dict[str, PackFile]:
    roles = tuple(f"{role}/" for role in _ROLES)
    return {p: one for p, one in tree.items() if p not in {TASK, QUERY} and not p.startswith(roles)}


def _tags(metadata: dict[str, Any], rest: Mapping[str, Any]) -> tuple[str, ...]:
    if "tags" in metadata:
        return as_texts(metadata.pop("tags"), "metadata.tags")
    return as_texts(as_object(rest.get("task"), "task").get("keywords"), "task.keywords")


def _image(environment: Mapping[str, Any], files: Files) -> str | None:
    """The image's name, or the file that it is built from."""
    named = environment.get("docker_image")
    if named:
        return as_text(named, "environment.docker_image")
    return next((f"environment/{build}" for build in BUILDS if build in files), None)


def document_of(task: PackTask) -> dict[str, Any]:
    """``task.toml`` in Harbor's own fields; fields of other formats are left out."""
    document = {name: one for name, one in task.extra.items() if name in _FIELDS}
    if not {"schema_version", "version"} & document.keys():
        document["schema_version"] = "1.1"
    tables = {name: dict(as_object(document.get(name), name)) for name in ("metadata", "agent")}
    tables["metadata"].pop(own_fields.KEY, None)
    document["metadata"] = {
        **({} if task.category is None else {"category": task.category}),
        "tags": list(task.tags),
        **tables["metadata"],
    }
    document["agent"] = {
        **({} if task.timeout_s is None else {"timeout_sec": task.timeout_s}),
        **tables["agent"],
    }
    return document


def layout(task: PackTask, name: str) -> dict[str, PackFile]:
    """The files of the task's folder, path -> file; ``name`` is the folder's name.

    Inputs and a check by ``reward.sh`` are laid out so that Harbor runs them: a Dockerfile copies the inputs, and
    ``tests/test.sh`` runs ``reward.sh``.
    """
    tree = {QUERY: PackFile(task.query.encode())}
    tree |= {f"environment/{path}": one for path, one in task.environment_files.items()}
    tree |= {f"solution/{path}": one for path, one in task.solution_files.items()}
    checker = "tests" if task.checker == HARBOR else f"tests/{_CHECKER}"
    tree |= {f"{checker}/{path}": one for path, one in task.checker_files.items()}
    if not task.environment_files:
        dockerfile = DOCKERFILE if task.input_files else EMPTY_DOCKERFILE
        tree["environment/Dockerfile"] = PackFile(dockerfile.encode())
        tree |= {f"environment/{_INPUTS}/{path}": one for path, one in task.input_files.items()}
    if task.checker == REWARD_SH:
        tree[f"tests/{TEST}"] = PackFile(TEST_SH.encode(), executable=True)
    taken = {*_ROLES, *MARKERS, QUERY}
    tree |= {path: one for path, one in task.other_files.items() if path.partition("/")[0] not in taken}
    try:
        document = document_of(task)
        text = toml_text(document)
        natural = parse({**tree, TASK: PackFile(text.encode())}, name)
    except (TypeError, InvalidInput):  # TOML has no null, or a field of this name means something else in Harbor
        document = document_of(own_fields.bare(task))
        natural = parse({**tree, TASK: PackFile(toml_text(document).encode())}, name)
    stored = own_fields.differing(natural, task, tree)
    if stored:
        document["metadata"][own_fields.KEY] = canonical(stored)
    return {TASK: PackFile(toml_text(document).encode()), **tree}


def write(pack: Pack, folder: Path, names: Mapping[str, str]) -> None:
    """Write every task into ``folder`` / its name in ``names`` (task id -> folder name)."""
    for task in pack.tasks:
        name = names[task.task_id]
        write_tree(folder / name, layout(task, name))
