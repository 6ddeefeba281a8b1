"""Stores the fields of a task that a format has no place for, under a key of our own.

A writer lays a task out in the format's own form, parses that form as the format's reader would, and stores every field
that differs under the key ``claw_studio``. The reader applies those fields. Other programs ignore the key.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from core.errors import InvalidInput
from core.packs.fields import as_object, as_text, as_texts, decoded
from core.packs.model import FIELDS, FILE_FIELDS, Files, PackFile, PackTask, canonical, field_json

KEY = "claw_studio"


def bare(task: PackTask) -> PackTask:
    """The task without the fields whose content a format could take for something else."""
    return replace(task, extra={}, rules=(), category=None, tags=())


def differing(natural: PackTask, task: PackTask, tree: Files) -> dict[str, Any]:
    """The fields of ``task`` that ``natural`` does not have, as JSON.

    Args:
        tree: the files that are written in the format's own form. A file that is among them is stored as its path
            there, any other with its content.
    """
    return {
        name: _stored(task, name, tree)
        for name in FIELDS
        if canonical(field_json(natural, name)) != canonical(field_json(task, name))
    }


def _stored(task: PackTask, name: str, tree: Files) -> Any:
    if name not in FILE_FIELDS:
        return field_json(task, name)
    places = {tree[path]: path for path in sorted(tree, reverse=True)}
    return {path: _stored_file(one, places.get(one)) for path, one in getattr(task, name).items()}


def _stored_file(one: PackFile, place: str | None) -> dict[str, Any]:
    if place is not None:
        return {"at": place}
    content = base64.b64encode(one.content).decode()
    return {"content": content} | ({"executable": True} if one.executable else {})


def restored(natural: PackTask, stored: Any, tree: Files) -> PackTask:
    """``natural`` with the fields that ``differing`` stored.

    Raises:
        InvalidInput: a field is unknown or has the wrong type, or a file's place does not exist.
    """
    values = as_object(stored, KEY)
    unknown = values.keys() - set(FIELDS)
    if unknown:
        raise InvalidInput(f"{KEY} has the unknown field {min(unknown)!r}", field=KEY, hint=", ".join(FIELDS))
    return replace(natural, **{name: _restored(name, value, tree) for name, value in values.items()})


def _restored(name: str, value: Any, tree: Files) -> Any:
    at = f"{KEY}.{name}"
    if name in FILE_FIELDS:
        return {path: _restored_file(as_object(one, at), tree, at) for path, one in as_object(value, at).items()}
    if name in {"sessions", "rules"}:
        if not isinstance(value, list):
            raise InvalidInput(f"{at} is no list", field=at, hint="a list of objects")
        return tuple(as_object(one, at) for one in value)
    if name == "tags":
        return as_texts(value, at)
    if name in {"task_id", "query"}:
        return as_text(value, at)
    if name == "extra":
        return as_object(value, at)
    return value


def _restored_file(entry: Mapping[str, Any], tree: Files, at: str) -> PackFile:
    if "at" in entry:
        place = as_text(entry["at"], at)
        if place not in tree:
            raise InvalidInput(f"the file {place!r} is missing", field=at, hint="write the pack again")
        return tree[place]
    return PackFile(
        decoded(as_text(entry.get("content"), at, empty=True), "base64", at), entry.get("executable") is True
    )
