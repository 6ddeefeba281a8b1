"""Finds answers that the agent can read."""

from __future__ import annotations

import re
from collections.abc import Iterator

from core.packs.lint.finding import ERROR, NOTE, Finding
from core.packs.model import PackTask

MIN_FILE = 32
"""Smallest checker or solution file, bytes, whose copy among the inputs is a leak."""
MIN_TEXT = 4
"""Shortest expected answer, characters, that is searched in query and inputs; shorter ones appear by chance."""


def answer_leaks(task: PackTask) -> Iterator[Finding]:
    """The expected answer in the query or in an input file, and copies of checker or solution among the inputs."""
    for answer in _texts(task.answer):
        pattern = re.compile(rf"(?<!\w){re.escape(answer)}(?!\w)", re.IGNORECASE)
        if pattern.search(task.query):
            yield Finding(
                "answer_leak", NOTE, (task.task_id,), f"the query contains the expected answer {answer[:80]!r}"
            )
        for path, one in task.input_files.items():
            if one.text is not None and pattern.search(one.text):
                message = f"{path} contains the expected answer {answer[:80]!r}"
                yield Finding("answer_leak", NOTE, (task.task_id,), message)
    hidden = {"checker": task.checker_files, "reference solution": task.solution_files}
    visible = {one.content: path for path, one in (*task.input_files.items(), *task.environment_files.items())}
    for what, files in hidden.items():
        for path, one in files.items():
            if len(one.content) >= MIN_FILE and one.content in visible:
                message = f"{visible[one.content]} is the {what}'s {path}"
                yield Finding("answer_leak", ERROR, (task.task_id,), message)


def _texts(answer: object) -> list[str]:
    """The answers to search: texts and numbers of at least ``MIN_TEXT`` characters."""
    values = answer if isinstance(answer, list) else [answer]
    texts = [str(one).strip() for one in values if isinstance(one, str | int | float) and not isinstance(one, bool)]
    return [text for text in dict.fromkeys(texts) if len(text) >= MIN_TEXT]
