"""Stored pack versions: read again they are the same, and damage is noticed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from core.errors import InvalidInput, NotFound
from core.packs import Pack, PackTask, read_pack
from core.packs.library import PackLibrary
from core.packs.model import PackFile

TASKS = Path(__file__).resolve().parents[2] / "demo_data" / "policy" / "tasks" / "val"


def test_a_pack_is_kept_by_its_content(tmp_path: Path) -> None:
    pack = read_pack(TASKS)
    library = PackLibrary(tmp_path / "packs")
    entry = library.keep(pack, now=1.0)
    assert (entry.version, entry.name, entry.n_tasks) == (pack.version, pack.name, len(pack.tasks))
    assert library.keep(pack, now=2.0) == entry
    fresh = PackLibrary(tmp_path / "packs").get(pack.version)
    assert fresh.tasks == pack.tasks
    assert (fresh.name, fresh.format, fresh.version) == (pack.name, pack.format, pack.version)


def test_versions_of_a_name(tmp_path: Path) -> None:
    library = PackLibrary(tmp_path / "packs")
    task = PackTask("one", "Do it.", input_files={"a": PackFile(b"\xff\0", True)})
    old = Pack("mine", [task])
    new = old.replaced([replace(task, query="Do it well.")])
    for now, pack in ((1.0, old), (2.0, new)):
        library.keep(pack, now=now)
    assert [one.version for one in library.entries()] == [new.version, old.version]
    assert library.find("mine").version == new.version
    assert library.find(old.version).added_at == 1.0
    assert PackLibrary(tmp_path / "packs").get(old.version).by_id["one"] == task


def test_what_is_missing_or_damaged_is_an_error(tmp_path: Path) -> None:
    library = PackLibrary(tmp_path / "packs")
    pack = Pack("mine", [PackTask("one", "Do it.")])
    version = library.keep(pack, now=1.0).version
    for name in ("other", "../packs", "0" * 12):
        with pytest.raises(NotFound):
            library.find(name)
        with pytest.raises(NotFound):
            library.get(name)
    file = tmp_path / "packs" / f"{version}.jsonl"
    file.write_text(file.read_text().replace("Do it.", "Do not."))
    with pytest.raises(InvalidInput):
        PackLibrary(tmp_path / "packs").get(version)
