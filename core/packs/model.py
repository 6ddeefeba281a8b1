"""What a task pack is: tasks with their files as bytes, their checks, and a hash of the content."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from core.errors import InvalidInput
from core.packs.paths import check_paths

REWARD_SH = "reward_sh"
GRADE = "grade"
HARBOR = "harbor"
ANSWER = "answer"
CHECKERS = {
    REWARD_SH: "reward.sh prints one number in [0, 1] as its last line (ClawGym)",
    GRADE: "grade.py defines grade(transcript, workspace_path) and returns values by name (PinchBench)",
    HARBOR: "test.sh writes reward.txt or reward.json into the verifier's log folder (Harbor)",
    ANSWER: "the final answer is compared with an expected one (data set rows)",
}
"""Kinds of check, with the program that each of them runs. The programs are in a task's ``checker_files``."""

SPLITS = ("train", "val")
MAX_ID = 200
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class PackFile:
    """A file of a task: its bytes, and whether it is marked as executable."""

    content: bytes
    executable: bool = False

    @property
    def sha256(self) -> str:
        """SHA-256 of the content, 64 hex digits."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def text(self) -> str | None:
        """The content as UTF-8 text without a byte order mark, or None if it is not text."""
        try:
            return self.content.decode("utf-8-sig")
        except UnicodeDecodeError:
            return None


Files = Mapping[str, PackFile]


@dataclass(frozen=True)
class PackTask:
    """One task of a pack.

    All paths are relative, with ``/``. Unknown is None, an empty text or an empty mapping.

    Attributes:
        task_id: unique within the pack.
        query: the text for the agent; of a task with several sessions, the first session's text.
        sessions: if the task has several sessions, each with ``prompt`` and what else the format says (``id``,
            ``new_session``).
        input_files: path in the workspace -> file.
        checker: a key of ``CHECKERS``, or None if there is no check by code.
        checker_files: path in the checker's own folder -> file.
        answer: the expected final answer, a JSON value.
        rules: rules for a judge: ``name``, ``file_path``, ``scores`` (level in [0, 1] -> description).
        rubric: a rubric for a judge as text.
        weights: how check and rubric are combined: ``code``, ``rubric``.
        category: the category, in the pack's own words.
        split: ``train``, ``val`` or None.
        timeout_s: time limit of the agent, seconds.
        image: the container image that the task needs: its name, or the path of the file that it is built from.
        environment_files: path in the folder that the image is built from -> file.
        solution_files: path in the folder of a reference solution -> file.
        other_files: path in the task's folder -> file, for all other files.
        extra: fields of the format that are not among these, as JSON.

    Raises:
        InvalidInput: a field has an invalid value, or a path leaves its folder.
    """

    task_id: str
    query: str
    sessions: Sequence[Mapping[str, Any]] = ()
    input_files: Files = field(default_factory=dict)
    checker: str | None = None
    checker_files: Files = field(default_factory=dict)
    answer: Any = None
    rules: Sequence[Mapping[str, Any]] = ()
    rubric: str | None = None
    weights: Mapping[str, float] | None = None
    category: str | None = None
    tags: Sequence[str] = ()
    split: str | None = None
    timeout_s: float | None = None
    image: str | None = None
    environment_files: Files = field(default_factory=dict)
    solution_files: Files = field(default_factory=dict)
    other_files: Files = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_id(self.task_id)
        if not self.query.strip():
            raise InvalidInput(f"the task {self.task_id} has an empty query", field="query", hint="write its text")
        if self.checker is not None and self.checker not in CHECKERS:
            raise InvalidInput(f"there is no checker {self.checker!r}", field="checker", hint=", ".join(CHECKERS))
        if self.split is not None and self.split not in SPLITS:
            raise InvalidInput(f"{self.split!r} is no split", field="split", hint="train or val")
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise InvalidInput(f"the time limit is {self.timeout_s}", field="timeout_s", hint="seconds, more than 0")
        for name in FILE_FIELDS:
            check_paths(getattr(self, name), name)

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 over all fields, with files by their own hash; 64 hex digits."""
        return _digest(task_json(self))

    @property
    def n_input_bytes(self) -> int:
        """Size of the input files, bytes."""
        return sum(len(one.content) for one in self.input_files.values())


FILE_FIELDS = ("input_files", "checker_files", "environment_files", "solution_files", "other_files")
FIELDS = tuple(one.name for one in fields(PackTask))


@dataclass(frozen=True)
class Pack:
    """Tasks in the order of their ids.

    ``name`` and ``format`` (what it was read from) are not part of the content: a pack that is written in another
    format and read again has the same hash.

    Raises:
        InvalidInput: there is no task, or two have the same id.
    """

    name: str
    tasks: Sequence[PackTask]
    format: str = ""

    def __post_init__(self) -> None:
        if not self.tasks:
            raise InvalidInput(f"{self.name} has no task", field="tasks", hint="docs/packs.md lists the formats")
        twice = [task_id for task_id, n in Counter(task.task_id for task in self.tasks).items() if n > 1]
        if twice:
            raise InvalidInput(
                f"{len(twice)} ids are used by more than one task, first {twice[0]!r}",
                field="task_id",
                hint="rename one of them, or read each folder as a pack of its own",
            )
        object.__setattr__(self, "tasks", tuple(sorted(self.tasks, key=lambda task: task.task_id)))

    @cached_property
    def by_id(self) -> Mapping[str, PackTask]:
        """Task id -> task."""
        return {task.task_id: task for task in self.tasks}

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 over the tasks' ids and hashes, 64 hex digits."""
        return _digest([[task.task_id, task.content_hash] for task in self.tasks])

    @property
    def version(self) -> str:
        """Short name of this content: the first 12 digits of its hash."""
        return self.content_hash[:12]

    def replaced(self, tasks: Iterable[PackTask]) -> Pack:
        """A pack with these tasks in place of those with the same ids; new ids are added. Its version is another."""
        return Pack(self.name, list({**self.by_id, **{task.task_id: task for task in tasks}}.values()), self.format)


def changes(old: Pack, new: Pack) -> dict[str, list[str]]:
    """Ids of the tasks that were added, removed and changed from one pack version to another."""
    before, after = old.by_id, new.by_id
    return {
        "added": [one for one in after if one not in before],
        "removed": [one for one in before if one not in after],
        "changed": [one for one in after if one in before and after[one].content_hash != before[one].content_hash],
    }


def check_id(task_id: str) -> None:
    """Raise InvalidInput unless this is 1 to 200 printable characters without spaces at the ends."""
    if not task_id or len(task_id) > MAX_ID or task_id != task_id.strip() or _CONTROL.search(task_id):
        raise InvalidInput(
            f"{task_id[:MAX_ID]!r} is no task id",
            field="task_id",
            hint=f"1 to {MAX_ID} printable characters, no spaces at the ends",
        )


def files_json(files: Files) -> dict[str, Any]:
    """``path -> [sha256, executable]``, the form in which files enter a hash."""
    return {path: [one.sha256, one.executable] for path, one in sorted(files.items())}


def field_json(task: PackTask, name: str) -> Any:
    """One field of a task as JSON; files by their hash."""
    value = getattr(task, name)
    if name in FILE_FIELDS:
        return files_json(value)
    return list(value) if name in {"sessions", "rules", "tags"} else value


def task_json(task: PackTask) -> dict[str, Any]:
    """All fields of a task as JSON; files by their hash."""
    return {name: field_json(task, name) for name in FIELDS}


def canonical(value: Any, where: str = "task") -> str:
    """JSON text with sorted keys, equal for equal content.

    Raises:
        InvalidInput: the value is not JSON: a number that is not finite, a lone surrogate, or another type.
    """
    try:
        text = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"a field is not JSON: {error}", field=where) from error
    if _SURROGATE.search(text):
        raise InvalidInput("a text has half of a surrogate pair", field=where, hint="write it as UTF-8")
    return text


def _digest(value: Any) -> str:
    return hashlib.sha256(canonical(value).encode()).hexdigest()
