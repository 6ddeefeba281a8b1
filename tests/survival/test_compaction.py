"""Compaction of the opinions log: nothing is lost at any point of it, and each plan is in the log once.

The references: the pool's tables row by row before and after, and the data folder as it is on disk at each moment,
which is what a kill there leaves.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from core.batch.leases import Fetch
from core.batch.serialize import serialize_plan
from core.doctor import diagnose
from core.errors import OpinionsError, PoolDamaged
from core.journal import writer as journal_writer
from core.pool.upkeep import compaction
from core.pool.upkeep.loggedtables import RecordingCursor
from core.pool.upkeep.opinionlog import OpinionLog, generations
from core.pool.upkeep.retention import Retention
from core.rebuild import rebuild
from core.service import Service
from core.trash import restore_run
from tests.conftest import eventually
from tests.left_out import only_in_ci

from .folder import DAY, GRPO, Folder, different, say_everything, tables


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    monkeypatch.setattr(compaction, "LEAST_BYTES", 0)
    opened = Folder(tmp_path / "data")
    say_everything(opened)
    yield opened
    opened.close()


def closed_tables(folder: Folder) -> dict[str, list[str]]:
    folder.close()
    return tables(folder.settings.pool_path)


def made_anew(folder: Folder) -> dict[str, list[str]]:
    """Tables of the pool that journal and log make; the folder is closed."""
    folder.settings.pool_path.unlink()
    Path(f"{folder.settings.pool_path}.wal").unlink(missing_ok=True)
    rebuild(folder.settings, clock=lambda: folder.now)
    return tables(folder.settings.pool_path)


def test_a_log_begun_anew_is_smaller_and_holds_the_same(folder: Folder) -> None:
    for k in range(30):
        folder.label("tag", f"x{k % 3}", trajectory_uid="a1")
    log = folder.pool._db.log
    assert log is not None
    before, size = log.generation, log.n_bytes
    assert folder.pool.recovery.compact_log() == size - folder.pool._db.log.n_bytes > size / 2
    assert generations(folder.settings.opinions_dir) == [folder.pool._db.log.generation] != [before]
    assert folder.pool.recovery.compact_log() is None, "once is enough"
    folder.label("tag", "after", trajectory_uid="a1")
    leased = folder.pool.batches.newest()[0]["batch_uid"]
    was = closed_tables(folder)
    folder.open()
    assert folder.leases.plan_of(leased).n_groups > 0
    folder.close()
    assert different(made_anew(folder), was) == {}
    folder.open()


def test_a_small_log_stays(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "data")
    say_everything(folder)
    assert folder.pool.recovery.compact_log() is None
    folder.close()


@only_in_ci("starts a process for each point")
def test_a_kill_at_any_point_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "LEAST_BYTES", 0)
    folder = Folder(tmp_path / "data")
    data: Path = folder.settings.data_dir
    moments: list[Path] = []
    folder.send("a1")
    folder.catch_up()
    for k in range(5):
        folder.label("tag", f"x{k}", trajectory_uid="a1")

    seen: list[list[tuple[str, bytes]]] = [[]]

    def look(name: str) -> None:
        now = sorted((path.name, path.read_bytes()) for path in data.rglob("*") if path.is_file())
        if now != seen[-1]:
            seen.append(now)
            moments.append(tmp_path / f"moment-{len(moments):02d}-{name}")
            shutil.copytree(data, moments[-1])

    def around(owner: Any, name: str, wanted: Callable[..., bool] = lambda *_: True) -> None:
        act = getattr(owner, name)

        def acted(*args: Any, **kwargs: Any) -> Any:
            if not wanted(*args):
                return act(*args, **kwargs)
            look(f"before-{name}")
            result = act(*args, **kwargs)
            look(f"after-{name}")
            return result

        monkeypatch.setattr(owner, name, acted)

    bring = compaction._copy_changes

    def meanwhile(*args: Any) -> bool:
        folder.pool.labels.undo(folder.label("tag", "meanwhile", trajectory_uid="a1"))
        return bring(*args)

    monkeypatch.setattr(compaction, "_copy_changes", meanwhile)
    around(journal_writer, "_sync")
    around(RecordingCursor, "execute", lambda _, sql, *__: sql == "COMMIT")
    around(Path, "unlink", lambda path, **_: path.suffix in (".seg", ".lock"))
    assert folder.pool.recovery.compact_log() is not None
    monkeypatch.undo()
    was = closed_tables(folder)
    assert len(moments) > 10
    answered = 0
    for copy in moments:
        again = Folder.__new__(Folder)
        again.settings = folder.settings.model_copy(update={"data_dir": copy})
        again.now, again.number = folder.now, 100
        again.open()
        assert len(generations(again.settings.opinions_dir)) == 1, copy.name
        again.close()
        now = tables(again.settings.pool_path)
        for table in ("annotations", "actions", "action_events"):
            assert set(now[table]) <= set(was[table]), copy.name
        n = sum(len(now[table]) for table in ("annotations", "actions", "action_events"))
        assert n >= answered, "what was there at one moment is there at the next"
        answered = n
        assert different(made_anew(again), now) == {}, copy.name
        shutil.rmtree(copy)
    assert different(now, was) == {}


def test_a_pool_older_than_the_log_is_refused_and_made_anew(folder: Folder, tmp_path: Path) -> None:
    folder.pool._db.checkpoint()
    path = folder.settings.pool_path
    shutil.copyfile(path, tmp_path / "older")
    assert folder.pool.recovery.compact_log() is not None
    folder.label("tag", "later", trajectory_uid="a1")
    was = closed_tables(folder)
    shutil.copyfile(tmp_path / "older", path)
    Path(f"{path}.wal").unlink(missing_ok=True)
    with pytest.raises(PoolDamaged, match="older than its opinions log") as refused:
        folder.open()
    assert "doctor --rebuild" in (refused.value.hint or "")
    assert different(made_anew(folder), was) == {}
    folder.open()


def test_what_is_restored_from_the_trash_of_the_log_before_is_in_the_new_one(folder: Folder) -> None:
    folder.send("d1")
    folder.feedback("f9", "up", trajectory_uid="d1")
    folder.catch_up()
    folder.label("reward", 0.5, trajectory_uid="d1")
    folder.label("tag", "old", step_uid="d1.1")
    folder.now += 30 * DAY
    run = folder.pool.retention.apply(Retention(older_than_days=5), author="ann")["run_uid"]
    assert folder.pool.recovery.compact_log() is not None
    data = folder.settings
    restore_run(folder.pool, data.journal_dir, data.trash_dir, run, author="ann")
    was = closed_tables(folder)
    assert any("'old'" in row for row in was["annotations"])
    assert different(made_anew(folder), was) == {}
    folder.open()


def test_a_deletion_meanwhile_leaves_the_log_as_it_is(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.send("d1")
    folder.catch_up()
    folder.now += 30 * DAY
    bring = compaction._copy_changes

    def meanwhile(*args: Any) -> bool:
        folder.pool.retention.apply(Retention(older_than_days=5), author="ann")
        return bring(*args)

    before = generations(folder.settings.opinions_dir)
    monkeypatch.setattr(compaction, "_copy_changes", meanwhile)
    assert folder.pool.recovery.compact_log() is None
    assert generations(folder.settings.opinions_dir) == before
    monkeypatch.setattr(compaction, "_copy_changes", bring)
    assert folder.pool.recovery.compact_log() is not None
    was = closed_tables(folder)
    assert different(made_anew(folder), was) == {}
    folder.open()


def test_a_log_that_is_not_read_back_never_takes_the_place(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    before = generations(folder.settings.opinions_dir)
    append = OpinionLog.append

    def damaging(self: OpinionLog, kind: str, parts: Any, **more: Any) -> int:
        n = append(self, kind, parts, **more)
        if kind == "snapshot" and n == 3:
            path = next(self.directory.glob(f"{self.generation}-*.seg"))
            body = bytearray(path.read_bytes())
            body[-9] ^= 1
            path.write_bytes(body)
        return n

    monkeypatch.setattr(OpinionLog, "append", damaging)
    with pytest.raises(OpinionsError, match="not read back"):
        folder.pool.recovery.compact_log()
    assert generations(folder.settings.opinions_dir) == before
    folder.label("tag", "and on", trajectory_uid="a1")
    was = closed_tables(folder)
    assert different(made_anew(folder), was) == {}
    folder.open()


def test_a_running_service_begins_its_log_anew(folder: Folder) -> None:
    folder.close()
    before = generations(folder.settings.opinions_dir)
    service = Service.open(folder.settings.model_copy(update={"port": 0}), clock=lambda: folder.now)
    try:
        eventually(lambda: generations(folder.settings.opinions_dir) not in (before, []))
    finally:
        service.close()
        folder.open()


def test_a_plan_is_stored_once_and_a_damaged_one_is_told(folder: Folder) -> None:
    folder.pool.recovery.compact_log()
    leased = folder.leases.fetch(Fetch("other", recipe={**GRPO, "max_uses": 9}, shared=True))
    assert leased.batch is not None
    uid, parts = leased.batch["batch_uid"], serialize_plan(leased.plan)
    body_of = parts["head"]
    assert folder.pool.batches.plan(uid) == parts
    log = folder.pool._db.log
    assert log is not None
    opinions = folder.settings.opinions_dir
    plans = max(opinions.glob("plans-*.seg"))
    held = {path.name: path.read_bytes() for path in opinions.glob("*.seg")}
    assert [name for name, body in held.items() if body_of in body] == [plans.name]
    folder.pool._db.checkpoint()
    assert body_of not in folder.settings.pool_path.read_bytes()
    was = closed_tables(folder)
    assert different(made_anew(folder), was) == {}
    folder.open()
    assert folder.pool.batches.plan(uid) == parts
    again = folder.leases.plan_of(uid)
    assert again.hash == leased.plan.hash
    body = bytearray(held[plans.name])
    body[body.index(body_of) + 5] ^= 1
    plans.write_bytes(body)
    with pytest.raises(OpinionsError, match=f"plan of batch '{uid}'"):
        folder.pool.batches.plan(uid)
    folder.close()
    finding = {one.check: one for one in diagnose(folder.settings)}["opinions log"]
    assert (finding.state, "plans" in finding.message) == ("bad", True)
    folder.open()
