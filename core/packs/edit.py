"""Changes tasks of a pack: the result is another version."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from core.errors import InvalidInput, NotFound
from core.packs.fields import rules_of
from core.packs.model import FILE_FIELDS, Pack, PackFile, PackTask

TEXT_FIELDS = ("query", "category", "split", "rubric")
FIELDS = (*TEXT_FIELDS, "tags", "timeout_s", "answer", "rules")
"""Fields of a task that can be changed, beside its files."""


def edited(
    pack: Pack,
    task_id: str,
    fields: Mapping[str, Any],
    files: Mapping[str, Mapping[str, str | None]] | None = None,
) -> Pack:
    """The pack with one task changed.

    Args:
        pack: the pack; it stays as it is.
        task_id: the task.
        fields: names of ``FIELDS`` -> new values; an empty text or None removes a value.
        files: a field of files (``input_files``, ``checker_files``, ...) -> path -> new text; None removes the file.

    Raises:
        NotFound: there is no such task.
        InvalidInput: a field can't be changed or has an invalid value, or nothing changes.
    """
    task = task_of(pack, task_id)
    values: dict[str, Any] = {}
    for name, value in fields.items():
        if name not in FIELDS:
            raise InvalidInput(f"{name} can't be changed", field=name, hint=", ".join((*FIELDS, *FILE_FIELDS)))
        values[name] = _value(name, value)
    for name, changes in (files or {}).items():
        if name not in FILE_FIELDS:
            raise InvalidInput(f"{name} has no files", field="files", hint=", ".join(FILE_FIELDS))
        values[name] = _files(getattr(task, name), changes, name)
    new = replace(task, **values)
    if new.content_hash == task.content_hash:
        raise InvalidInput("nothing has changed", field="task", hint="change a field or a file")
    return pack.replaced([new])


def from_text_field(before: str, text: str) -> str:
    """The text of a browser's field as it stands in the task: a field has no byte order mark, and ends lines with LF.

    The mark and the line ends of the text ``before`` are kept, the latter if all of them are CRLF.
    """
    mark = "\ufeff" if before.startswith("\ufeff") else ""
    shown = before.removeprefix("\ufeff")
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if lines == shown.replace("\r\n", "\n"):
        return before
    n_crlf = shown.count("\r\n")
    return mark + (lines.replace("\n", "\r\n") if n_crlf and n_crlf == shown.count("\n") else lines)


def with_splits(pack: Pack, task_ids: Sequence[str], split: str | None) -> Pack:
    """The pack with these tasks in a split; None removes them from theirs.

    Raises:
        NotFound: there is no such task.
        InvalidInput: there is no such split, or nothing changes.
    """
    moved = [replace(task_of(pack, one), split=split) for one in task_ids]
    if all(one.split == pack.by_id[one.task_id].split for one in moved):
        raise InvalidInput("nothing has changed", field="split", hint="choose tasks of another split")
    return pack.replaced(moved)


def task_of(pack: Pack, task_id: str) -> PackTask:
    """A task by its id. NotFound if there is none."""
    task = pack.by_id.get(task_id)
    if task is None:
        raise NotFound(f"{pack.name} has no task {task_id!r}", field="task", hint="search the list of tasks")
    return task


def _value(name: str, value: Any) -> Any:
    if name == "query":
        if not isinstance(value, str):
            raise InvalidInput("the query is no text", field="query", hint="write the text for the agent")
        return value
    if name in TEXT_FIELDS:
        if value is not None and not isinstance(value, str):
            raise InvalidInput(f"{name} is no text", field=name, hint="a text, or null")
        return (value or "").strip() or None
    if name == "tags":
        if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(one, str) for one in value):
            raise InvalidInput("tags is no list of texts", field="tags", hint='["files", "easy"]')
        return tuple(dict.fromkeys(one.strip() for one in value if one.strip()))
    if name == "timeout_s":
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise InvalidInput(f"the time limit is {value!r}", field="timeout_s", hint="seconds, more than 0")
        return None if value is None else float(value)
    if name == "rules":
        return rules_of(value or [], "rules")
    return value


def _files(before: Mapping[str, PackFile], changes: Mapping[str, str | None], name: str) -> dict[str, PackFile]:
    files = dict(before)
    for path, text in changes.items():
        if text is None:
            if path not in files:
                raise NotFound(f"there is no file {path!r}", field=name)
            del files[path]
        else:
            files[path] = PackFile(text.encode(), files[path].executable if path in files else path.endswith(".sh"))
    return files


def parsed_json(text: str, name: str) -> Any:
    """JSON that a person wrote; an empty text is None. InvalidInput names the field and the place."""
    if not text.strip():
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"{name} is not JSON: {error}", field=name, hint='a text needs quotes: "42"') from error
