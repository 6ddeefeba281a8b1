"""Backup and restore of a data folder, and old journal segments.

A backup is the pool's file as it stood between two writes, and after it the journal, which then holds at least what
the pool had read: a restored studio reads on from there. It appears under its name whole or not at all.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson

from core.errors import Conflict, InvalidInput, NotFound, PoolError
from core.journal import SUFFIX
from core.pool import Pool
from core.pool.upkeep import copy_file

BACKUP_VERSION = 1
MANIFEST = "backup.json"
POOL_FILE = "pool.duckdb"
JOURNAL = "journal"


def backup(pool: Pool, journal_dir: Path, out: Path, *, clock: Callable[[], float]) -> dict[str, Any]:
    """Copy pool and journal into a new folder while both are in use; returns the manifest.

    Raises:
        Conflict: the folder exists and holds something.
        InvalidInput: it can't be written.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Conflict(f"{out} is there already.", field="out", hint="Name a folder that does not exist.")
    partial = out.with_name(f".{out.name}.partial")
    try:
        if partial.exists():
            shutil.rmtree(partial)
        (partial / JOURNAL).mkdir(parents=True)
        moment = pool.copy_to(partial / POOL_FILE)
        for segment in sorted(journal_dir.glob("*" + SUFFIX)):
            copy_file(segment, partial / JOURNAL / segment.name)
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
        _sync_folder(partial / JOURNAL)
        _sync_folder(partial)
        if out.exists():
            out.rmdir()
        partial.replace(out)
        _sync_folder(out.parent)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise InvalidInput(f"can't write {out}: {error}", field="out") from error
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return manifest


def restore(source: Path, data_dir: Path) -> dict[str, Any]:
    """Put a backup into a data folder without pool and journal; returns its manifest. The caller owns the folder.

    Every file is compared with its hash first, and the pool is opened once before it appears under its name.

    Raises:
        NotFound: there is no backup.
        Conflict: the data folder holds a pool or a journal.
        PoolError: a file of the backup is not what it was.
    """
    manifest_path = source / MANIFEST
    if not manifest_path.is_file():
        raise NotFound(f"No backup in {source}.", field="source", hint=f"It holds a {MANIFEST}.")
    manifest: dict[str, Any] = orjson.loads(manifest_path.read_bytes())
    if manifest.get("backup_version") != BACKUP_VERSION:
        raise InvalidInput("This backup is of another version of claw-studio.", field="source")
    journal = data_dir / JOURNAL
    if (data_dir / POOL_FILE).exists() or (journal.exists() and any(journal.glob("*" + SUFFIX))):
        raise Conflict(
            f"{data_dir} holds a pool or a journal.", field="data_dir", hint="Restore into another folder, or move it."
        )
    for name, told in manifest["files"].items():
        path = source / name
        if not path.is_file() or path.stat().st_size != told["n_bytes"] or _sha256(path) != told["sha256"]:
            raise PoolError(f"{path} is not what was backed up.", field="source", hint="Use another backup.")
    partial = data_dir / ".restoring"
    if partial.exists():
        shutil.rmtree(partial)
    (partial / JOURNAL).mkdir(parents=True)
    for name in manifest["files"]:
        copy_file(source / name, partial / name)
    Pool.open(partial / POOL_FILE).close()
    journal.mkdir(exist_ok=True)
    for segment in sorted((partial / JOURNAL).iterdir()):
        segment.replace(journal / segment.name)
    _sync_folder(journal)
    for path in sorted(partial.glob(POOL_FILE + "*"), reverse=True):
        path.replace(data_dir / path.name)
    _sync_folder(data_dir)
    shutil.rmtree(partial)
    return manifest


def prune_journal(pool: Pool, journal_dir: Path) -> dict[str, Any]:
    """Delete segments that the pool has read whole and of which it keeps no step; the newest of each writer stays.

    Returns ``{segments: [names], n_bytes}``.
    """
    positions = pool.positions()
    used = set(pool.journal_segments())
    by_writer: dict[str, list[Path]] = {}
    for path in sorted(journal_dir.glob("*" + SUFFIX)):
        by_writer.setdefault(path.name.rpartition("-")[0], []).append(path)
    gone, n_bytes = [], 0
    for paths in by_writer.values():
        for path in sorted(paths, key=lambda path: int(path.stem.rpartition("-")[2]))[:-1]:
            size = path.stat().st_size
            if path.name not in used and positions.get(path.name, 0) >= size:
                path.unlink()
                gone.append(path.name)
                n_bytes += size
    return {"segments": gone, "n_bytes": n_bytes}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
