"""Runs a reference solution in a sandbox, on a copy of the inputs, without network."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from core.packs.model import Files, PackFile
from core.packs.tree import write_tree
from core.sandbox import Level, Limits, choose, interpreter, parse_level

PROGRAM = "solve.py"
STARTER = "solve.sh"
MIN_LEAK = 32
"""Smallest output, bytes, whose copy among the inputs is a leak."""


class SolutionFailed(Exception):
    """The reference solution did not end well, or changed nothing."""


@dataclass(frozen=True)
class Solution:
    """What a reference solution left.

    Attributes:
        program: its source.
        before: the inputs, path -> file.
        after: the workspace that it left, path -> file.
    """

    program: str
    before: Files
    after: Files

    @property
    def changed(self) -> list[str]:
        """Paths of the files that it made or changed, in order."""
        return [path for path in sorted(self.after) if not _same(self.before.get(path), self.after[path])]

    @property
    def leaks(self) -> list[tuple[str, str]]:
        """(output, input) of equal content: the answer is among the inputs under another name."""
        inputs = {one.content: path for path, one in self.before.items() if len(one.content) >= MIN_LEAK}
        pairs = [(path, inputs.get(self.after[path].content)) for path in self.changed]
        return [(path, source) for path, source in pairs if source is not None]

    @property
    def files(self) -> dict[str, PackFile]:
        """The files of the solution for a pack: the program, and ``solve.sh`` that starts it."""
        start = f'#!/bin/sh\nexec python3 "$(dirname "$0")/{PROGRAM}"\n'
        return {PROGRAM: PackFile(self.program.encode()), STARTER: PackFile(start.encode(), executable=True)}


def _same(one: PackFile | None, other: PackFile) -> bool:
    return one is not None and one.content == other.content


def solve(inputs: Files, program: str, *, isolation: Level, time_s: float) -> Solution:
    """Run a Python program in a workspace with these inputs; its working folder is the workspace.

    Raises:
        SolutionFailed: it did not end in time, ended with an error, or changed no file.
        IsolationMissing: the machine does not have this level of isolation.
    """
    layer = choose(parse_level(isolation))
    with (
        tempfile.TemporaryDirectory(prefix="claw-solve-") as folder,
        layer.sandbox(readable=interpreter()[1], limits=Limits(time_s=time_s)) as sandbox,
    ):
        write_tree(Path(folder, "inputs"), inputs)
        write_tree(Path(folder, "solution"), {PROGRAM: PackFile(program.encode())})
        sandbox.copy_in(Path(folder, "inputs"))
        lent = sandbox.lend(Path(folder, "solution"))
        ended = sandbox.run([sys.executable, "-I", str(lent / PROGRAM)], env={"LC_ALL": "C.UTF-8"})
        if ended.end != "exited":
            raise SolutionFailed(f"the solution was ended: {ended.end.replace('_', ' ')}")
        if ended.returncode != 0:
            last = ended.stderr.decode(errors="replace").strip()[-1500:] or "no message"
            raise SolutionFailed(f"the solution ended with code {ended.returncode}: {last}")
        after = {one.path: PackFile(sandbox.read_bytes(one.path), one.executable) for one in sandbox.listing().files}
    solution = Solution(program, dict(inputs), after)
    if not solution.changed:
        raise SolutionFailed("the solution changed no file")
    return solution
