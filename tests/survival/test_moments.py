"""Backup and retention while agents and people go on: a restored folder is the studio of one moment.

The reference is a brute force. A writer says one thing after another, a step, then a label of it, then the next step,
so whatever is of one moment is a beginning of that sequence.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.backup import backup, restore
from core.ingest.deepcheck import deep_check
from core.journal import Journal, damages, read_records
from core.pool.upkeep import compaction
from core.pool.upkeep.retention import Retention
from core.rebuild import rebuild
from core.records import steps_record
from core.trash import prune_journal
from core.types import Annotation

from .folder import DAY, Folder, different, tables


class Writer:
    """Says s0, l0, s1, l1, ...: a step by the journal of its own, and when the pool has it, a label of it."""

    def __init__(self, folder: Folder, name: str) -> None:
        self.folder, self.name = folder, name
        self.journal = Journal(folder.settings.journal_dir, writer=name, segment_bytes=2000)
        self.n = 0
        self.stop = threading.Event()
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                self.say()
        except BaseException as error:
            self.failure = error

    def say(self) -> None:
        uid, folder = f"{self.name}-{self.n}", self.folder
        step = {
            "step_uid": uid, "trajectory_uid": uid, "prompt_uid": self.name, "step_index": 0, "prompt_ids": [1, 2],
            "response_ids": [3, 4], "created_at": folder.now, "channel": "train", "source": "whitebox",
            "messages": [{"role": "user", "content": uid * 20}], "metadata": {},
        }  # fmt: skip
        self.journal.append(steps_record(at=folder.now, steps=[step])).result()
        assert folder.ingest.catch_up(60)
        note = Annotation("note", f"of {uid}", "ann", "human", folder.now, step_uid=uid)
        folder.pool.labels.annotate([note])
        self.n += 1

    def end(self) -> None:
        self.stop.set()
        self.thread.join()
        self.journal.close()
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def writers(tmp_path: Path) -> Iterator[tuple[Folder, list[Writer]]]:
    folder = Folder(tmp_path / "data")
    made = [Writer(folder, name) for name in ("w1", "w2")]
    for one in made:
        for _ in range(4):
            one.say()
        one.thread.start()
    yield folder, made
    for one in made:
        one.stop.set()
        one.thread.join()


def writes_of(folder: Folder, name: str) -> list[str]:
    """What a folder holds of one writer, in its order."""
    with folder.pool._db.read() as cursor:
        steps = {uid for (uid,) in cursor.execute("SELECT step_uid FROM steps").fetchall()}
        notes = {uid for (uid,) in cursor.execute("SELECT value_text FROM annotations WHERE kind = 'note'").fetchall()}
    mine = max((int(uid.rpartition("-")[2]) for uid in steps if uid.startswith(f"{name}-")), default=-1)
    both = [(uid in steps, f"of {uid}" in notes) for uid in (f"{name}-{k}" for k in range(mine + 1))]
    assert len([uid for uid in notes if f"of {name}-" in uid]) == sum(note for _, note in both)
    return ["sl"[kind] for pair in both for kind, there in enumerate(pair) if there]


def reopened(source: Path, target: Path, folder: Folder) -> Folder:
    restore(source, target)
    again = Folder.__new__(Folder)
    again.settings = folder.settings.model_copy(update={"data_dir": target})
    again.now, again.number = folder.now, 1000
    again.open()
    again.catch_up()
    return again


def test_a_backup_that_is_made_while_all_go_on_is_of_one_moment(
    writers: tuple[Folder, list[Writer]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "LEAST_BYTES", 0)
    folder, made = writers
    data = folder.settings
    times = []
    for k in range(4):
        before = [one.n for one in made]
        backup(
            folder.pool, data.journal_dir, tmp_path / f"b{k}", clock=lambda: folder.now, opinions_dir=data.opinions_dir
        )
        times.append((before, [one.n for one in made]))
        folder.pool.recovery.compact_log()
    for one in made:
        one.end()
    whole = list(read_records(data.journal_dir, {}))
    for k, (before, after) in enumerate(times):
        again = reopened(tmp_path / f"b{k}", tmp_path / f"restored{k}", folder)
        for at, one in enumerate(made):
            stored = writes_of(again, one.name)
            assert stored == (["s", "l"] * (one.n + 1))[: len(stored)], "a beginning of what was said"
            assert 2 * before[at] <= len(stored) <= 2 * (after[at] + 1), "of a time while the backup was made"
            in_backup = [r for r in read_records(tmp_path / f"b{k}" / "journal", {}) if r.segment.startswith(one.name)]
            assert in_backup == [r for r in whole if r.segment.startswith(one.name)][: len(in_backup)]
        assert list(damages(again.settings.journal_dir)) == []
        assert deep_check(again.pool, again.settings.journal_dir).ok
        again.send("new")
        again.catch_up()
        assert list(damages(again.settings.journal_dir)) == []
        again.close()
        was = tables(again.settings.pool_path)
        again.settings.pool_path.unlink()
        assert rebuild(again.settings, clock=lambda: folder.now)["replay"]["n_without_target"] == 0
        assert different(tables(again.settings.pool_path), was) == {}
    folder.close()


def test_retention_while_all_go_on_takes_what_it_names_and_nothing_else(
    writers: tuple[Folder, list[Writer]], tmp_path: Path
) -> None:
    folder, made = writers
    data = folder.settings
    gone = 0
    for k in range(3):
        for uid in ("d1", "d2"):
            folder.send(f"{uid}-{k}", channel="old")
        folder.catch_up()
        folder.now += 30 * DAY
        run = folder.pool.retention.apply(Retention(older_than_days=5, channel="old"), author="ann")
        gone += run["n_trajectories"]
        prune_journal(folder.pool, data.journal_dir, data.trash_dir / run["run_uid"] / "journal")
        backup(
            folder.pool, data.journal_dir, tmp_path / f"b{k}", clock=lambda: folder.now, opinions_dir=data.opinions_dir
        )
    for one in made:
        one.end()
    assert gone == 6
    assert folder.pool.steps.count() == sum(one.n for one in made)
    for one in made:
        assert writes_of(folder, one.name) == ["s", "l"] * one.n
    assert list(damages(data.journal_dir)) == []
    assert deep_check(folder.pool, data.journal_dir).ok
    again = reopened(tmp_path / "b2", tmp_path / "restored", folder)
    assert deep_check(again.pool, again.settings.journal_dir).ok
    again.close()
    folder.close()
    was = tables(data.pool_path)
    data.pool_path.unlink()
    rebuild(data, clock=lambda: folder.now)
    assert different(tables(data.pool_path), was) == {}


@pytest.mark.parametrize("n_torn", [1, 20, 60, 5000])
def test_what_a_writer_was_at_is_no_damage_in_the_backup(tmp_path: Path, n_torn: int) -> None:
    folder = Folder(tmp_path / "data")
    folder.send("a1")
    folder.catch_up()
    data = folder.settings
    newest = max(data.journal_dir.glob("*.seg"))
    size = newest.stat().st_size
    folder.journal.append(steps_record(at=folder.now, steps=[])).result()
    record = newest.read_bytes()[size:]
    with newest.open("r+b") as file:
        file.truncate(size)
        file.seek(size)
        file.write((record + b"x" * 9000)[: min(n_torn, len(record) - 1)])
    (data.journal_dir / "w9-00000001.seg").write_bytes(newest.read_bytes()[:9])  # another, at its first
    backup(folder.pool, data.journal_dir, tmp_path / "b", clock=lambda: folder.now, opinions_dir=data.opinions_dir)
    again = reopened(tmp_path / "b", tmp_path / "restored", folder)
    again.send("b1")
    again.catch_up()
    assert again.ingest.n_damages == 0 and list(damages(again.settings.journal_dir)) == []
    assert sorted(again.pool.trajectories.uids()) == ["a1", "b1"]
    again.close()
    folder.close()
