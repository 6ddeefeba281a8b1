"""What a backup holds besides pool, journal and opinions: packs, runs, final workspaces, re-scorings, syntheses.

Their files are only added or replaced as a whole, except for logs, which grow. So they are copied while they are in
use, in an order in which what is copied first refers only to what is copied later. The log of a run is made
consistent with the journal of the same backup: see ``log_as_of``.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from core.errors import StudioError
from core.packs.library import PackLibrary
from core.pool.store.file import copy_file
from core.rollouts import WorkspaceStore
from core.rollouts.log import LOG, attempt_of
from core.rollouts.runs import SETTINGS

PACKS, ROLLOUTS, RESCORES, WORKSPACES, SYNTHESIS = "packs", "rollouts", "rescores", "workspaces", "synthesis"
FOLDERS = (ROLLOUTS, RESCORES, SYNTHESIS, WORKSPACES, PACKS)
NAME = re.compile(rf"({'|'.join(FOLDERS)})(/[A-Za-z0-9][A-Za-z0-9._-]*){{1,4}}")
"""Names of their files in a backup."""
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LEFT_OUT = re.compile(r"lock|.*\.(lock|tmp|part)")
"""Files that belong to a running process."""


def sizes_of_logs(data_dir: Path) -> dict[str, int]:
    """Run -> bytes of its log now."""
    return {path.parent.name: path.stat().st_size for path in (data_dir / ROLLOUTS).glob(f"*/{LOG}")}


def copy_folders(data_dir: Path, target: Path, *, before: Mapping[str, int], moment: float) -> None:
    """Copy the folders below ``data_dir`` to the folder ``target``.

    Args:
        before: ``sizes_of_logs`` before the journal's sizes were read.
        moment: when the journal's sizes were read, seconds since the epoch.

    Raises:
        OSError: a file can't be read or written.
    """
    for run in _entries(data_dir / ROLLOUTS):
        if (run / SETTINGS).is_file():
            content = (run / LOG).read_bytes() if (run / LOG).is_file() else b""
            there = target / ROLLOUTS / run.name
            _write(there / LOG, log_as_of(content, before.get(run.name, 0), moment))
            _copy_below(run, there, without=LOG)
    for folder in (RESCORES, SYNTHESIS):
        _copy_below(data_dir / folder, target / folder)
    store = data_dir / WORKSPACES
    if store.is_dir():
        with WorkspaceStore(store).kept():
            for path in _entries(store):
                if path.is_file():
                    _copy(path, target / WORKSPACES / path.name)
            for folder in ("manifests", "blobs"):
                _copy_below(store / folder, target / WORKSPACES / folder)
    for about in sorted((data_dir / PACKS).glob("*.json")):
        for path in (about, about.with_suffix(".jsonl")):
            if NAME.fullmatch(f"{PACKS}/{path.name}"):
                _copy(path, target / PACKS / path.name)


def log_as_of(content: bytes, n_before: int, moment: float) -> bytes:
    """The log of a run as it belongs to a journal that ends at ``moment``.

    Attempts whose result came later have no result: a resume makes them again. Of attempts whose result came before,
    the line ``done`` is kept only if it was written before the journal's sizes were read; without it, a resume
    completes the trajectory again, which changes nothing if it is complete. Lines of attempts that began later stay:
    their trajectories may have begun in the journal, and a resume must not use these names again.

    Args:
        content: the log, read after ``moment``.
        n_before: its size before the journal's sizes were read, bytes.
        moment: seconds since the epoch.
    """
    kept, offset = [], 0
    for line in content.splitlines(keepends=True):
        attempt = attempt_of(line.rstrip(b"\n"))
        late = offset >= n_before and attempt is not None and attempt.ended_at is not None
        offset += len(line)
        if late and attempt is not None and (attempt.state == "done" or (attempt.ended_at or 0.0) > moment):
            continue
        kept.append(line)
    return b"".join(kept)


def damaged_files(backup: Path, hashes: Mapping[str, str]) -> list[str]:
    """Names of files in a backup that were damaged before they were copied.

    Args:
        backup: its folder.
        hashes: name of each file of the backup -> SHA-256 of its content.
    """
    damaged = []
    packs = PackLibrary(backup / PACKS)
    for name, sha256 in hashes.items():
        folder, _, rest = name.partition("/")
        path = Path(rest)
        if folder == WORKSPACES and len(path.stem) == 64 and path.stem != sha256:
            damaged.append(name)
        elif folder == ROLLOUTS and path.name == LOG:
            lines = (backup / name).read_bytes().split(b"\n")[:-1]
            if any(attempt_of(line) is None for line in lines):
                damaged.append(name)
        elif folder == PACKS and path.suffix == ".jsonl":
            try:
                packs.get(path.stem)
            except (StudioError, UnicodeDecodeError):
                damaged.append(name)
    return damaged


def in_use(data_dir: Path) -> list[str]:
    """Which of these folders have files below ``data_dir``."""
    return [name for name in FOLDERS if any(True for _ in _files_below(data_dir / name))]


def _copy_below(source: Path, target: Path, *, without: str = "") -> None:
    for path in _files_below(source):
        inner = path.relative_to(source)
        if inner.as_posix() != without:
            _copy(path, target / inner)


def _files_below(folder: Path) -> Iterator[Path]:
    """Regular files below a folder, those of running processes left out. No link is followed."""
    for path in _entries(folder):
        if path.is_dir():
            yield from _files_below(path)
        elif path.is_file():
            yield path


def _entries(folder: Path) -> list[Path]:
    try:
        entries = sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [
        one
        for one in entries
        if _PART.fullmatch(one.name) and not _LEFT_OUT.fullmatch(one.name) and not one.is_symlink()
    ]


def _copy(source: Path, target: Path) -> None:
    """Copy a file with its time, which retention goes by. A file that was removed meanwhile is left out."""
    with contextlib.suppress(FileNotFoundError):
        about = source.stat()
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            copy_file(source, target)
        except FileNotFoundError:
            target.unlink(missing_ok=True)
            raise
        os.utime(target, ns=(about.st_atime_ns, about.st_mtime_ns))


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
