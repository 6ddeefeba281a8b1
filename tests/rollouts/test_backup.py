"""Backups hold packs, runs, workspaces and re-scorings, also of a run in progress; retention says what it removed."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from core.backup import backup, restore
from core.backup_folders import log_as_of
from core.config import Settings
from core.doctor import check_workspaces
from core.errors import Conflict, NotFound, PoolError
from core.journal import Journal
from core.packs import read_pack
from core.packs.library import PackLibrary
from core.packs.model import PackFile
from core.pool import Pool
from core.rollouts import Attempt, RunStore, WorkspaceStore
from core.rollouts.log import LOG, line_of
from core.rollouts.planning import Wish
from core.scoring.results import RescoreSettings, RescoreStore, Result
from core.service import Service
from core.serving.process import EngineProcess
from tests.conftest import eventually

from .test_runs import SETTINGS, attempt

pytestmark = pytest.mark.timeout(600)
INPUTS = {"a.txt": PackFile(b"one\n"), "b.bin": PackFile(b"\0\xff", True)}


class Folder:
    """A data folder with a pack, a run of two attempts and a re-scoring; no service runs."""

    def __init__(self, data: Path, pack: Path) -> None:
        self.settings = Settings(data_dir=data)
        self.pool = Pool.open(self.settings.pool_path, memory="300MB", threads=1)
        self.journal = Journal(self.settings.journal_dir)
        kept = PackLibrary(self.settings.packs_dir).keep(read_pack(pack), now=1.0)
        settings = replace(SETTINGS, pack_version=kept.version)
        run = RunStore(self.settings.rollouts_dir).create(settings)
        self.attempts = []
        with run.writer() as writer:
            for number in range(2):
                space = data / f"space-{number}"
                space.mkdir()
                (space / "a.txt").write_bytes(b"%d\n" % number)
                digest = WorkspaceStore(self.settings.workspaces_dir).put(space, INPUTS)
                shutil.rmtree(space)
                made = attempt(
                    number=number, state="done", outcome="solved", score=1.0, workspace=digest, ended_at=12.0
                )
                made = replace(made, log=run.write_log(made, b"output"))
                writer.write(made)
                self.attempts.append(made)
        rescoring = RescoreStore(data / "rescores").create(RescoreSettings("again", 1.0))
        rescoring.append(Result("run-1:a:0:0", 0, 1.0, 0.5, "scored"))

    def backup(self, out: Path) -> dict[str, object]:
        return backup(self.pool, self.settings.journal_dir, out, clock=time.time, data_dir=self.settings.data_dir)

    def close(self) -> None:
        self.journal.close()
        self.pool.close()


@pytest.fixture
def folder(tmp_path: Path, pack: Path) -> Iterator[Folder]:
    opened = Folder(tmp_path / "data", pack)
    yield opened
    opened.close()


def contents(data: Path) -> dict[str, tuple[bytes, int]]:
    """Content and time of the files that this is about."""
    folders = ("packs", "rollouts", "workspaces", "rescores")
    files = [path for name in folders for path in (data / name).rglob("*") if path.is_file()]
    return {
        path.relative_to(data).as_posix(): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in files
        if path.suffix != ".lock" and path.name != "lock"
    }


def test_a_restored_folder_has_every_file_with_its_time(folder: Folder, tmp_path: Path) -> None:
    assert folder.backup(tmp_path / "b")["damaged"] == []
    restore(tmp_path / "b", tmp_path / "again")
    before = contents(folder.settings.data_dir)
    after = contents(tmp_path / "again")
    log = f"rollouts/run-1/{LOG}"
    assert after[log][0] == before[log][0]
    assert {**after, log: None} == {**before, log: None}
    assert {name.split("/")[0] for name in after} == {"packs", "rollouts", "workspaces", "rescores"}
    (run,) = RunStore(tmp_path / "again" / "rollouts").all()
    assert run.attempts() == folder.attempts and run.read_log(run.attempts()[0]) == b"output"
    assert run.settings.pack_version == PackLibrary(tmp_path / "again" / "packs").get(run.settings.pack_version).version
    for number, one in enumerate(folder.attempts):
        WorkspaceStore(tmp_path / "again" / "workspaces").restore(str(one.workspace), tmp_path / f"w{number}")
        assert (tmp_path / f"w{number}" / "a.txt").read_bytes() == b"%d\n" % number
    (rescoring,) = RescoreStore(tmp_path / "again" / "rescores").all()
    assert [one.value for one in rescoring.results()] == [0.5]


def test_a_flipped_bit_in_the_backup_is_refused_and_restores_nothing(folder: Folder, tmp_path: Path) -> None:
    folder.backup(tmp_path / "b")
    (tmp_path / "again").mkdir()
    n_files = 0
    for path in sorted(path for path in (tmp_path / "b").rglob("*") if path.is_file()):
        if path.name == "backup.json" or not path.stat().st_size:
            continue
        whole = path.read_bytes()
        path.write_bytes(flipped(whole))
        with pytest.raises(PoolError, match="changed since the backup") as refused:
            restore(tmp_path / "b", tmp_path / "again")
        assert str(path) in refused.value.message
        assert not list((tmp_path / "again").iterdir())
        path.write_bytes(whole)
        n_files += 1
    assert n_files > 12
    restore(tmp_path / "b", tmp_path / "again")
    # A folder with runs is not overwritten, whatever else it has.
    for path in (tmp_path / "again").iterdir():
        if path.name not in {"rollouts", "packs"}:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(Conflict, match="rollouts, packs"):
        restore(tmp_path / "b", tmp_path / "again")


def test_a_flipped_bit_in_the_data_folder_is_named_by_the_backup(folder: Folder, tmp_path: Path) -> None:
    data = folder.settings.data_dir
    checked = [f"rollouts/run-1/{LOG}"]
    checked += [
        path.relative_to(data).as_posix()
        for pattern in ("packs/*.jsonl", "workspaces/blobs/*/*", "workspaces/manifests/*/*")
        for path in sorted(data.glob(pattern))
    ]
    assert len(checked) == 1 + 1 + 4 + 2
    for number, name in enumerate(checked):
        whole = (data / name).read_bytes()
        (data / name).write_bytes(flipped(whole))
        assert folder.backup(tmp_path / f"b{number}")["damaged"] == [name]
        (data / name).write_bytes(whole)


def flipped(content: bytes) -> bytes:
    """The content with one bit changed in its middle."""
    place = len(content) // 2
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def test_the_log_fits_the_journal_of_the_same_backup() -> None:
    ended = attempt(number=0, state="reporting", outcome="failed", score=0.0, ended_at=20.0)
    late = replace(ended, number=1, ended_at=31.0)
    before = b"".join(map(line_of, [attempt(), attempt(number=1), attempt(number=2)]))
    early_done = line_of(replace(ended, number=2, state="done"))
    after = [ended, replace(ended, state="done"), late, replace(late, state="done"), attempt(number=3)]
    content = before + early_done + b"".join(map(line_of, after))
    kept = log_as_of(content, len(before + early_done), 30.0)
    assert kept == before + early_done + line_of(ended) + line_of(after[-1])
    torn = content + line_of(attempt(number=4))[:20]
    assert log_as_of(torn, len(torn), 30.0) == torn


def test_a_backup_in_the_middle_of_a_run_is_resumed(
    service: Service, engine: EngineProcess, tmp_path: Path, pack: Path
) -> None:
    """Restored, nothing is lost or doubled: every slot has one result, and every result its complete trajectory."""
    run = service.rollouts.start(str(pack), Wish(attempts=1, workers=2))
    eventually(lambda: sum(one.state == "done" for one in run.attempts()) >= 2, timeout_s=300)
    service.backup(tmp_path / "b")
    assert service.rollouts.status(run)["progress"]["in_progress"], "the backup was made too late"
    service.rollouts.cancel(run.settings.run)
    restore(tmp_path / "b", tmp_path / "again")
    other = Service.open(Settings(data_dir=tmp_path / "again", port=0, engine=str(engine.base_url)))
    try:
        again = other.rollouts.runs.get(run.settings.run)
        before = {(*one.slot, one.retry): one for one in again.attempts()}
        assert any(one.state == "done" for one in before.values()) and len(again.newest()) < 8
        other.rollouts.resume(run.settings.run)
        eventually(lambda: other.rollouts.status(again)["progress"]["state"] != "running", timeout_s=300)
        status = other.rollouts.status(again)
        assert (status["error"], status["progress"]["state"]) == (None, "finished")
        assert other.ingest.catch_up(60)
        attempts = again.attempts()
        assert Counter(one.slot for one in attempts if one.outcome != "lost") == dict.fromkeys(again.newest(), 1)
        assert len(again.newest()) == 8
        made = {uid: other.pool.trajectories.get(uid) for uid in other.pool.trajectories.uids()}
        scored = {uid: one["reward"] for uid, one in made.items() if one["reward"] is not None}
        assert scored == {one.trajectory_uid: one.score for one in again.newest().values()}
        assert all(made[uid]["complete"] for uid in scored)
        for one in again.newest().values():
            other.rollouts.workspaces.get(str(one.workspace))
    finally:
        other.close()


def test_retention_says_what_it_removed(service: Service, engine: EngineProcess, tmp_path: Path, pack: Path) -> None:
    def finished(where: Service, task: str) -> tuple[str, Attempt]:
        run = where.rollouts.start(str(pack), Wish(tasks=[task], workers=1))
        eventually(lambda: where.rollouts.status(run)["progress"]["state"] == "finished", timeout_s=300)
        return run.settings.run, run.attempts()[0]

    tasks = sorted(path.name for path in pack.iterdir())[:2]
    first, scored = finished(service, tasks[0])
    assert service.rollouts.status(service.rollouts.runs.get(first))["retention"] is None
    assert [one.state for one in check_workspaces(service.settings)] == ["ok"]
    service.close()
    strict = Settings(data_dir=tmp_path / "data", port=0, engine=str(engine.base_url), workspace_gib=1e-9)
    again = Service.open(strict)
    try:
        second, _ = finished(again, tasks[1])
        retention = again.rollouts.status(again.rollouts.runs.get(second))["retention"]
        assert (retention["n_workspaces"], retention["n_attempts"]) == (1, 1) and retention["n_bytes"] > 0
        assert again.rollouts.runs.get(first).attempts() == [scored] and scored.score is not None
        with pytest.raises(NotFound, match=r"retention removed it on \d{4}-\d\d-\d\d: all workspaces together had"):
            again.rollouts.workspaces.get(str(scored.workspace))
        (finding,) = check_workspaces(strict)
        assert (finding.state, finding.message) == (
            "warn",
            "retention removed the final workspaces of 1 of 2 scored attempts",
        )
        shutil.rmtree(strict.workspaces_dir / "manifests")
        assert [one.state for one in check_workspaces(strict)] == ["bad", "warn"]
    finally:
        again.close()
