"""A pack that is written and read again is the same, in every format that can be written."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from core.errors import InvalidInput
from core.packs import WRITES, Pack, PackFile, PackTask, read_pack, with_split, write_pack
from core.packs.clawgym import WORKSPACE
from core.packs.model import CHECKERS, FIELDS
from tests.effort import settings
from tests.packs import examples

NAMES = "a b.txt input reward reward.sh check.py test.py test.sh Dockerfile data_entry.json task.toml instruction.md"
NAMES += " environment tests claw_studio metadata é 日本 .hid ~"
WORDS = st.sampled_from([*NAMES.split(), "x y"])
PATHS = st.lists(WORDS, min_size=1, max_size=3).map("/".join)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
FIELD_NAMES = "metadata task environment agent origin_template hook_code rule rules category prompt input_mount_dir"
FIELD_NAMES += " workspace_root claw_studio schema_version $time tags task_id rubrics"
KEYS = TEXT | st.sampled_from(FIELD_NAMES.split())
OBJECTS = st.dictionaries(KEYS, JSON | st.dictionaries(KEYS, JSON, max_size=2), max_size=4)
CONTENT = st.binary(max_size=12) | TEXT.map(str.encode)


def no_file_is_a_folder(files: dict[str, PackFile]) -> dict[str, PackFile]:
    folders = {path[:at] for path in files for at, letter in enumerate(path) if letter == "/"}
    return {path: one for path, one in files.items() if path not in folders}


FILES = st.dictionaries(PATHS, st.builds(PackFile, CONTENT, st.booleans()), max_size=4).map(no_file_is_a_folder)
IDS = (WORDS | st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=9)).filter(
    lambda text: text == text.strip()
)
TASKS = st.builds(
    PackTask,
    task_id=IDS,
    query=TEXT.filter(lambda text: bool(text.strip())),
    sessions=st.lists(OBJECTS, max_size=2).map(tuple),
    input_files=FILES,
    checker=st.none() | st.sampled_from(sorted(CHECKERS)),
    checker_files=FILES,
    answer=JSON,
    rules=st.just(()) | st.just((examples.RULE,)) | st.lists(OBJECTS, max_size=1).map(tuple),
    rubric=st.none() | TEXT,
    weights=st.none() | st.just({"code": 0.7, "rubric": 0.3}),
    category=st.none() | TEXT,
    tags=st.lists(TEXT.filter(lambda text: bool(text.strip())), max_size=2).map(tuple),
    split=st.sampled_from([None, "train", "val"]),
    timeout_s=st.none() | st.floats(0.5, 1e6),
    image=st.none() | TEXT,
    environment_files=FILES,
    solution_files=FILES,
    other_files=FILES,
    extra=OBJECTS,
)


def assert_same(task: PackTask, again: PackTask) -> None:
    for name in FIELDS:
        assert getattr(again, name) == getattr(task, name), name
    assert again.content_hash == task.content_hash


def through(pack: Pack, format: str, folder: Path) -> Pack:
    out = folder / ("pack.jsonl" if WRITES[format].one_file else "pack")
    write_pack(pack, out, format)
    return read_pack(out)


@pytest.mark.parametrize("format", WRITES)
@settings(max_examples=160, deadline=None, suppress_health_check=list(HealthCheck))
@given(tasks=st.lists(TASKS, min_size=1, max_size=2, unique_by=lambda task: task.task_id))
def test_any_pack(format, tasks):
    pack = Pack("pack", tasks)
    with tempfile.TemporaryDirectory() as folder:
        again = through(pack, format, Path(folder))
    for task, other in zip(pack.tasks, again.tasks, strict=True):
        assert_same(task, other)
    assert again.version == pack.version


@pytest.mark.parametrize("format", WRITES)
def test_every_format_in_every_other(tmp_path, format):
    examples.clawgym_folder(tmp_path / "clawgym")
    examples.harbor_folder(tmp_path / "harbor")
    examples.pinch_folder(tmp_path / "pinch")
    for name in ("HUB", "PERSONA", "SKILL", "VERL"):
        examples.lines(tmp_path / f"{name}.jsonl", getattr(examples, name))
    for source in sorted(tmp_path.iterdir()):
        pack = read_pack(source)
        again = through(pack, format, tmp_path / "out" / source.name)
        assert again.content_hash == pack.content_hash, source.name


def test_own_fields_are_in_the_formats_own_places(tmp_path):
    """What a format has a field for needs nothing under ``claw_studio``."""
    pack = read_pack(examples.clawgym_folder(tmp_path / "in", input_mount_dir=WORKSPACE))
    write_pack(pack, tmp_path / "out", "clawgym")
    assert "claw_studio" not in (tmp_path / "out/t1/data_entry.json").read_text()
    hub = read_pack(examples.lines(tmp_path / "hub.jsonl", examples.HUB))
    write_pack(hub, tmp_path / "out.jsonl", "hub")
    assert "claw_studio" not in (tmp_path / "out.jsonl").read_text()
    harbor = read_pack(examples.harbor_folder(tmp_path / "harbor"))
    write_pack(harbor, tmp_path / "harbor-out", "harbor")
    assert "claw_studio" not in (tmp_path / "harbor-out/fix-git/task.toml").read_text()


def test_nothing_is_overwritten_and_formats_are_named(tmp_path):
    pack = read_pack(examples.clawgym_folder(tmp_path / "in"))
    for out, format, field in (
        (tmp_path / "in", "clawgym", "out"),
        (tmp_path / "x", "hub", "out"),
        (tmp_path, "", "format"),
    ):
        with pytest.raises(InvalidInput) as caught:
            write_pack(pack, out, format)
        assert caught.value.field == field


def test_split_is_repeatable_and_keeps_pairs_together():
    tasks = [PackTask(f"t{n:03d}", "q") for n in range(40)]
    pairs = [(f"t{n:03d}", f"t{n + 1:03d}") for n in range(0, 20, 2)]
    pack = with_split(Pack("p", tasks), 0.25, seed=1, together=pairs)
    val = {task.task_id for task in pack.tasks if task.split == "val"}
    assert 9 <= len(val) <= 10
    assert all((left in val) == (right in val) for left, right in pairs)
    assert with_split(Pack("q", tasks[::-1]), 0.25, seed=1, together=pairs).version == pack.version
    assert with_split(Pack("p", tasks), 0.25, seed=2, together=pairs).version != pack.version
