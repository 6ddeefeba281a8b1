"""The routes of task packs: import, list and search stored packs, show a task, edit it into a new version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from core.api.handling import Call
from core.api.routing import Router
from core.api.schemas import INT, NUM_OR_NULL, OBJ, STR, TEXT_OR_NULL, TIME, array, obj
from core.api.wire import Flag, WireModel
from core.errors import InvalidInput
from core.packs import Pack, changes, read_pack
from core.packs.edit import edited, task_of, with_splits
from core.packs.library import PackEntry
from core.packs.listing import FACETS, listing
from core.packs.model import FILE_FIELDS, PackTask, field_json

routes = Router()

MOST_TASKS = 1000
PACK = obj(version=STR, name=STR, format=STR, n_tasks=INT, added_at=TIME)
TASK_ROW = obj(
    task_id=STR, query=STR, category=TEXT_OR_NULL, split=TEXT_OR_NULL, tags=array(STR), checker=TEXT_OR_NULL,
    n_input_files=INT, n_input_bytes=INT,
)  # fmt: skip
TASK = obj(
    task_id=STR, query=STR, category=TEXT_OR_NULL, split=TEXT_OR_NULL, tags=array(STR), checker=TEXT_OR_NULL,
    rules=array(OBJ), rubric=TEXT_OR_NULL, timeout_s=NUM_OR_NULL, content_hash=STR,
    **{name: {**OBJ, "description": "path -> size, bytes"} for name in FILE_FIELDS},
)  # fmt: skip
CHANGED = obj(**PACK["properties"], changes=obj(added=array(STR), removed=array(STR), changed=array(STR)))


class PackIn(WireModel):
    """``POST packs``."""

    path: Annotated[str, Field(min_length=1, max_length=4096, description="Absolute path of a folder or file of tasks")]
    name: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        None, description="Name of the pack; by default that of the folder or file"
    )
    dry_run: Flag = Field(False, description="Read the pack and store nothing")


class EditIn(WireModel):
    """``POST packs/{pack}/edit``."""

    task: str
    fields: dict[str, Any] = Field(default_factory=dict, description="query, category, split, tags, timeout_s, ...")
    files: dict[str, dict[str, str | None]] = Field(
        default_factory=dict, description="input_files, checker_files, ... -> path -> text; null removes the file"
    )
    dry_run: Flag = Field(False, description="Check the request and store nothing")


class SplitIn(WireModel):
    """``POST packs/{pack}/split``."""

    tasks: Annotated[list[str], Field(min_length=1, max_length=200_000)]
    split: Literal["train", "val"] | None = Field(description="null removes the tasks from their split")
    dry_run: Flag = Field(False, description="Check the request and store nothing")


@routes("GET", "/packs", obj(packs=array(PACK)), reads_pool=False)
def list_packs(call: Call) -> Any:
    """All stored pack versions, newest first."""
    return {"packs": [asdict(entry) for entry in call.deps.rollouts.packs.entries()]}


@routes("POST", "/packs", PACK, reads_pool=False, example={"path": "/packs/demo", "dry_run": True})
def import_pack(call: Call, body: PackIn) -> Any:
    """Read a pack from a folder or file of this machine, and store it.

    The format is detected by content. A version that is stored already stays as it is.
    """
    if not Path(body.path).is_absolute():
        raise InvalidInput(f"{body.path} is not absolute", field="path", hint="begin with /")
    pack = read_pack(Path(body.path))
    return _kept(call, pack if body.name is None else replace(pack, name=body.name), dry_run=body.dry_run)


@routes(
    "GET",
    "/packs/{pack}/tasks",
    obj(version=STR, n_tasks=INT, tasks=array(TASK_ROW), facets=OBJ),
    query={
        "text": {**STR, "description": "Words that a task must have, in its id, query, category, tags or file names"},
        "limit": {"type": "integer", "minimum": 1, "maximum": MOST_TASKS},
        "offset": {"type": "integer", "minimum": 0},
        **{name: {**STR, "description": "One value of this facet"} for name in FACETS},
    },
    statuses=(404,),
    reads_pool=False,
)
def tasks(call: Call) -> Any:
    """Search the tasks of a stored pack, by name (its newest version) or version.

    `n_tasks` and `facets` count all tasks that match, whatever the limit.
    """
    pack = _pack(call)
    chosen = {name: [call.query[name]] for name in FACETS if call.query.get(name)}
    made, text = listing(pack), call.query.get("text", "")
    limit = call.int_query("limit", 100, low=1, high=MOST_TASKS)
    offset = call.int_query("offset", 0, low=0, high=2**31 - 1)
    matching = made.find(text, chosen)
    return {
        "version": pack.version,
        "n_tasks": len(matching),
        "tasks": [_row(task) for task in matching[offset : offset + limit]],
        "facets": made.counts(text, chosen),
    }


@routes("GET", "/packs/{pack}/task", TASK, query={"task": STR}, statuses=(404,), reads_pool=False)
def task(call: Call) -> Any:
    """One task of a stored pack; files by their size."""
    if "task" not in call.query:
        raise InvalidInput("the task is missing", field="task", hint="?task=ID")
    return task_json(task_of(_pack(call), call.query["task"]))


@routes(
    "POST",
    "/packs/{pack}/edit",
    CHANGED,
    statuses=(404,),
    reads_pool=False,
    example={"task": "task_0001", "fields": {"split": "val"}, "dry_run": True},
)
def edit(call: Call, body: EditIn) -> Any:
    """Change a task: the result is a new version of the pack, and the old one stays."""
    pack = _pack(call)
    new = edited(pack, body.task, body.fields, body.files)
    return {**_kept(call, new, dry_run=body.dry_run), "changes": changes(pack, new)}


@routes("POST", "/packs/{pack}/split", CHANGED, statuses=(404,), reads_pool=False)
def split(call: Call, body: SplitIn) -> Any:
    """Put tasks into the training or validation split: the result is a new version of the pack."""
    pack = _pack(call)
    new = with_splits(pack, body.tasks, body.split)
    return {**_kept(call, new, dry_run=body.dry_run), "changes": changes(pack, new)}


def task_json(one: PackTask) -> dict[str, Any]:
    """All fields of a task; files by their size in bytes."""
    known = {name: field_json(one, name) for name in one.__dataclass_fields__ if name not in FILE_FIELDS}
    sizes: dict[str, Mapping[str, int]] = {
        name: {path: len(file.content) for path, file in getattr(one, name).items()} for name in FILE_FIELDS
    }
    return {**known, **sizes, "content_hash": one.content_hash}


def _pack(call: Call) -> Pack:
    packs = call.deps.rollouts.packs
    return packs.get(packs.find(call.path["pack"]).version)


def _kept(call: Call, pack: Pack, *, dry_run: bool) -> dict[str, Any]:
    now = call.deps.clock()
    if dry_run:
        return asdict(PackEntry(pack.version, pack.name, pack.format, len(pack.tasks), now))
    return asdict(call.deps.rollouts.packs.keep(pack, now=now))


def _row(one: PackTask) -> dict[str, Any]:
    return {
        "task_id": one.task_id,
        "query": one.query[:400],
        "category": one.category,
        "split": one.split,
        "tags": list(one.tags),
        "checker": one.checker,
        "n_input_files": len(one.input_files),
        "n_input_bytes": one.n_input_bytes,
    }
