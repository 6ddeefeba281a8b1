"""Backup and restore of a data folder.

A backup has the pool's file as of one transaction, and a later copy of the journal, which contains at least what the
pool had read. A restored studio continues from there. The backup's folder gets its name only when it is complete.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson

from core.durable import sync_folder
from core.errors import Conflict, InvalidInput, NoRoom, NotFound, PoolError, is_full
from core.journal import SUFFIX, cut_unfinished
from core.pool import Pool
from core.pool.store.file import copy_file

BACKUP_VERSION = 1
MANIFEST = "backup.json"
POOL_FILE = "pool.duckdb"
JOURNAL = "journal"
OPINIONS = "opinions"
_PART = re.compile(r"pool\.duckdb(\.wal)?|(journal|opinions)/[A-Za-z0-9_.]+-[0-9]{8,}\.seg")
"""Allowed file names in a backup."""


def backup(
    pool: Pool, journal_dir: Path, out: Path, *, clock: Callable[[], float], opinions_dir: Path | None = None
) -> dict[str, Any]:
    """Copy pool, journal and opinions log into a new folder while they are in use; returns the manifest.

    A failed backup leaves no files.

    Raises:
        Conflict: the folder exists and is not empty.
        InvalidInput: it can't be written.
        NoRoom: its disk is full.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Conflict(f"{out} exists already.", field="out", hint="Name a folder that does not exist.")
    with pool.file.lock:
        return _backup(pool, journal_dir, out, clock, opinions_dir)


def _backup(
    pool: Pool, journal_dir: Path, out: Path, clock: Callable[[], float], opinions_dir: Path | None
) -> dict[str, Any]:
    folders = {JOURNAL: journal_dir} | ({} if opinions_dir is None else {OPINIONS: opinions_dir})
    partial: Path | None = None
    try:
        # A new unique name, so that no other file is removed on failure.
        partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".partial", dir=out.parent))
        for name in folders:
            (partial / name).mkdir(mode=0o700)
        moment = pool.file.copy_to(partial / POOL_FILE, list(folders.values()))
        for segment, n_bytes in moment["sizes"].items():
            part = next(part for part, folder in folders.items() if folder == segment.parent)
            copy_file(segment, partial / part / segment.name, n_bytes)
            if part == JOURNAL:
                cut_unfinished(partial / part / segment.name, moment["positions"].get(segment.name, 0))
        manifest = {
            "backup_version": BACKUP_VERSION,
            "created_at": datetime.fromtimestamp(clock(), UTC).isoformat(),
            "claw_studio": version("claw-studio"),
            "n_steps": moment["n_steps"],
            "positions": moment["positions"],
            "files": {
                path.relative_to(partial).as_posix(): {"n_bytes": path.stat().st_size, "sha256": _sha256(path)}
                for path in sorted(partial.rglob("*"))
                if path.is_file()
            },
        }
        (partial / MANIFEST).write_bytes(orjson.dumps(manifest, option=orjson.OPT_INDENT_2))
        (partial / MANIFEST).chmod(0o600)
        for name in folders:
            sync_folder(partial / name)
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
    """Restore a backup into a data folder without pool and journal; returns its manifest. The caller owns the folder.

    Every file's hash is checked first, and the pool is opened once before it appears under its name.

    Raises:
        NotFound: there is no backup.
        Conflict: the data folder has a pool or a journal.
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
    for name, entry in files.items():
        path = source / name
        if path.is_symlink() or path.parent.is_symlink():
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
        for name in files:
            copy_file(source / name, partial / name)
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

    for part in (JOURNAL, OPINIONS):
        (data_dir / part).mkdir(mode=0o700, exist_ok=True)
        for segment in sorted((partial / part).iterdir()):
            move(segment, data_dir / part / segment.name)
        sync_folder(data_dir / part)
    for path in sorted(partial.glob(POOL_FILE + "*"), reverse=True):
        move(path, data_dir / path.name)
    sync_folder(data_dir)


def _named(manifest: Any) -> dict[str, dict[str, Any]]:
    """The files of a manifest. InvalidInput if a name is not part of a backup."""
    files = manifest.get("files")
    if not isinstance(files, dict) or POOL_FILE not in files:
        raise InvalidInput(f"The {MANIFEST} names no {POOL_FILE}.", field="source")
    for name, entry in files.items():
        if not _PART.fullmatch(name) or not isinstance(entry, dict):
            raise InvalidInput(
                f"The {MANIFEST} names {name!r}, which is not part of a backup.",
                field="source",
                hint="Use an unchanged backup of claw-studio.",
            )
    return files


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
