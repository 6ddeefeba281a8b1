"""Flipped bits of the pool's file, and disks that are full: all equal, or a refusal by name and a file made anew."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from core.errors import PoolError
from core.pool import Pool
from core.pool.upkeep.recovery import find_read_error
from core.rebuild import rebuild
from tests.effort import settings
from tests.left_out import only_in_ci

from .folder import Folder, different, say_everything, tables


@pytest.fixture(scope="module")
def full_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Folder, bytes, dict[str, list[str]]]]:
    """A folder with everything said in it, closed; the file's bytes and its tables."""
    folder = Folder(tmp_path_factory.mktemp("flips") / "data")
    say_everything(folder)
    folder.pool._db.checkpoint()
    folder.close()
    path = folder.settings.pool_path
    yield folder, path.read_bytes(), tables(path)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), header=st.booleans())
def test_a_flipped_bit_changes_nothing_or_is_told(
    where: float, bit: int, header: bool, full_folder: tuple[Folder, bytes, dict[str, list[str]]]
) -> None:
    folder, whole, was = full_folder
    path = folder.settings.pool_path
    hurt = bytearray(whole)
    hurt[int(where * (12288 if header else len(hurt)))] ^= 1 << bit
    path.write_bytes(hurt)
    try:
        if find_read_error(path) is None:
            try:
                pool = Pool.open(path, memory="300MB", threads=1)
                pool.close()
            except PoolError:
                pass
            else:
                assert different(tables(path), was) == {}
                return
        # Told: and journal and log have it all.
        rebuild(folder.settings, clock=lambda: folder.now)
        assert different(tables(path), was) == {}
    finally:
        for each in path.parent.glob("pool.duckdb*"):
            each.unlink()
        path.write_bytes(whole)


def small_disk(folder: Path, options: str) -> None:
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no disk can be mounted here: {made.stderr.decode().strip()}")


@pytest.mark.parametrize(
    "options", ["size=12m", pytest.param("size=256m,nr_inodes=40", marks=only_in_ci("another full disk"))]
)
def test_a_full_disk_refuses_by_name_and_what_was_answered_is_there(options: str, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    small_disk(disk, options)
    try:
        folder = Folder(disk / "data")
        folder.send("a1")
        folder.catch_up()
        if "inodes" in options:
            for number in range(100):
                try:
                    (disk / f"f{number}").touch()
                except OSError:
                    break
        else:
            free = os.statvfs(disk)
            (disk / "ballast").write_bytes(b"x" * max(0, free.f_bavail * free.f_frsize - 200_000))
        answered, refused = [], []
        for number in range(300):
            try:
                folder.pool.views.save(f"v{number}", folder_view(number))
                answered.append(f"v{number}")
            except PoolError as error:
                refused.append(error.message)
                if len(refused) > 2:
                    break
        assert answered
        if "inodes" not in options:
            assert refused
        for path in disk.glob("f*"):
            path.unlink()
        (disk / "ballast").unlink(missing_ok=True)
        folder.close()
        folder.open()
        assert {one["name"] for one in folder.pool.views.all()} >= set(answered)
        folder.close()
        was = tables(folder.settings.pool_path)
        folder.settings.pool_path.unlink()
        rebuild(folder.settings, clock=lambda: folder.now)
        assert different(tables(folder.settings.pool_path), was) == {}
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


def folder_view(number: int) -> object:
    """A view of some size, so that a disk fills."""
    from core.types import View

    return View({"prompt_uid": f"{number}" + os.urandom(8000).hex()})


def test_what_is_written_is_for_its_owner_alone(tmp_path: Path) -> None:
    from core.backup import backup, restore

    before = os.umask(0o022)
    try:
        folder = Folder(tmp_path / "data")
        folder.send("a1")
        folder.catch_up()
        folder.label("tag", "x", trajectory_uid="a1")
        data = folder.settings
        backup(folder.pool, data.journal_dir, tmp_path / "b", clock=lambda: folder.now, opinions_dir=data.opinions_dir)
        restore(tmp_path / "b", tmp_path / "restored")
        files = [data.pool_path, Path(f"{data.pool_path}.wal"), *data.journal_dir.glob("*.seg")]
        files += [path for top in (data.opinions_dir, tmp_path / "b", tmp_path / "restored") for path in top.rglob("*")]
        private = ("*.seg", "pool.duckdb*", "backup.json", "opinions", "journal")
        files = [path for path in files if path.exists() and any(path.match(name) for name in private)]
        modes = {path.name: oct(path.stat().st_mode & 0o077) for path in files}
        assert set(modes.values()) == {"0o0"}, {name: mode for name, mode in modes.items() if mode != "0o0"}
        assert Path(f"{data.pool_path}.wal").exists()
        folder.close()
    finally:
        os.umask(before)


def test_a_backup_touches_nothing_beside_it_and_a_restore_follows_no_path(tmp_path: Path) -> None:
    import json

    from core.backup import MANIFEST, backup, restore
    from core.errors import InvalidInput

    folder = Folder(tmp_path / "data")
    folder.send("a1")
    folder.catch_up()
    data = folder.settings
    (tmp_path / ".b.partial").mkdir()
    (tmp_path / ".b.partial" / "mine").write_text("kept")
    backup(folder.pool, data.journal_dir, tmp_path / "b", clock=lambda: folder.now, opinions_dir=data.opinions_dir)
    assert (tmp_path / ".b.partial" / "mine").read_text() == "kept"
    manifest = json.loads((tmp_path / "b" / MANIFEST).read_bytes())
    outside = tmp_path / "outside"
    outside.write_bytes(b"x")
    for name in ("../outside", "journal/../../outside", "/etc/passwd", str(outside), "journal/x.seg\n", "owner.json"):
        bad = {**manifest, "files": {**manifest["files"], name: {"n_bytes": 1, "sha256": "0" * 64}}}
        (tmp_path / "b" / MANIFEST).write_text(json.dumps(bad))
        with pytest.raises(InvalidInput, match="not part of a backup"):
            restore(tmp_path / "b", tmp_path / "restored")
    assert not (tmp_path / "restored").exists()
    (tmp_path / "b" / MANIFEST).write_text(json.dumps(manifest))
    real = tmp_path / "b" / "pool.duckdb"
    shutil.move(real, tmp_path / "elsewhere")
    real.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidInput, match="is a link"):
        restore(tmp_path / "b", tmp_path / "restored")
    folder.close()
