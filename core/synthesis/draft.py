"""A task before it has a checker: the form that both routes bring their answers to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core.errors import InvalidInput
from core.packs import PackFile, PackTask
from core.packs.clawgym import CHECK, REWARD, reward_script
from core.packs.fields import entry_of, files_of
from core.packs.model import REWARD_SH, Files
from core.packs.paths import check_paths
from core.synthesis.rows import Failed

MAX_FILES = 50
MAX_BYTES = 1 << 20
"""Largest input of a task, bytes, all files together."""
ENDING = "All file paths are relative to the workspace directory."
"""The sentence that ends the queries of ClawGym's persona route."""
MAIN = """

if __name__ == "__main__":
    import json
    import sys

    print(json.dumps(grade([], sys.argv[1] if len(sys.argv) > 1 else ".")))
"""
"""What makes a program of a checker's function ``grade(transcript, workspace_path)``."""


@dataclass(frozen=True)
class Draft:
    """A task without a checker.

    Attributes:
        query: text for the agent.
        expected: what a right result is, for checker and rubric; the agent does not see it.
        category: category of the task; novelty is compared within it.
        input_files: path in the workspace -> file.
        difficulty: 1 to 5; None if unknown.
        extra: further fields for the pack, as JSON.
    """

    query: str
    expected: str
    category: str
    input_files: Files
    difficulty: float | None
    extra: Mapping[str, Any]

    @property
    def files_text(self) -> str:
        """The input files for a prompt."""
        if not self.input_files:
            return "There are no input files."
        return "\n\n".join(f"File {path}:\n{one.text or ''}" for path, one in self.input_files.items())


def inputs_of(entries: Sequence[Mapping[str, Any]]) -> dict[str, PackFile]:
    """The input files of an answer, ``{file_path, content}``.

    Raises:
        Failed: a path is invalid or used twice, or there is too much.
    """
    try:
        files = {path.removeprefix("./"): one for path, one in files_of(list(entries), "input_files").items()}
        check_paths(files, "input_files")
    except InvalidInput as error:
        raise Failed(f"malformed: {error.field}: {error.message}") from error
    reserved = [path for path in files if path.partition("/")[0] == "reward"]
    if reserved:
        raise Failed(f"leak: the input {reserved[0]} is in the folder of the checker")
    n_bytes = sum(len(one.content) for one in files.values())
    if len(files) > MAX_FILES or n_bytes > MAX_BYTES:
        raise Failed(f"the inputs have {len(files)} files and {n_bytes} bytes; {MAX_FILES} and {MAX_BYTES} are allowed")
    return files


def entries_of(files: Files) -> list[dict[str, Any]]:
    """Files as ``{file_path, content, file_format}``, ClawGym's form."""
    return [
        {**entry_of(path, one), "file_format": path.rpartition(".")[2] if "." in path else "txt"}
        for path, one in files.items()
    ]


def candidate(task_id: str, draft: Draft, source: str) -> PackTask:
    """The task with a checker whose function ``grade`` is in ``source``."""
    program = PackFile(f"{source.rstrip()}\n{MAIN}".encode())
    return PackTask(
        task_id,
        draft.query,
        input_files=draft.input_files,
        checker=REWARD_SH,
        checker_files={REWARD: reward_script(), CHECK: program},
        category=draft.category or None,
        extra=dict(draft.extra),
    )
