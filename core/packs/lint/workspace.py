"""Finds checkers that search the workspace in which ClawGym also puts the checker itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from core.packs.lint.finding import WARNING, Finding
from core.packs.lint.sources import called
from core.packs.model import REWARD_SH, PackTask


def finds_itself(task: PackTask, trees: dict[str, ast.Module | None]) -> Iterator[Finding]:
    """Checkers that search all files below the workspace and do not leave ``reward`` out.

    ``reward.sh`` runs with ``reward/`` in the workspace. Such a checker reads its own source, which contains the texts
    that it looks for. This reads the program only: names that hold the workspace are taken from its arguments.
    """
    if task.checker != REWARD_SH:
        return
    for path, tree in trees.items():
        if tree is None or _names_reward(tree):
            continue
        lines = sorted({node.lineno for node in ast.walk(tree) if isinstance(node, ast.Call) and _searches(node)})
        if lines:
            message = (
                f"{path}:{lines[0]} searches all of the workspace, where reward/ also lies: it may find its own source"
            )
            yield Finding("checker_in_workspace", WARNING, (task.task_id,), message)


def _names_reward(tree: ast.Module) -> bool:
    """Whether a text in the program is the folder's name, as a filter needs it."""
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return any(text.strip("/") == "reward" for text in texts)


def _searches(node: ast.Call) -> bool:
    name = called(node)
    function = node.func
    if name in {"rglob", "glob"} and isinstance(function, ast.Attribute):
        pattern = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
        deep = name == "rglob" or (isinstance(pattern, str) and pattern.startswith("**"))
        return deep and _is_workspace(function.value)
    return name == "walk" and bool(node.args) and _is_workspace(node.args[0])


def _is_workspace(node: ast.expr) -> bool:
    if isinstance(node, ast.Call) and called(node) in {"Path", "str", "resolve"} and len(node.args) == 1:
        return _is_workspace(node.args[0])
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name.lower() in {"ws", "root", "base", "base_dir", "base_path"} or "workspace" in name.lower()
