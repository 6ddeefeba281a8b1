"""What a checker must not do, read from its source: clock, chance, network, its own folder, code that can't be read."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

NETWORK = frozenset(
    {
        "ftplib", "http", "imaplib", "nntplib", "poplib", "smtplib", "socket", "socketserver", "ssl", "telnetlib",
        "urllib", "webbrowser", "xmlrpc",
    }
)  # fmt: skip
HARMLESS = frozenset({"urllib.parse"})
CHANCE = frozenset({"random", "secrets"})
CLOCK_CALLS = frozenset({"now", "utcnow", "today", "getmtime", "getctime", "getatime"})
CLOCK_NAMES = frozenset({"st_mtime", "st_ctime", "st_atime", "st_mtime_ns", "st_ctime_ns", "st_atime_ns"})
HIDDEN = frozenset({"eval", "exec", "compile", "__import__"})
FUNCTION = "grade"


def without_main(source: str) -> str:
    """The source without ``if __name__ == ...`` at its top level.

    Raises:
        SyntaxError: it is not valid Python.
    """
    lines = source.splitlines(keepends=True)
    for node in reversed(ast.parse(source).body):
        if isinstance(node, ast.If) and _names_main(node.test):
            del lines[node.lineno - 1 : node.end_lineno]
    return "".join(lines)


def _names_main(test: ast.expr) -> bool:
    return any(isinstance(one, ast.Name) and one.id == "__name__" for one in ast.walk(test))


def broken_rules(source: str) -> list[str]:
    """Why a checker can't be used, one sentence each, with lines; empty if nothing is found.

    Raises:
        SyntaxError: it is not valid Python.
    """
    tree = ast.parse(source)
    return [*_signature(tree), *dict.fromkeys(reason for node in ast.walk(tree) for reason in _of_node(node))]


def _signature(tree: ast.Module) -> Iterator[str]:
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == FUNCTION]
    if not functions:
        yield "it has no function grade(transcript, workspace_path)"
    elif len(functions[-1].args.posonlyargs + functions[-1].args.args) < 2:
        yield f"line {functions[-1].lineno}: grade must take transcript and workspace_path"


def _of_node(node: ast.AST) -> Iterator[str]:
    for module in _modules(node):
        yield from (f"line {node.lineno}: {why}" for why in _of_module(module))  # type: ignore[attr-defined]
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in CLOCK_CALLS:
            yield f"line {node.lineno}: it reads the clock: {name}()"
        if name in HIDDEN and isinstance(node.func, ast.Name):
            yield f"line {node.lineno}: it runs code that can't be read: {name}()"
        if name in {"getcwd", "cwd"}:
            yield f"line {node.lineno}: it reads the current folder: {name}()"
    if isinstance(node, ast.Attribute):
        if node.attr in CLOCK_NAMES:
            yield f"line {node.lineno}: it reads the clock: {node.attr}"
        if node.attr == "argv":
            yield f"line {node.lineno}: it reads sys.argv, which holds the path of its own folder"
    if isinstance(node, ast.Name) and node.id == "__file__":
        yield f"line {node.lineno}: it reads its own folder: __file__"


def _modules(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def _of_module(module: str) -> Iterator[str]:
    top = module.partition(".")[0]
    if top not in sys.stdlib_module_names:
        yield f"it imports {top}, which is not in the standard library"
    elif top == "time":
        yield "it reads the clock: time"
    elif top in CHANCE:
        yield f"it uses chance: {top}"
    elif top in NETWORK and not any(module == one or module.startswith(f"{one}.") for one in HARMLESS):
        yield f"it uses the network: {top}"
    elif top in {"inspect", "importlib"}:
        yield f"it reads its own source: {top}"
