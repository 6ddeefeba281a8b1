"""Finds files that a task names and does not have."""

from __future__ import annotations

import re
from collections.abc import Iterator

from core.packs.lint.finding import ERROR, NOTE, WARNING, Finding
from core.packs.model import ANSWER, GRADE, HARBOR, REWARD_SH, PackTask
from core.packs.paths import below

ENTRY = {REWARD_SH: "reward.sh", GRADE: "grade.py", HARBOR: "test.sh"}
_PATH = re.compile(r"(?<![\w/.:~$-])((?:[\w.-]+/)+[\w-][\w.-]*\.[A-Za-z]\w{0,7})(?![\w/*])")
_REWARD = re.compile(r"reward/([\w./-]+\.(?:py|sh))\b")
_MADE = re.compile(
    r"\b(?:create|write|save|generate|produce|output|export|rename|move|copy|store|add)\b", re.IGNORECASE
)


def missing_files(task: PackTask) -> Iterator[Finding]:
    """No check at all, a check without its program, and input files that the query names and that are not there."""
    ids = (task.task_id,)
    if task.checker is None and not task.rules and not task.rubric:
        yield Finding("no_check", ERROR, ids, "there is neither a check nor a rubric")
    if task.checker == ANSWER and task.answer is None:
        yield Finding("no_check", ERROR, ids, "there is no expected answer")
    entry = ENTRY.get(task.checker or "")
    if entry and entry not in task.checker_files:
        yield Finding("missing_file", ERROR, ids, f"the check's program {entry} is missing")
    script = task.checker_files.get("reward.sh")
    for name in sorted(set(_REWARD.findall(script.text or ""))) if script else ():
        if name not in task.checker_files:
            yield Finding("missing_file", ERROR, ids, f"reward.sh runs reward/{name}, which is missing")
    for path in named_inputs(task):
        yield Finding("missing_file", WARNING, ids, f"the query names {path}, which is not among the input files")
    if task.image is not None:
        yield Finding("needs_image", NOTE, ids, f"the task needs a container image: {task.image}")


def named_inputs(task: PackTask) -> list[str]:
    """Paths in the query that lie in a folder of the input files and are not there.

    A path in a sentence that asks to write it is an output.
    """
    tops = {path.partition("/")[0] for path in task.input_files if "/" in path}
    missing = []
    for match in _PATH.finditer(task.query):
        path = match[1]
        if path.partition("/")[0] not in tops or path in task.input_files or below(task.input_files, path):
            continue
        before = task.query[max(0, match.start() - 200) : match.start()]
        sentence = re.split(r"[.!?]\s|\n", before)[-1]
        if not _MADE.search(sentence):
            missing.append(path)
    return sorted(set(missing))
