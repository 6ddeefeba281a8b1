"""Finds modules that a checker imports and that are not there."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Callable, Iterator

from core.packs.lint.finding import ERROR, WARNING, Finding
from core.packs.model import PackTask

Available = Callable[[str], bool]


def installed(module: str) -> bool:
    """Whether this environment has a top-level module of this name."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def missing_imports(task: PackTask, trees: dict[str, ast.Module | None], available: Available) -> Iterator[Finding]:
    """Imports outside the standard library and the checker's own folder that ``available`` does not know.

    One inside ``try`` is a warning: the checker runs without the module, and may give another score.
    """
    own = {part for path in task.checker_files for part in path.removesuffix(".py").split("/")}
    own |= {path.partition("/")[0].removesuffix(".py") for path in task.input_files}
    for path, tree in trees.items():
        if tree is None:
            continue
        guarded = {id(node) for one in ast.walk(tree) if isinstance(one, ast.Try) for node in _within(one)}
        by_module: dict[str, bool] = {}
        for node in ast.walk(tree):
            for module in _modules(node):
                if module not in sys.stdlib_module_names and module not in own and not available(module):
                    by_module[module] = by_module.get(module, True) and id(node) in guarded
        for module, silent in sorted(by_module.items()):
            effect = "inside try, so its absence changes the score silently" if silent else "so the check fails"
            level = WARNING if silent else ERROR
            message = f"{path} imports {module}, which is not installed; {effect}"
            yield Finding("checker_import", level, (task.task_id,), message)


def _within(node: ast.Try) -> Iterator[ast.AST]:
    for statement in node.body:
        yield from ast.walk(statement)


def _modules(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module.partition(".")[0]]
    return []
