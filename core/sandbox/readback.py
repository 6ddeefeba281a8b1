"""Reads what a program left in its workspace, without following a link that leads out of it.

Every part of a path is opened relative to its folder and never through a symlink. A file with a further name outside
the workspace (a hard link) is refused, as is everything that is no file or folder.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from core.sandbox.base import MIB

MAX_FILES = 100_000
MAX_BYTES = 2048 * MIB
MAX_DEPTH = 64
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Found:
    """One regular file: path relative to the workspace, size in bytes, and whether it is executable."""

    path: str
    n_bytes: int
    executable: bool


@dataclass(frozen=True, slots=True)
class Listing:
    """What is in a workspace: its files and folders by path, and what was refused, by path, with the reason."""

    files: tuple[Found, ...]
    folders: tuple[str, ...]
    refused: dict[str, str]


def listing(root: Path, *, max_files: int = MAX_FILES, max_bytes: int = MAX_BYTES) -> Listing:
    """All files below ``root``, in order of path.

    What exceeds ``max_files`` (files and folders together) or ``max_bytes`` (of all files together) is refused.
    """
    entries = sorted(_walk(root))
    inside = Counter((info.st_dev, info.st_ino) for _, info in entries if info is not None)
    files: list[Found] = []
    folders: list[str] = []
    refused: dict[str, str] = {}
    n_bytes = 0
    for path, info in entries:
        if info is None:
            refused[path] = "it can't be opened, or it is nested too deep"
        elif len(files) + len(folders) >= max_files:
            refused[path] = f"more than {max_files} files"
        elif stat.S_ISDIR(info.st_mode):
            folders.append(path)
        elif stat.S_ISLNK(info.st_mode):
            refused[path] = "a symbolic link"
        elif not stat.S_ISREG(info.st_mode):
            refused[path] = "no regular file"
        elif info.st_nlink > inside[info.st_dev, info.st_ino]:
            refused[path] = "a hard link to a file outside the workspace"
        elif n_bytes + info.st_size > max_bytes:
            refused[path] = f"more than {max_bytes} bytes"
        else:
            n_bytes += info.st_size
            files.append(Found(path, info.st_size, bool(info.st_mode & 0o100)))
    return Listing(tuple(files), tuple(folders), refused)


def read_bytes(root: Path, path: str, *, max_bytes: int = MAX_BYTES) -> bytes:
    """Content of one file below ``root``; at most ``max_bytes``.

    Raises:
        OSError: there is no such file, a part of its path is a link, it is no regular file, or it has a further name
            outside ``root``.
    """
    fd = _open(root, path)
    with os.fdopen(fd, "rb") as file:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(f"{path} is no regular file")
        if info.st_nlink > 1 and path not in (one.path for one in listing(root).files):
            raise OSError(f"{path} is a hard link to a file outside the workspace")
        return file.read(max_bytes)


def copy(root: Path, target: Path, *, max_files: int = MAX_FILES, max_bytes: int = MAX_BYTES) -> Listing:
    """Copy what ``listing`` accepts below ``root`` to the empty folder ``target``."""
    there = listing(root, max_files=max_files, max_bytes=max_bytes)
    for folder in there.folders:
        (target / folder).mkdir(parents=True, exist_ok=True)
        (target / folder).chmod(0o755)
    for file in there.files:
        path = target / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = _open(root, file.path)
        with os.fdopen(fd, "rb") as source:
            path.write_bytes(source.read(file.n_bytes))
        path.chmod(0o755 if file.executable else 0o644)
    return there


def usage(roots: tuple[Path, ...], *, enough: int) -> tuple[int, int]:
    """Bytes on disk and number of files and folders below ``roots``; stops counting files at ``enough``."""
    n_bytes = n_files = 0
    for root in roots:
        for _, info in _walk(root):
            n_files += 1
            n_bytes += 0 if info is None else info.st_blocks * 512
            if n_files > enough:
                return n_bytes, n_files
    return n_bytes, n_files


def _open(root: Path, path: str) -> int:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts:
        raise OSError(f"{path!r} is no path inside the workspace")
    folder = os.open(root, _FOLDER)
    try:
        for part in parts[:-1]:
            inner = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        return os.open(parts[-1], _FILE, dir_fd=folder)
    finally:
        os.close(folder)


def _walk(root: Path) -> Iterator[tuple[str, os.stat_result | None]]:
    """Path and metadata of everything below ``root``; None for what can't be read."""
    waiting = [""]
    while waiting:
        at = waiting.pop()
        try:
            fd = os.open(root, _FOLDER) if not at else _open_folder(root, at)
        except OSError:
            if at:
                yield at + "/.", None
            continue
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    path = f"{at}/{entry.name}" if at else entry.name
                    try:
                        info = entry.stat(follow_symlinks=False)
                    except OSError:
                        yield path, None
                        continue
                    yield path, info
                    if stat.S_ISDIR(info.st_mode):
                        if path.count("/") >= MAX_DEPTH:
                            yield path + "/.", None
                        else:
                            waiting.append(path)
        finally:
            os.close(fd)


def _open_folder(root: Path, path: str) -> int:
    folder = os.open(root, _FOLDER)
    for part in path.split("/"):
        try:
            inner = os.open(part, _FOLDER, dir_fd=folder)
        finally:
            os.close(folder)
        folder = inner
    return folder
