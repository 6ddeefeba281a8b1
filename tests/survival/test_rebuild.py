"""A pool's file that is lost or damaged comes back whole: each table against a brute force of what it was."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from core.batch.datasets import freeze_version
from core.batch.recipe import parse_recipe
from core.errors import NotFound, PoolDamaged
from core.pool import Pool
from core.pool.upkeep.loggedtables import FROM_JOURNAL, LOGGED, OF_THE_FILE
from core.rebuild import rebuild
from core.service import Service
from core.types import Annotation, Step, View
from tests.batch.keeping_all import SFT_ALL

from .folder import T0, Folder, different, say_everything, tables

FIRST_RELEASE = "15be50c8b149798fd0a3e8acdf68d4c2f31885ec0d939e200539b25ac85917e8"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    opened = Folder(tmp_path / "data")
    yield opened
    opened.close()


def test_every_table_is_of_the_journal_of_the_log_or_of_the_file(folder: Folder) -> None:
    with folder.pool._db.read() as cursor:
        there = {
            name for (name,) in cursor.execute("SELECT table_name FROM duckdb_tables() WHERE NOT temporary").fetchall()
        }
    assert there == set(LOGGED) | FROM_JOURNAL | OF_THE_FILE
    assert not set(LOGGED) & FROM_JOURNAL


def test_a_deleted_file_comes_back_table_for_table(folder: Folder) -> None:
    say_everything(folder)
    folder.close()
    path = folder.settings.pool_path
    was = tables(path)
    assert {name for name in LOGGED if not was[name]} == {"retention_runs", "deleted", "restored_runs"}
    path.unlink()
    stages = []
    report = rebuild(folder.settings, clock=lambda: folder.now, progress=lambda stage, *_: stages.append(stage))
    assert different(tables(path), was) == {}
    assert report["kept_aside"] is None and report["before"] is None
    assert report["after"]["annotations"] == len(was["annotations"])
    assert report["replay"]["n_without_target"] == report["replay"]["n_missing"] == 0
    assert {"journal", "opinions"} == set(stages)
    folder.open()
    assert folder.pool.versions.verify("v1") and folder.pool.versions.verify("v2")
    folder.label("tag", "after", trajectory_uid="a1")
    folder.feedback("f1", "up", trajectory_uid="a1")
    folder.catch_up()
    folder.close()
    after = tables(path)
    path.unlink()
    rebuild(folder.settings, clock=lambda: folder.now)
    assert different(tables(path), after) == {}
    folder.open()


def test_a_lost_write_ahead_log_comes_back_at_the_next_start(folder: Folder, tmp_path: Path) -> None:
    say_everything(folder)
    path = folder.settings.pool_path
    folder.pool._db.checkpoint()
    older = tmp_path / "older"
    shutil.copyfile(path, older)
    folder.label("reward", 0.5, trajectory_uid="c1")
    folder.send("d1")
    folder.feedback("f3", "up", step_uid="d1.1")
    folder.catch_up()
    folder.label("quality", "good", step_uid="d1.1")
    folder.close()
    was = tables(path)
    shutil.copyfile(older, path)
    Path(f"{path}.wal").unlink(missing_ok=True)
    folder.open()
    assert not folder.pool.recovery.log_is_ahead
    folder.close()
    assert different(tables(path), was) == {}
    folder.open()
    folder.close()
    assert different(tables(path), was) == {}
    folder.open()


def test_a_pool_from_before_the_log_brings_what_it_holds(folder: Folder) -> None:
    say_everything(folder)
    folder.close()
    path = folder.settings.pool_path
    shutil.rmtree(folder.settings.opinions_dir)
    folder.open()
    folder.close()
    was = tables(path)
    path.unlink()
    rebuild(folder.settings, clock=lambda: folder.now)
    assert different(tables(path), was) == {}
    folder.open()


def test_what_was_written_without_the_log_is_told_to_the_next(folder: Folder) -> None:
    say_everything(folder)
    folder.close()
    bare = Pool.open(folder.settings.pool_path)
    bare.views.save("bare", bare.views.get("mine"))
    bare.close()
    folder.open()
    folder.close()
    was = tables(folder.settings.pool_path)
    folder.settings.pool_path.unlink()
    rebuild(folder.settings, clock=lambda: folder.now)
    assert different(tables(folder.settings.pool_path), was) == {}
    folder.open()


def test_a_change_that_was_durable_and_not_committed_is_there_at_the_next_start(folder: Folder) -> None:
    """What a kill between the log's sync and the commit leaves."""
    say_everything(folder)
    database = folder.pool._db
    before = database.n_writes
    with pytest.raises(KeyboardInterrupt), database.write() as cursor:
        cursor.execute("INSERT INTO saved_views VALUES ('late', '{}', '', TIMESTAMP '2026-01-01')")
        database._write_to_log(cursor)
        raise KeyboardInterrupt
    assert database.n_writes == before
    assert not any(one["name"] == "late" for one in folder.pool.views.all())
    folder.close()
    folder.open()
    assert any(one["name"] == "late" for one in folder.pool.views.all())


def test_a_refused_commit_is_void(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    say_everything(folder)
    log = folder.pool._db.log
    assert log is not None
    log.void(log.append("change", []))
    folder.label("tag", "then", trajectory_uid="a1")
    folder.close()
    was = tables(folder.settings.pool_path)
    folder.settings.pool_path.unlink()
    assert rebuild(folder.settings, clock=lambda: folder.now)["replay"]["n_missing"] == 0
    assert different(tables(folder.settings.pool_path), was) == {}
    folder.open()


def test_doubled_and_foreign_segments_of_the_log_change_nothing(folder: Folder) -> None:
    say_everything(folder)
    folder.close()
    was = tables(folder.settings.pool_path)
    segment = next(folder.settings.opinions_dir.glob("o*.seg"))
    name, _, number = segment.stem.rpartition("-")
    shutil.copyfile(segment, segment.with_name(f"{name}-{int(number) + 5:08d}.seg"))
    (segment.parent / "o000001_00000000-00000001.seg").write_bytes(b"no segment at all")
    folder.settings.pool_path.unlink()
    rebuild(folder.settings, clock=lambda: folder.now)
    assert different(tables(folder.settings.pool_path), was) == {}
    folder.open()


def test_an_empty_folder_has_nothing_to_rebuild(tmp_path: Path) -> None:
    from core.config import Settings

    with pytest.raises(NotFound):
        rebuild(Settings(data_dir=tmp_path / "nothing"))


def test_a_service_refuses_a_lost_cut_or_foreign_file_and_names_the_mend(folder: Folder) -> None:
    say_everything(folder)
    folder.pool._db.checkpoint()
    folder.close()
    path = folder.settings.pool_path
    was, whole = tables(path), path.read_bytes()
    settings = folder.settings.model_copy(update={"port": 0})
    hurts = {"deleted": None, "empty": b"", "cut": whole[: len(whole) // 2], "page": whole[:-4096], "junk": b"x" * 9999,
             "header": b"\0" * 100 + whole[100:]}  # fmt: skip
    for name, hurt in hurts.items():
        path.unlink(missing_ok=True)
        if hurt is not None:
            path.write_bytes(hurt)
        with pytest.raises(PoolDamaged) as refused:
            Service.open(settings)
        assert "doctor --rebuild" in (refused.value.hint or ""), name
    report = rebuild(folder.settings, clock=lambda: folder.now)
    assert report["before"] is None
    assert Path(report["kept_aside"]).read_bytes() == hurts["header"]
    assert different(tables(path), was) == {}
    service = Service.open(settings)
    try:
        assert service.pool.versions.verify("v1")
    finally:
        service.close()
    folder.open()


def test_a_newer_schema_is_refused_and_an_older_one_is_brought_up(folder: Folder) -> None:
    say_everything(folder)
    folder.close()
    path = folder.settings.pool_path
    with duckdb.connect(str(path)) as db:
        db.execute("INSERT INTO schema_migrations VALUES (9999, 'of tomorrow', now()::TIMESTAMP)")
    with pytest.raises(Exception, match="schema 9999, newer than this version") as refused:
        Service.open(folder.settings.model_copy(update={"port": 0}))
    assert "Update claw-studio" in str(getattr(refused.value, "hint", ""))
    with duckdb.connect(str(path)) as db:
        db.execute("DELETE FROM schema_migrations WHERE number = 9999")
    folder.open()


def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "core.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=ROOT,
    )


def test_the_doctor_names_the_damage_mends_it_and_compares(folder: Folder) -> None:
    say_everything(folder)
    folder.pool._db.checkpoint()
    folder.close()
    path, data = folder.settings.pool_path, str(folder.settings.data_dir)
    was = tables(path)
    whole = bytearray(path.read_bytes())
    for offset in range(12288 + 100, len(whole), 262144):
        whole[offset] ^= 0x40
    path.write_bytes(whole)
    checks = {one["check"]: one for one in json.loads(cli("doctor", "--data", data, "--json").stdout)}
    assert checks["pool"]["state"] == "bad" and "--rebuild" in checks["pool"]["mend"]
    served = cli("serve", "--data", data, "--port", "0")
    assert served.returncode == 2
    assert "doctor --rebuild" in served.stderr and "Traceback" not in served.stderr
    mended = cli("doctor", "--data", data, "--rebuild")
    assert "annotations" in mended.stdout and "kept as" in mended.stdout and "Traceback" not in mended.stderr
    assert different(tables(path), was) == {}
    assert len(list(path.parent.glob("pool.duckdb.before-*"))) == 1
    checks = {one["check"]: one for one in json.loads(cli("doctor", "--data", data, "--json").stdout)}
    assert checks["pool"]["state"] == checks["opinions log"]["state"] == "ok"
    folder.open()


def test_a_damaged_log_is_named_and_begun_anew_from_the_pool(folder: Folder) -> None:
    say_everything(folder)
    folder.close()
    was = tables(folder.settings.pool_path)
    segment = next(folder.settings.opinions_dir.glob("o*.seg"))
    hurt = bytearray(segment.read_bytes())
    hurt[len(hurt) // 2] ^= 1
    segment.write_bytes(hurt)
    data = str(folder.settings.data_dir)
    named = {one["check"]: one for one in json.loads(cli("doctor", "--data", data, "--json").stdout)}["opinions log"]
    assert named["state"] in ("bad", "warn") and "--renew-log" in named["mend"]
    assert "Traceback" not in cli("doctor", "--data", data, "--renew-log").stderr
    folder.settings.pool_path.unlink()
    rebuild(folder.settings, clock=lambda: folder.now)
    assert different(tables(folder.settings.pool_path), was) == {}
    folder.open()


def test_a_version_that_the_first_release_froze_still_verifies() -> None:
    """Its hash was made by the first release's own code on these very steps, before labels of correctness were."""
    pool = Pool.open(":memory:", clock=lambda: T0)
    steps = [
        Step(
            step_uid=f"s{i}", trajectory_uid="t", prompt_uid="p", step_index=i, created_at=T0 + i, channel="train",
            source="whitebox", prompt_ids=[1, 2], response_ids=[3, i], response_logprobs=[-0.5, -0.25],
            messages=[{"role": "user", "content": "é"}], response_message={"role": "assistant", "content": "a"},
            reward=0.5 * i,
        )
        for i in range(2)
    ]  # fmt: skip
    pool.steps.append(steps, completions=[{"trajectory_uid": "t", "reward": 1.0, "at": T0}])
    pool.labels.annotate([Annotation("tag", "x", "a", "human", T0, step_uid="s1")])
    freeze_version(pool, "v", View(), parse_recipe(SFT_ALL), author="a")
    with pool._db.write() as cursor:
        cursor.execute("UPDATE dataset_versions SET content_hash = ?", [FIRST_RELEASE])
    assert pool.versions.verify("v")
    with pool._db.write() as cursor:
        cursor.execute("UPDATE dataset_steps SET reward = 0.75 WHERE place = 0")
    assert not pool.versions.verify("v")
    with pool._db.write() as cursor:
        cursor.execute("UPDATE dataset_steps SET reward = 0, correct = TRUE WHERE place = 0")
    assert not pool.versions.verify("v")
    pool.close()
