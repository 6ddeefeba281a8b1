"""Backup and restore of a data folder.

A backup has the pool's file as of one transaction, and a later copy of the journal, which contains at least what the
pool had read; then packs, runs of rollouts, their final workspaces, re-scorings and syntheses (see
``core.backup_folders``). A restored studio continues from there. The backup's folder gets its name only when it is
complete.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson

from core import backup_folders
from core.durable import sync_folder
from core.errors import Conflict, InvalidInput, NoRoom, NotFound, PoolError, is_full
from core.journal import SUFFIX, cut_unfinished
from core.pool import Pool
from core.pool.store.file import copy_file

BACKUP_VERSION = 2
MANIFEST = "backup.json"
POOL_FILE = "pool.duckdb"
JOURNAL = "journal"
OPINIONS = "opinions"
_PART = re.compile(
    rf"pool\.duckdb(\.wal)?|(journal|opinions)/[A-Za-z0-9_.]+-[0-9]{{8,}}\.seg|{backup_folders.NAME.pattern}"
)
"""Allowed file names in a backup."""


def backup(
    pool: Pool,
    journal_dir: Path,
    out: Path,
    *,
    clock: Callable[[], float],
    opinions_dir: Path | None = None,
    data_dir: Path | None = None,
) -> dict[str, Any]:
    """Copy a data folder into a new folder while it is in use; returns the manifest.

    ``damaged`` in the manifest names files that were damaged already, and were copied as they are. A failed backup
    leaves no files.

    Args:
        clock: seconds since the epoch.
        opinions_dir: the opinions log; None: without it.
        data_dir: the folder with packs, runs and workspaces; None: without them.

    Raises:
        Conflict: the folder exists and is not empty.
        InvalidInput: it can't be written.
        NoRoom: its disk is full.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Conflict(f"{out} exists already.", field="out", hint="Name a folder that does not exist.")
    with pool.file.lock:
        return _backup(pool, journal_dir, out, clock, opinions_dir, data_dir)


def _backup(
    pool: Pool,
    journal_dir: Path,
    out: Path,
    clock: Callable[[], float],
    opinions_dir: Path | None,
    data_dir: Path | None,
) -> dict[str, Any]:
    folders = {JOURNAL: journal_dir} | ({} if opinions_dir is None else {OPINIONS: opinions_dir})
    partial: Path | None = None
    try:
        # A new unique name, so that no other file is removed on failure.
        partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".partial", dir=out.parent))
        for name in folders:
            (partial / name).mkdir(mode=0o700)
        logs = {} if data_dir is None else backup_folders.sizes_of_logs(data_dir)
        moment = pool.file.copy_to(partial / POOL_FILE, list(folders.values()), clock)
        for segment, n_bytes in moment["sizes"].items():
            part = next(part for part, folder in folders.items() if folder == segment.parent)
            copy_file(segment, partial / part / segment.name, n_bytes)
            if part == JOURNAL:
                cut_unfinished(partial / part / segment.name, moment["positions"].get(segment.name, 0))
        if data_dir is not None:
            backup_folders.copy_folders(data_dir, partial, before=logs, moment=moment["at"])
        files = {
            path.relative_to(partial).as_posix(): _about(path) for path in sorted(partial.rglob("*")) if path.is_file()
        }
        hashes = {name: str(about["sha256"]) for name, about in files.items()}
        manifest = {
            "backup_version": BACKUP_VERSION,
            "created_at": datetime.fromtimestamp(clock(), UTC).isoformat(),
            "claw_studio": version("claw-studio"),
            "n_steps": moment["n_steps"],
            "positions": moment["positions"],
            "damaged": backup_folders.damaged_files(partial, hashes),
            "files": files,
        }
        (partial / MANIFEST).write_bytes(orjson.dumps(manifest, option=orjson.OPT_INDENT_2))
        (partial / MANIFEST).chmod(0o600)
        for folder in (path for path in partial.rglob("*") if path.is_dir()):
            sync_folder(folder)
        sync_folder(partial)
        if out.exists():
            out.rmdir()
        partial.replace(out)
        sync_folder(out.parent)
    except OSError as error:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)
        refused = NoRoom if is_full(error) else InvalidInput
        raise refused(
            f"can't write {out}: {error}", field="out", hint="Name a writable folder on a disk with free space."
        ) from error
    except BaseException:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)
        raise
    return manifest


def restore(source: Path, data_dir: Path) -> dict[str, Any]:
    """Restore a backup into a data folder without data; returns its manifest. The caller owns the folder.

    Every file's hash is checked first, and the pool is opened once before it appears under its name.

    Raises:
        NotFound: there is no backup.
        Conflict: the data folder has a pool, a journal, runs, packs or workspaces.
        PoolError: a file of the backup has changed, or the data folder can't be written; nothing is left there.
    """
    manifest_path = source / MANIFEST
    if not manifest_path.is_file():
        raise NotFound(f"No backup in {source}.", field="source", hint=f"A backup has a {MANIFEST}.")
    try:
        manifest: dict[str, Any] = orjson.loads(manifest_path.read_bytes())
    except ValueError as error:
        raise InvalidInput(f"{manifest_path} is not JSON: {error}", field="source") from error
    if not isinstance(manifest, dict) or manifest.get("backup_version") != BACKUP_VERSION:
        raise InvalidInput("This backup is of another version of claw-studio.", field="source")
    files = _named(manifest)
    folders = [data_dir / JOURNAL, data_dir / OPINIONS]
    if (data_dir / POOL_FILE).exists() or any(any(folder.glob("*" + SUFFIX)) for folder in folders):
        raise Conflict(
            f"{data_dir} has a pool or a journal.", field="data_dir", hint="Restore into another folder, or move it."
        )
    if used := backup_folders.in_use(data_dir):
        raise Conflict(
            f"{data_dir} has files in {', '.join(used)}.",
            field="data_dir",
            hint="Restore into another folder, or move it.",
        )
    for name, entry in files.items():
        path = source / name
        if any(one.is_symlink() for one in (path, *path.parents) if one.is_relative_to(source) and one != source):
            raise InvalidInput(f"{path} is a link.", field="source", hint="A backup has only regular files.")
        if not path.is_file() or path.stat().st_size != entry.get("n_bytes") or _sha256(path) != entry.get("sha256"):
            raise PoolError(f"{path} has changed since the backup.", field="source", hint="Use another backup.")
    partial = data_dir / ".restoring"
    if partial.exists():
        shutil.rmtree(partial)
    moved: list[Path] = []
    try:
        for part in (JOURNAL, OPINIONS):
            (partial / part).mkdir(mode=0o700, parents=True)
        for name, entry in files.items():
            (partial / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            copy_file(source / name, partial / name)
            os.utime(partial / name, ns=(entry["mtime_ns"], entry["mtime_ns"]))
        Pool.open(partial / POOL_FILE).close()
        _put_in_place(partial, data_dir, moved)
    except BaseException as error:
        for path in moved:
            path.unlink(missing_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, OSError):
            refused = NoRoom if is_full(error) else PoolError
            raise refused(
                f"{data_dir} can't be written: {error}", field="data_dir", hint="Check its free space."
            ) from error
        raise
    shutil.rmtree(partial)
    return manifest


def _put_in_place(partial: Path, data_dir: Path, moved: list[Path]) -> None:
    """Move the files; the pool last, so that an incomplete folder is recognised. Appends each path to ``moved``."""

    def move(path: Path, target: Path) -> None:
        path.replace(target)
        moved.append(target)

    for part in (JOURNAL, OPINIONS, *backup_folders.FOLDERS):
        for folder in (partial / part, *sorted(path for path in (partial / part).rglob("*") if path.is_dir())):
            if not folder.is_dir():
                continue
            there = data_dir / folder.relative_to(partial)
            there.mkdir(mode=0o700, exist_ok=True)
            for path in sorted(path for path in folder.iterdir() if path.is_file()):
                move(path, there / path.name)
            sync_folder(there)
    for path in sorted(partial.glob(POOL_FILE + "*"), reverse=True):
        move(path, data_dir / path.name)
    sync_folder(data_dir)


def _named(manifest: Any) -> dict[str, dict[str, Any]]:
    """The files of a manifest. InvalidInput if a name is not part of a backup."""
    files = manifest.get("files")
    if not isinstance(files, dict) or POOL_FILE not in files:
        raise InvalidInput(f"The {MANIFEST} names no {POOL_FILE}.", field="source")
    for name, entry in files.items():
        if not _PART.fullmatch(name) or not isinstance(entry, dict) or not _is_time(entry.get("mtime_ns")):
            raise InvalidInput(
                f"The {MANIFEST} names {name!r}, which is not part of a backup.",
                field="source",
                hint="Use an unchanged backup of claw-studio.",
            )
    return files


def _is_time(value: Any) -> bool:
    """Whether this is a file's time, in nanoseconds since the epoch."""
    return isinstance(value, int) and 0 <= value < 1 << 63


def _about(path: Path) -> dict[str, Any]:
    """Size, hash and time of a file, as the manifest has them."""
    about = path.stat()
    return {"n_bytes": about.st_size, "sha256": _sha256(path), "mtime_ns": about.st_mtime_ns}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
