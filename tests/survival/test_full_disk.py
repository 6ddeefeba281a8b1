"""A disk that is full, or has no inode left, at every kind of write: refused by name, nothing half, and well again.

The reference is a real file system that is filled to the byte, and the tables' contents before and after.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from core.backup import backup, restore
from core.batch.datasets import freeze_version
from core.batch.leases import Fetch
from core.batch.plan import plan
from core.batch.recipe import parse_recipe
from core.errors import NotFound, StudioError
from core.export import export
from core.pool.upkeep import compaction
from core.pool.upkeep.retention import Retention
from core.rebuild import rebuild
from core.records import complete_record, policy_record, session_record
from core.trash import prune_journal, restore_run
from core.types import View
from tests.batch.keeping_all import SFT_ALL

from .folder import DAY, GRPO, Folder, different, tables
from .test_damage import small_disk
from .test_thinning import SmallSegments

SFT = SFT_ALL
FREE = (0, 4096, 12288, 40960)
"""Bytes that are left: so that each of a write's steps is the first that finds no room."""
OLD = Retention(older_than_days=5)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(compaction, "LEAST_BYTES", 0)
    folder = tmp_path / "disk"
    small_disk(folder, "size=32m")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


def fill(disk: Path, free: int) -> None:
    room = os.statvfs(disk)
    (disk / "ballast").write_bytes(b"x" * max(0, room.f_bavail * room.f_frsize - free))


def empty(disk: Path) -> None:
    (disk / "ballast").unlink(missing_ok=True)


def contents(folder: Folder) -> dict[str, Any]:
    """Every table's rows, as a count and a hash over all values, by a cursor of its own."""
    with folder.pool._db.read() as cursor:
        named = cursor.execute("SELECT table_name FROM duckdb_tables() WHERE NOT temporary AND NOT internal").fetchall()
        return {
            name: cursor.execute(f"SELECT count(*), bit_xor(hash(x)) FROM {name} x").fetchall()
            for (name,) in named
            if name != "opinions_position"
        }


def files(disk: Path) -> set[str]:
    """All but what logs grow by; empty folders may be left."""
    logs = (".seg", ".wal", ".lock")
    paths = (path for path in disk.rglob("*") if path.is_file() and path.suffix not in logs)
    return {str(path.relative_to(disk)) for path in paths}


class Writes:
    """Every kind of write, each as often as it is asked for; ``k`` makes names that nobody has."""

    def __init__(self, folder: Folder, disk: Path, kept: Path) -> None:
        self.folder, self.disk, self.kept = folder, disk, kept
        self.k = 0
        # Content that can't be compressed does not fit the rest of a block that is already on the disk.
        self.kinds: dict[str, Callable[[], object]] = {
            "label": lambda: folder.label("tag", f"t{self.k}", trajectory_uid="a1"),
            "reward": lambda: folder.label("reward", float(self.k), trajectory_uid="a1"),
            "labels of a view": self.many,
            "undo": lambda: folder.pool.labels.undo(folder.pool.labels.actions()[0]["action_uid"]),
            "lease": lambda: folder.leases.fetch(Fetch(f"c{self.k}", recipe=GRPO, shared=True)),
            "freeze": lambda: freeze_version(
                folder.pool, f"v{self.k}", View({"prompt_uid": "a"}), parse_recipe(SFT), author="a"
            ),
            "recipe": lambda: folder.pool.recipes.save(f"r{self.k}" + os.urandom(4000).hex(), SFT),
            "view": lambda: folder.pool.views.save(f"v{self.k}", View({"prompt_uid": os.urandom(4000).hex()})),
            "values": lambda: folder.pool.values.store(
                f"m{self.k}" + os.urandom(4000).hex(), pa.table({"step_uid": ["a1.0"], "value": [float(self.k)]})
            ),
            "session key": lambda: self.record(
                session_record(at=folder.now, key_sha256=f"{self.k:064d}", trajectory_uid="a1", channel="train")
            ),
            "completion": lambda: self.record(complete_record(at=folder.now, trajectory_uid="a1", outcome="o" * 5000)),
            "policy": lambda: self.record(
                policy_record(at=folder.now, version=self.k, event="registered", metadata={"m": "x" * 5000})
            ),
            "retention": self.delete,
            "trash": self.bring_back,
            "thinning": self.thin,
            "export": self.export,
            "backup": self.backup,
            "restore": lambda: restore(kept, disk / f"restored{self.k}"),
            "the log anew": folder.pool.recovery.compact_log,
        }
        self.run: str | None = None

    def record(self, payload: bytes) -> None:
        self.folder.journal.append(payload).result()

    def many(self) -> None:
        self.folder.pool.labels.annotate_view(View(), "step", "note", f"{self.k}" * 3000, author="a", source="human")

    def delete(self) -> None:
        self.run = self.folder.pool.retention.apply(OLD, author="ann")["run_uid"]

    def bring_back(self) -> None:
        data = self.folder.settings
        if self.run is None:
            self.delete()
        assert self.run is not None
        restore_run(self.folder.pool, data.journal_dir, data.trash_dir, self.run, author="ann")
        self.run = None

    def thin(self) -> None:
        data = self.folder.settings
        if self.run is None:
            self.delete()
        prune_journal(self.folder.pool, data.journal_dir, data.trash_dir / f"{self.run}" / "journal")

    def export(self) -> None:
        made = plan(self.folder.pool, View(), parse_recipe(SFT))
        export(made, self.folder.pool, "steps_parquet", self.disk / f"export{self.k}")

    def backup(self) -> None:
        data, out = self.folder.settings, self.disk / f"backup{self.k}"
        backup(self.folder.pool, data.journal_dir, out, clock=lambda: self.folder.now, opinions_dir=data.opinions_dir)


def test_every_write_to_a_full_disk_is_whole_or_refused_by_name(disk: Path, tmp_path: Path) -> None:
    folder = SmallSegments(disk / "data")
    for uid in ("d1", "d2"):
        folder.send(uid)
    folder.catch_up()
    folder.now += 30 * DAY
    for uid in ("a1", "a2", "b1", "b2"):
        folder.send(uid)
    folder.catch_up()
    for uid in ("a1", "a2", "b1", "b2"):
        folder.journal.append(complete_record(at=folder.now, trajectory_uid=uid, reward=float(uid[1]))).result()
    folder.label("tag", "first", trajectory_uid="d1")
    folder.catch_up()
    data = folder.settings
    kept = tmp_path / "kept"
    backup(folder.pool, data.journal_dir, kept, clock=lambda: folder.now, opinions_dir=data.opinions_dir)
    writes = Writes(folder, disk, kept)
    refused: dict[str, int] = dict.fromkeys(writes.kinds, 0)
    for free in FREE:
        for kind, write in writes.kinds.items():
            writes.k += 1
            empty(disk)
            if kind in ("trash", "thinning") and writes.run is None:
                writes.delete()
            was, there = contents(folder), files(disk)
            fill(disk, free)
            try:
                write()
            except StudioError as error:
                refused[kind] += 1
                where = (kind, free, error.message)
                assert error.http_status == 507 and error.hint, where
                assert contents(folder) == was, where
                assert files(disk) - there <= {"ballast"}, where
                if kind in ("label", "labels of a view", "freeze"):
                    not_there_after_a_kill(folder, tmp_path / "killed", was)
                empty(disk)
                write()
            for made in ("export", "backup", "restored"):
                shutil.rmtree(disk / f"{made}{writes.k}", ignore_errors=True)
            if writes.run is not None and kind == "thinning":
                empty(disk)
                writes.bring_back()
    assert {kind for kind, n in refused.items() if not n} == set(), refused
    empty(disk)
    folder.catch_up()
    was = contents(folder)
    folder.close()
    folder.open()
    assert contents(folder) == was
    folder.close()
    rows = tables(data.pool_path)
    fill(disk, 20_000)
    with pytest.raises(StudioError) as no_room:
        rebuild(data, clock=lambda: folder.now)
    assert no_room.value.http_status == 507, no_room.value
    assert tables(data.pool_path) == rows
    assert not list(disk.rglob("*rebuilding*"))
    empty(disk)
    data.pool_path.unlink()
    rebuild(data, clock=lambda: folder.now)
    assert different(tables(data.pool_path), rows) == {}


def not_there_after_a_kill(folder: Folder, copy: Path, was: dict[str, Any]) -> None:
    """What is on disk while it is full, on another disk: what was refused is not in it."""
    shutil.copytree(folder.settings.data_dir, copy)
    again = Folder.__new__(Folder)
    again.settings = folder.settings.model_copy(update={"data_dir": copy})
    again.now, again.number = folder.now, 1000
    again.open()
    again.catch_up()
    tables = ("annotations", "actions", "dataset_versions", "dataset_steps")
    assert {name: contents(again)[name] for name in tables} == {name: was[name] for name in tables}
    again.close()
    shutil.rmtree(copy)


def test_without_inodes_what_makes_files_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "LEAST_BYTES", 0)
    disk = tmp_path / "disk"
    small_disk(disk, "size=256m,nr_inodes=120")
    try:
        folder = SmallSegments(disk / "data")
        for uid in ("d1", "a1"):
            folder.send(uid)
            folder.now += 15 * DAY
        folder.catch_up()
        data, kept = folder.settings, tmp_path / "kept"
        backup(folder.pool, data.journal_dir, kept, clock=lambda: folder.now, opinions_dir=data.opinions_dir)
        writes = Writes(folder, disk, kept)
        n = 0
        try:
            while True:
                (disk / f"f{n}").touch()
                n += 1
        except OSError:
            pass
        was, there = contents(folder), files(disk)
        for kind in ("retention", "export", "backup", "restore", "the log anew"):
            writes.k += 1
            with pytest.raises(StudioError) as refused:
                writes.kinds[kind]()
            assert refused.value.http_status == 507, (kind, refused.value)
            assert contents(folder) == was and files(disk) == there, kind
        folder.label("tag", "fits", trajectory_uid="a1")
        for path in disk.glob("f*"):
            path.unlink()
        for kind in ("retention", "trash", "export", "backup", "restore", "the log anew", "label"):
            writes.kinds[kind]()
        with pytest.raises(NotFound):
            restore_run(folder.pool, data.journal_dir, data.trash_dir, f"run-{'0' * 32}", author="ann")
        folder.close()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)
