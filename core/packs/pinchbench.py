"""PinchBench's tasks: a Markdown file each, with front matter, a prompt, a ``grade`` function and a rubric.

Both generations: numbered names with front matter between ``---``; and unnumbered names with ``manifest.yaml``, front
matter also without ``---``, and files beside the task in a folder of its name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from core.errors import InvalidInput
from core.packs.fields import as_list, as_object, as_seconds, as_text, as_texts, located, plain, split_of
from core.packs.model import GRADE, Pack, PackFile, PackTask
from core.packs.paths import check_path
from core.packs.tree import MAX_FILE, read_file

NAME = "pinchbench"
TITLE = "PinchBench: tasks/task_*.md with front matter, assets/"
PROGRAM = "grade.py"
MAX_TEXT = 1 << 20
"""Largest Markdown file, bytes."""
_FRONT = re.compile(r"\A---[ \t]*\n(.*?)\n---[ \t]*(?:\n|\Z)(.*)", re.DOTALL)
_SECTION = re.compile(r"^##[ \t]+(.+?)[ \t]*$", re.MULTILINE)
_CODE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_CRITERION = re.compile(r"^[-*][ \t]+(?:\[[ xX]\][ \t]+)?(.+?)[ \t]*$", re.MULTILINE)
_SECTIONS = {"Prompt", "Expected Behavior", "Grading Criteria", "Automated Checks", "LLM Judge Rubric"}


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML without aliases: a few lines with aliases can stand for gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not allowed")
        return super().compose_node(parent, index)


def read_yaml(text: str, where: str) -> Any:
    """Parse YAML without aliases, as JSON values.

    Raises:
        InvalidInput: it is not YAML.
    """
    try:
        return plain(yaml.load(text, _Loader), where)  # a SafeLoader: builds plain values only
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        message = " ".join(str(error).split())[:300]
        raise InvalidInput(f"{where} is not YAML: {message}", field=where, hint="correct the YAML") from error


def task_files(folder: Path) -> list[Path]:
    """The tasks' Markdown files in ``folder`` or ``folder/tasks``; those of a manifest if there is one.

    Raises:
        InvalidInput: the manifest names a task that has no file.
    """
    tasks = folder / "tasks" if (folder / "tasks").is_dir() else folder
    manifest = tasks / "manifest.yaml"
    if not manifest.is_file():
        return sorted(tasks.glob("task_*.md"))
    content = as_object(read_yaml(_text(manifest), manifest.name), manifest.name)
    listed = content.get("tasks")
    if isinstance(listed, Mapping):  # category -> ids
        listed = [one for group in listed.values() for one in as_list(group, "tasks")]
    names = as_texts(listed, "tasks")
    paths = [tasks / f"{check_path(name, 'tasks')}.md" for name in names]
    for path in paths:
        if not path.is_file():
            raise InvalidInput(
                f"{path.name} is missing", field=manifest.name, hint="add it, or remove it from the list"
            )
    return paths


def read(folder: Path) -> Pack:
    """Read all tasks.

    Raises:
        InvalidInput: a task can't be read; the error names its file.
    """
    return Pack(folder.resolve().name, [read_task(one) for one in task_files(folder)], NAME)


def read_task(path: Path) -> PackTask:
    """Read one Markdown file and the workspace files that it names. The error names the file."""
    try:
        return _task(path)
    except InvalidInput as error:
        raise located(error, str(path)) from error


def _text(path: Path) -> str:
    text = read_file(path, limit=MAX_TEXT).text
    if text is None:
        raise InvalidInput(f"{path.name} is not UTF-8", field="path", hint="write it as UTF-8")
    return text.replace("\r\n", "\n")


def _task(path: Path) -> PackTask:
    front, body = _divided(_text(path))
    rest = as_object(read_yaml(front, "front matter"), "front matter")
    sections = _sections(body)
    sessions = tuple(
        as_object(one, f"sessions[{i}]") for i, one in enumerate(as_list(rest.pop("sessions", None), "sessions"))
    )
    for index, session in enumerate(sessions):
        as_text(session.get("prompt"), f"sessions[{index}].prompt")
    query = sessions[0]["prompt"] if sessions else as_text(sections.get("Prompt"), "Prompt")
    program = _program(sections.get("Automated Checks", ""))
    weights = as_object(rest.pop("grading_weights", None), "grading_weights")
    category = rest.pop("category", None)
    extra: dict[str, Any] = {name: value for name, value in sections.items() if name not in _SECTIONS}
    extra |= {"expected_behavior": sections["Expected Behavior"]} if "Expected Behavior" in sections else {}
    criteria = _CRITERION.findall(sections.get("Grading Criteria", ""))
    return PackTask(
        as_text(rest.pop("id", None), "id"),
        query,
        sessions=sessions,
        input_files=_inputs(path, rest.pop("workspace_files", None)),
        checker=GRADE if program else None,
        checker_files={PROGRAM: PackFile(program.encode())} if program else {},
        rubric=sections.get("LLM Judge Rubric") or None,
        weights=_weights(weights, hybrid=rest.get("grading_type") == "hybrid"),
        category=as_text(category, "category") if category else None,
        tags=as_texts(rest.pop("tags", None), "tags"),
        split=split_of(rest.pop("split", None)),
        timeout_s=as_seconds(rest.pop("timeout_seconds", None), "timeout_seconds"),
        extra={**rest, **({"criteria": criteria} if criteria else {}), **extra},
    )


def _divided(text: str) -> tuple[str, str]:
    """Front matter and body. Without ``---``, the front matter ends at the first heading."""
    match = _FRONT.match(text)
    if match:
        return match[1], match[2]
    front, heading, body = text.partition("\n#")
    if not front.startswith("id:") or not heading:
        raise InvalidInput("there is no front matter", field="front matter", hint="begin the file with --- and id:")
    return front, heading.lstrip("\n") + body


def _sections(body: str) -> dict[str, str]:
    """Text below each heading of the second level; headings inside of code do not count."""
    masked = _CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), body)
    headings = list(_SECTION.finditer(masked))
    ends = [heading.start() for heading in headings[1:]] + [len(body)]
    return {
        heading[1]: re.sub(r"\n---\s*\Z", "", body[heading.end() : end].strip()).strip()
        for heading, end in zip(headings, ends, strict=True)
    }


def _program(section: str) -> str:
    """The code of the section: the first fenced block, or the text from ``def grade`` on."""
    fenced = _CODE.search(section)
    if fenced:
        return fenced[1]
    start = re.search(r"^(?:def grade\b|import |from )", section, re.MULTILINE)
    return f"{section[start.start() :].rstrip()}\n" if start else ""


def _weights(weights: Mapping[str, Any], *, hybrid: bool) -> dict[str, float] | None:
    """``{code, rubric}``; hybrid tasks without weights have 0.5 and 0.5, as in PinchBench's ``lib_grading.py``."""
    if not weights and not hybrid:
        return None
    values = {"code": weights.get("automated", 0.5), "rubric": weights.get("llm_judge", 0.5)}
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise InvalidInput(
                f"the weight of {name} is {value!r}", field="grading_weights", hint="a number, 0 or more"
            )
    return {name: float(value) for name, value in values.items()}


def _inputs(path: Path, listed: Any) -> dict[str, PackFile]:
    """The workspace files: ``path`` and ``content``, ``source`` and ``dest``, or a name.

    A source is searched in the folder of the task's own name, in ``assets/`` beside the tasks, and beside ``tasks/``.
    """
    files: dict[str, PackFile] = {}
    for index, entry in enumerate(as_list(listed, "workspace_files")):
        at = f"workspace_files[{index}]"
        one = {"source": entry, "dest": entry} if isinstance(entry, str) else as_object(entry, at)
        if "content" in one:
            name = check_path(as_text(one.get("path") or one.get("dest"), f"{at}.path"), at)
            files[name] = PackFile(as_text(one["content"], f"{at}.content", empty=True).encode())
            continue
        source = check_path(as_text(one.get("source"), f"{at}.source"), at)
        name = check_path(as_text(one.get("dest") or source, f"{at}.dest"), at)
        files[name] = PackFile(_asset(path, source, at).content)
    return files


def _asset(path: Path, source: str, at: str) -> PackFile:
    folders = (path.with_suffix(""), path.parent / "assets", path.parent.parent / "assets", path.parent.parent)
    for folder in folders:
        inside = (folder / source).resolve()
        if inside.is_relative_to(folder.resolve()) and inside.is_file():
            return read_file(folder / source, limit=MAX_FILE)
    raise InvalidInput(f"the file {source!r} is missing", field=at, hint="put it into assets/")
