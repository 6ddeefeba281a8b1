"""Parsed Python programs of a task's checker."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator

from core.packs.lint.finding import ERROR, Finding
from core.packs.model import PackTask


def programs(task: PackTask) -> dict[str, ast.Module | None]:
    """Path -> syntax tree of the checker's Python files; None if a file is not valid Python."""
    return {path: _parsed(one.content) for path, one in task.checker_files.items() if path.endswith(".py")}


def _parsed(content: bytes) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            return ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def unparsable(task: PackTask, trees: dict[str, ast.Module | None]) -> Iterator[Finding]:
    """Checkers that are not valid Python."""
    for path, tree in trees.items():
        if tree is None:
            yield Finding("checker_syntax", ERROR, (task.task_id,), f"{path} is not valid Python")


def called(node: ast.Call) -> str:
    """Name of the called function or method: ``os.walk(x)`` -> ``walk``."""
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
