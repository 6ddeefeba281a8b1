"""What is deleted is previewed, meant, recoverable for a day, and stays deleted when the pool is made anew."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from core.errors import Conflict, NotFound
from core.pool import Pool
from core.pool.trajectories import Trajectories
from core.pool.upkeep.confirmation import LASTS_S
from core.pool.upkeep.retention import Retention
from core.rebuild import rebuild
from core.service import Service
from core.trash import TrashSweep, empty_trash, list_trash, prune_journal, restore_run
from tests.ingest.recorded import Bench, call

from .folder import DAY, Folder, different, reopened, say_everything, tables

OLD = Retention(older_than_days=5)
_OWN = ("retention_runs", "deleted", "restored_runs")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    """Everything is said; d1 and d2 are in no version, labelled, valued, and old."""
    opened = Folder(tmp_path / "data")
    say_everything(opened)
    opened.send("d1")
    opened.send("d2", messages=[{"role": "user", "content": "task of a"}])
    opened.feedback("f9", "up", trajectory_uid="d1")
    opened.catch_up()
    opened.label("reward", 0.5, trajectory_uid="d1")
    opened.label("tag", "old", step_uid="d2.1")
    yield opened
    opened.close()


def without_runs(content: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: rows for name, rows in content.items() if name not in _OWN}


def test_deleted_steps_stay_deleted_when_the_pool_is_made_anew(folder: Folder) -> None:
    folder.now += 30 * DAY
    assert folder.pool.retention.apply(OLD, author="ann")["n_trajectories"] == 2
    folder.send("d1", n=1, step_uid="d1.new")  # the uid comes again, another step
    folder.catch_up()
    folder.label("tag", "new", trajectory_uid="d1")
    was = reopened(folder)
    assert folder.pool.steps.existing(["d1.0", "d1.1", "d2.0", "d2.1", "d1.new"]) == ["d1.new"]
    folder.close()
    folder.settings.pool_path.unlink()
    rebuild(folder.settings, clock=lambda: folder.now)
    assert different(tables(folder.settings.pool_path), was) == {}
    folder.open()
    assert [step["step_uid"] for step in folder.pool.trajectories.get("d1")["steps"]] == ["d1.new"]


def test_a_deletion_leaves_what_is_known_of_other_trajectories(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands may be open: reading each back from the pool kept new steps away for a minute."""
    folder.send("f1")
    folder.catch_up()
    folder.now += 30 * DAY
    names = [f"e{number}" for number in range(20)]
    for name in names:
        folder.send(name)
    folder.send("d3", created_at=folder.now)
    folder.catch_up()
    read: list[str] = []
    get_many = Trajectories.get_many
    monkeypatch.setattr(Trajectories, "get_many", lambda part, uids: read.extend(uids) or get_many(part, uids))
    for rule, n_gone in ((Retention(older_than_days=300), 0), (OLD, 3)):
        went = folder.pool.retention.apply(rule, author="ann")
        assert went["n_trajectories"] == n_gone
        for name in names:
            folder.send(name, n=4 if n_gone else 3)
        folder.send("d1")
        folder.catch_up()
    restore_run(folder.pool, folder.settings.journal_dir, folder.settings.trash_dir, went["run_uid"], author="ann")
    for name in names:
        folder.send(name, n=5)
    folder.send("f1", n=3)
    folder.catch_up()
    assert read == ["f1"]
    monkeypatch.undo()
    for name in names:
        steps = folder.pool.trajectories.get(name)["steps"]
        parents = {step["step_uid"]: step["parent_step_uid"] for step in steps}
        assert parents == {f"{name}.0": None, **{f"{name}.{n}": f"{name}.{n - 1}" for n in (1, 2, 3, 4)}}
    assert [step["parent_step_uid"] for step in folder.pool.trajectories.get("f1")["steps"]] == [None, "f1.0", "f1.1"]
    # Its steps are gone, so what comes under its name begins anew.
    assert folder.pool.trajectories.get("d1")["steps"][0]["parent_step_uid"] is None


def test_a_restored_trajectory_of_unknown_identity_is_gone_on_from(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    now = [1e9]
    bench.pool.close()
    bench.pool = Pool.open(tmp_path / "pool.duckdb", clock=lambda: now[0], trash=tmp_path / "trash")
    bench.ingest = bench._ingest()
    talks = {name: [{"role": "user", "content": f"task {name}"}] for name in "abc"}
    for name, talk in talks.items():
        bench.feed(call(f"{name}0", talk, f"answer {name}"))
        talk += [{"role": "assistant", "content": f"answer {name}"}, {"role": "user", "content": "go on"}]
    now[0] += 9 * DAY
    bench.feed(call("d0", [{"role": "user", "content": "task d"}], "answer d", at=now[0]))
    run = bench.pool.retention.apply(OLD, author="ann")
    assert run["n_trajectories"] == 3
    bench.feed(call("a1", talks["a"], "after", at=now[0]))
    bench.pool.retention.restore(run["run_uid"], author="ann")
    bench.feed(call("b1", talks["b"], "after", at=now[0]))
    owner = {row["step_uid"]: row["trajectory_uid"] for row in bench.pool.steps.page(limit=None).to_pylist()}
    assert owner["b1"] == owner["b0"] and owner["a1"] != owner["a0"]
    bench.close()


def test_what_is_restored_is_what_it_was_and_stays_so(folder: Folder) -> None:
    was = reopened(folder)
    folder.now += 30 * DAY
    run = folder.pool.retention.apply(OLD, author="ann")["run_uid"]
    data = folder.settings
    moved = prune_journal(folder.pool, data.journal_dir, data.trash_dir / run / "journal")["segments"]
    assert list_trash(data.trash_dir, days=1)[0]["run_uid"] == run
    restored = restore_run(folder.pool, data.journal_dir, data.trash_dir, run, author="ann")
    assert (restored["n_trajectories"], restored["segments"]) == (2, sorted(moved))
    assert list_trash(data.trash_dir, days=1) == []
    with pytest.raises(NotFound):
        restore_run(folder.pool, data.journal_dir, data.trash_dir, run, author="ann")
    now = reopened(folder)
    assert different(without_runs(now), without_runs(was)) == {}
    folder.close()
    data.pool_path.unlink()
    rebuild(data, clock=lambda: folder.now)
    assert different(tables(data.pool_path), now) == {}
    folder.open()


def test_the_trash_is_emptied_at_once_when_somebody_says_so(folder: Folder) -> None:
    folder.now += 30 * DAY
    trash = folder.settings.trash_dir
    run = folder.pool.retention.apply(OLD, author="ann")["run_uid"]
    (trash / ("run-" + "0" * 32) / "rows").mkdir(parents=True)  # an interrupted run
    assert empty_trash(trash) == [run]
    assert list(trash.iterdir()) == [trash / ("run-" + "0" * 32)]  # it may be under way
    TrashSweep(trash, days=1, clock=lambda: folder.now)
    assert list(trash.iterdir()) == []
    with pytest.raises(NotFound):
        folder.pool.retention.restore(run, author="ann")
    for name in ("../../etc", "run-", "x"):
        with pytest.raises(NotFound):
            restore_run(folder.pool, folder.settings.journal_dir, trash, name, author="ann")


def test_a_token_stands_for_what_was_previewed_once_and_for_a_while(folder: Folder) -> None:
    folder.now += 30 * DAY
    pool = folder.pool
    seen = pool.retention.preview(OLD)
    assert seen["n_trajectories"] == 2
    with pytest.raises(Conflict, match="not what was previewed"):
        pool.retention.apply(Retention(older_than_days=1), author="a", confirm=seen["confirm"])
    with pytest.raises(Conflict, match="unknown or has expired"):  # used up
        pool.retention.apply(OLD, author="a", confirm=seen["confirm"])
    late = pool.retention.preview(OLD)["confirm"]
    folder.now += LASTS_S + 1
    with pytest.raises(Conflict, match="expired"):
        pool.retention.apply(OLD, author="a", confirm=late)
    with pytest.raises(Conflict):
        pool.retention.apply(OLD, author="a", confirm="guessed")
    assert pool.trajectories.exists("d1")
    assert pool.retention.apply(OLD, author="a", confirm=pool.retention.preview(OLD)["confirm"])["n_trajectories"] == 2


def test_over_http_nothing_is_deleted_without_the_word_of_a_preview(folder: Folder) -> None:
    folder.close()
    now = folder.now + 30 * DAY
    service = Service.open(folder.settings.model_copy(update={"port": 0}), clock=lambda: now)
    try:
        with httpx.Client(base_url=f"{service.base_url}/api/v1", timeout=60) as http:

            def post(path: str, **body: Any) -> httpx.Response:
                return http.post(path, json=body)

            n = service.pool.steps.count()
            rule = {"older_than_days": 5, "journal": True}
            refused = post("/retention", apply=True, **rule)
            assert (refused.status_code, refused.json()["field"]) == (422, "confirm")
            assert post("/retention", apply=True, confirm="x", **rule).status_code == 409
            assert service.pool.steps.count() == n
            seen = post("/retention", **rule).json()
            assert (seen["applied"], seen["n_steps"]) == (False, 4)
            done = post("/retention", apply=True, confirm=seen["confirm"], **rule).json()
            assert (done["applied"], done["n_steps"], service.pool.steps.count()) == (True, 4, n - 4)
            shown = http.get("/trash").json()
            assert [run["run_uid"] for run in shown["runs"]] == [done["run_uid"]]
            back = post(f"/trash/{done['run_uid']}/restore", author="ann").json()
            assert (back["n_trajectories"], back["segments"]) == (2, sorted(done["segments"]))
            assert service.pool.steps.count() == n
            assert post(f"/trash/{done['run_uid']}/restore").status_code == 404
            seen = post("/retention", **rule).json()
            post("/retention", apply=True, confirm=seen["confirm"], **rule)
            assert post("/trash/empty", confirm=shown["confirm"]).status_code == 409
            confirm = http.get("/trash").json()["confirm"]
            assert len(post("/trash/empty", confirm=confirm).json()["emptied"]) == 1
            assert http.get("/trash").json()["runs"] == []
            runs = http.get("/retention").json()["runs"]
            assert [bool(run["restored_at"]) for run in runs] == [False, True]
            json.dumps(runs)
    finally:
        service.close()
        folder.open()
