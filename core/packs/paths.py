"""Paths inside a task: relative, with ``/``, and never outside their folder."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from core.errors import InvalidInput

MAX_PATH = 1024
MAX_PART = 255
"""Longest part of a path, bytes: the limit of the usual file systems."""


def check_path(path: str, field: str) -> str:
    """The path itself.

    Raises:
        InvalidInput: it is absolute, has a part ``..``, ``.`` or an empty one, or can't be the name of a file.
    """
    parts = path.split("/")
    try:
        sizes = [len(part.encode()) for part in parts]
    except UnicodeEncodeError:
        sizes = []
    bad = not sizes or any(part in {"", ".", ".."} for part in parts) or "\x00" in path or "\\" in path
    if bad or max(sizes) > MAX_PART or sum(sizes) + len(sizes) > MAX_PATH:
        raise InvalidInput(
            f"{path[:MAX_PATH]!r} is no path inside the task",
            field=field,
            hint="a relative path with / and without .., at most 255 bytes a part",
        )
    return path


def check_paths(files: Mapping[str, Any], field: str) -> None:
    """Check every path, and that no file has the name of another file's folder.

    Raises:
        InvalidInput: a path is invalid, or is both a file and a folder.
    """
    for path in files:
        check_path(path, field)
        for folder in folders(path):
            if folder in files:
                raise InvalidInput(
                    f"{folder!r} is a file and the folder of {path!r}", field=field, hint="rename one of them"
                )


def folders(path: str) -> list[str]:
    """The folders above a path, outermost first: ``a/b/c`` -> ``a``, ``a/b``."""
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(1, len(parts))]


def below(paths: Mapping[str, Any] | Collection[str], folder: str) -> list[str]:
    """Those paths that are inside a folder."""
    return [path for path in paths if path.startswith(f"{folder}/")]
