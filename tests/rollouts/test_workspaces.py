"""Final workspaces: restored byte by byte, compared with the inputs, and removed by the retention rule alone."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InvalidInput, NotFound
from core.packs.model import PackFile
from core.rollouts import WorkspaceStore
from core.rollouts.diffs import diffs
from core.rollouts.workspaces import WorkspaceLimits
from tests.effort import settings

INPUTS = {"a.txt": PackFile(b"one\ntwo\n"), "deep/b.bin": PackFile(b"\0\xff"), "run.sh": PackFile(b"#!\n", True)}
names = st.sampled_from(["a", "b", "c.txt", "d/e", "d/f g", "ü/é", "d/h/i"])
trees = st.dictionaries(names, st.tuples(st.binary(max_size=40), st.booleans()), max_size=6)


def write(folder: Path, files: dict[str, tuple[bytes, bool]]) -> None:
    folder.mkdir(parents=True)
    for name, (content, executable) in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o755 if executable else 0o644)


def tree_of(folder: Path) -> dict[str, tuple[bytes, bool]]:
    """Content and executable bit of every file, as the file system has them."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), os.access(path, os.X_OK))
        for path in folder.rglob("*")
        if path.is_file()
    }


def stored(folder: Path, files: dict[str, tuple[bytes, bool]]) -> str:
    write(folder / "workspace", files)
    return WorkspaceStore(folder / "store").put(folder / "workspace", INPUTS)


@given(before=trees, after=trees)
@settings(max_examples=40)
def test_a_workspace_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, before, after) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path_factory.mktemp("w")
    store = WorkspaceStore(folder / "store")
    write(folder / "workspace", after)
    digest = store.put(folder / "workspace", {name: PackFile(*one) for name, one in before.items()})
    store.restore(digest, folder / "again")
    assert tree_of(folder / "again") == tree_of(folder / "workspace") == after
    expected = {
        name: "added" if name not in before else "removed" if name not in after else "changed"
        for name in {*before, *after}
        if before.get(name) != after.get(name)
    }
    assert {one.path: one.kind for one in store.changes(digest)} == expected
    assert store.put(folder / "again", {name: PackFile(*one) for name, one in before.items()}) == digest


def test_diffs_are_those_of_diff(tmp_path: Path) -> None:
    files = {name: (one.content, one.executable) for name, one in INPUTS.items()}
    files |= {"a.txt": (b"one\n2\nthree\n", False), "new.txt": (b"x\n", False), "deep/b.bin": (b"\0\xfe", False)}
    del files["run.sh"]
    digest = stored(tmp_path, files)
    made = {one.path: one for one in diffs(WorkspaceStore(tmp_path / "store"), digest)}
    assert {path: one.kind for path, one in made.items()} == {
        "a.txt": "changed",
        "deep/b.bin": "changed",
        "new.txt": "added",
        "run.sh": "removed",
    }
    assert (made["deep/b.bin"].diff, made["deep/b.bin"].note) == (None, "no text")
    (tmp_path / "before").write_bytes(INPUTS["a.txt"].content)
    (tmp_path / "after").write_bytes(files["a.txt"][0])
    peer = subprocess.run(["diff", "-u", "before", "after"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert made["a.txt"].diff == "\n".join(peer.stdout.splitlines()[2:])


def test_no_link_is_followed_and_limits_are_named(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    space = tmp_path / "workspace"
    write(space, {"big": (b"x" * 100, False), "small": (b"y", False)})
    (space / "link").symlink_to(secret)
    os.link(secret, space / "hard")
    (space / "folder").symlink_to(tmp_path)
    Path(os.fsdecode(os.fsencode(space) + b"/\xff")).write_bytes(b"z")
    (space / "back\\slash").write_bytes(b"z")
    store = WorkspaceStore(tmp_path / "store")
    digest = store.put(space, {}, WorkspaceLimits(file_bytes=50))
    kept = store.restore(digest, tmp_path / "again")
    assert set(tree_of(tmp_path / "again")) == {"small"}
    assert set(kept.left_out) == {"big", "link", "hard", "folder", "back\\slash", "\\udcff"}
    assert b"secret" not in b"".join(path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file())
    assert [one.path for one in store.changes(digest)] == ["small"]


def test_equal_files_are_stored_once(tmp_path: Path) -> None:
    store = WorkspaceStore(tmp_path / "store")
    for number in range(5):
        write(tmp_path / str(number), {"same": (b"s" * 1000, False), "own": (b"%d" % number, False)})
        store.put(tmp_path / str(number), {"same": PackFile(b"s" * 1000)})
    assert len(list((tmp_path / "store" / "blobs").glob("*/*"))) == 6


def test_retention_removes_the_oldest_and_nothing_that_is_in_use(tmp_path: Path) -> None:
    store = WorkspaceStore(tmp_path / "store")
    digests = []
    for number in range(6):
        write(tmp_path / str(number), {"same": (b"s" * 1000, False), "own": (b"%d" % number * 100, False)})
        digests.append(store.put(tmp_path / str(number), {}))
        manifest = tmp_path / "store" / "manifests" / digests[-1][:2] / f"{digests[-1]}.json"
        os.utime(manifest, (1000.0 + number, 1000.0 + number))
    pruned = store.prune(now=1010.0, older_than_s=8.5)
    assert [store.has(one) for one in digests] == [False, False, True, True, True, True]
    assert (pruned.n_workspaces, pruned.n_blobs, pruned.n_bytes_left) == (2, 2, 1400)
    store.prune(now=1010.0, max_bytes=1250)
    assert [store.has(one) for one in digests] == [False] * 4 + [True] * 2
    for number in (4, 5):
        store.restore(digests[number], tmp_path / "again" / str(number))
        assert tree_of(tmp_path / "again" / str(number)) == tree_of(tmp_path / str(number))
    with pytest.raises(NotFound):
        store.restore(digests[0], tmp_path / "again" / "0")
    store.prune(now=1010.0, max_bytes=0)
    assert not list((tmp_path / "store" / "blobs").glob("*/*"))


def test_damage_is_an_error_and_no_other_content(tmp_path: Path) -> None:
    digest = stored(tmp_path, {"a.txt": (b"one\n", False)})
    store = WorkspaceStore(tmp_path / "store")
    (blob,) = [path for path in (tmp_path / "store" / "blobs").glob("*/*") if path.read_bytes() == b"one\n"]
    blob.write_bytes(b"two\n")
    with pytest.raises(InvalidInput):
        store.restore(digest, tmp_path / "again")
    manifest = next((tmp_path / "store" / "manifests").glob("*/*"))
    manifest.write_bytes(manifest.read_bytes().replace(b"a.txt", b"b.txt"))
    with pytest.raises(InvalidInput):
        store.get(digest)
    for wrong in ("", "../x", "A" * 64):
        with pytest.raises(InvalidInput):
            store.get(wrong)
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(NotFound):
        store.get(digest)
