"""Reads and writes a folder as ``path -> file``, with limits on number and size, and without following links."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from core.errors import InvalidInput
from core.packs.model import Files, PackFile
from core.packs.paths import check_path

MARKERS = ("data_entry.json", "task.toml")
"""The file that a task's folder has in ClawGym's and in Harbor's form."""
DEPTH = 3
"""How many folders deep below a pack's folder a task is searched."""
MAX_FILE = 64 << 20
"""Largest file of a task, bytes."""
MAX_FILES = 10_000
"""Most files of a task."""
MAX_TASK = 512 << 20
"""Largest task, bytes."""
MAX_ROWS_FILE = 4 << 30
"""Largest file of rows, bytes."""


def read_file(path: Path, *, limit: int = MAX_FILE) -> PackFile:
    """Read a regular file. A link is not followed.

    Raises:
        InvalidInput: it is missing, a link, not a regular file, or larger than ``limit`` bytes.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidInput(f"{path} can't be read: {error.strerror}", field="path", hint=_hint(path)) from error
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidInput(f"{path} is not a regular file", field="path", hint="remove it from the task")
        content = stream.read(limit + 1)
    if len(content) > limit:
        raise InvalidInput(f"{path} is larger than {limit >> 20} MiB", field="path", hint="make the file smaller")
    return PackFile(content, bool(status.st_mode & stat.S_IXUSR))


def _hint(path: Path) -> str:
    return "links are not followed: put the file itself there" if path.is_symlink() else "check the path"


def read_tree(folder: Path) -> dict[str, PackFile]:
    """All files below a folder, hidden ones included; empty folders are left out.

    Raises:
        InvalidInput: a link, a special file, a name that is not UTF-8, or more than the limits allow.
    """
    files: dict[str, PackFile] = {}
    size = 0
    for path in _walk(folder):
        name = check_path(path.relative_to(folder).as_posix(), "path")
        files[name] = read_file(path)
        size += len(files[name].content)
        if len(files) > MAX_FILES or size > MAX_TASK:
            raise InvalidInput(
                f"{folder} has more than {MAX_FILES} files or {MAX_TASK >> 20} MiB",
                field="path",
                hint="make the task smaller",
            )
    return files


def _walk(folder: Path) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda one: one.name):
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(Path(entry.path))
            else:
                yield Path(entry.path)


def search(folder: Path, depth: int = DEPTH) -> Iterator[Path]:
    """The task folders at most ``depth`` below ``folder``, known by a file of ``MARKERS``; not inside each other."""
    if any((folder / name).is_file() for name in MARKERS):
        yield folder
    elif depth:
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                yield from search(path, depth - 1)


def write_tree(folder: Path, files: Files) -> None:
    """Write files into a new folder.

    Raises:
        InvalidInput: a path leaves the folder.
        OSError: the folder exists, or can't be written.
    """
    folder.mkdir(parents=True)
    for name, one in files.items():
        path = folder / check_path(name, "path")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(one.content)
        path.chmod(0o755 if one.executable else 0o644)
