"""Retention with the journal: after the trash is emptied, a rebuild brings all but what was deleted, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from core.ingest.deepcheck import deep_check
from core.journal import Damage, Gap, Journal, JournalReader, Record, damages, read_records, thin
from core.pool.upkeep.retention import Retention
from core.rebuild import rebuild
from core.records import complete_record, policy_record, register_record, revoke_record, session_record
from core.trash import empty_trash, prune_journal, restore_run
from tests.effort import settings

from .folder import DAY, Folder, different, reopened, say_everything, tables

OLD = Retention(older_than_days=5)


class SmallSegments(Folder):
    """A folder whose journal holds a few records a segment, so that retention finds many that it can thin."""

    def open(self) -> None:
        super().open()
        self.journal.close()
        self.journal = Journal(self.settings.journal_dir, segment_bytes=700, used=self.pool.journal.positions())


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    """Old trajectories that go, and among their records what stays: keys, policy, words about others."""
    opened = SmallSegments(tmp_path / "data")
    say_everything(opened)

    def say(payload: bytes) -> None:
        opened.journal.append(payload).result()

    for k in range(6):
        uid = f"d{k}"
        key = f"{k}" * 64
        say(register_record(at=opened.now, trajectory_uid=uid, metadata={"of": uid}))
        say(session_record(at=opened.now, key_sha256=key, trajectory_uid=uid, channel="train", limits={"calls": k}))
        say(policy_record(at=opened.now, version=k, event="sync_started"))
        opened.send(uid)
        opened.feedback(f"f-{uid}", "up", trajectory_uid=uid)
        opened.feedback(f"f-{uid}-a1", "up", trajectory_uid="a1")
        say(register_record(at=opened.now, trajectory_uid="a1", prompt_uid="a", metadata={"k": k}))
        say(policy_record(at=opened.now, version=k, event="sync_finished", metadata={"k": k}))
        say(complete_record(at=opened.now, trajectory_uid=uid, reward=float(k)))
        say(b'{"kind": "of tomorrow"}')
    say(revoke_record(at=opened.now, key_sha256="1" * 64))
    opened.catch_up()
    opened.label("reward", 0.5, trajectory_uid="d1")
    opened.now += 30 * DAY
    opened.send("late2")
    opened.catch_up()
    yield opened
    opened.close()


def made_anew(folder: Folder) -> dict[str, list[str]]:
    """The tables of a pool that is made from journal and log alone."""
    folder.close()
    folder.settings.pool_path.unlink()
    rebuild(folder.settings, clock=lambda: folder.now)
    content = tables(folder.settings.pool_path)
    folder.open()
    return content


def test_what_must_outlive_a_deleted_call_is_there_after_the_trash_is_gone(folder: Folder) -> None:
    data = folder.settings
    before = reopened(folder)
    whole = {path.name: path.stat().st_size for path in data.journal_dir.glob("*.seg")}
    run = folder.pool.retention.apply(OLD, author="ann")
    assert run["n_trajectories"] == 6
    pruned = prune_journal(folder.pool, data.journal_dir, data.trash_dir / run["run_uid"] / "journal")
    assert len(pruned["segments"]) > 5
    now = {path.name: path.stat().st_size for path in data.journal_dir.glob("*.seg")}
    assert sum(whole.values()) - sum(now[name] for name in whole) == pruned["n_bytes"] > 1000
    bodies = b"".join(record.payload for record in read_records(data.journal_dir, {}))
    assert b"task of d" not in bodies and b"f-d1-a1" in bodies
    assert prune_journal(folder.pool, data.journal_dir)["segments"] == [], "what is thin stays so"
    assert empty_trash(data.trash_dir) == [run["run_uid"]]
    assert list(damages(data.journal_dir)) == []
    assert deep_check(folder.pool, data.journal_dir).ok
    was = reopened(folder)
    for kept in ("sessions", "revocations", "policy_events"):
        assert was[kept] == before[kept]
    assert different(made_anew(folder), was) == {}
    folder.send("e1")
    folder.catch_up()
    assert folder.pool.trajectories.exists("e1")


def test_a_restored_run_brings_its_whole_segments_back_even_after_a_second_run(folder: Folder) -> None:
    data = folder.settings
    before = reopened(folder)

    def prune(run: dict[str, Any]) -> list[str]:
        return prune_journal(folder.pool, data.journal_dir, data.trash_dir / run["run_uid"] / "journal")["segments"]

    whole = {path.name: path.read_bytes() for path in data.journal_dir.glob("*.seg")}
    first = folder.pool.retention.apply(Retention(older_than_days=5), author="ann")
    assert prune(first)
    folder.now += 30 * DAY
    second = folder.pool.retention.apply(Retention(older_than_days=5), author="ann")
    assert second["n_trajectories"] > 0
    prune(second)
    for run in (first, second):
        restore_run(folder.pool, data.journal_dir, data.trash_dir, run["run_uid"], author="ann")
    assert {path.name: path.read_bytes() for path in data.journal_dir.glob("*.seg") if path.name in whole} == whole
    own = ("retention_runs", "deleted", "restored_runs")
    now = reopened(folder)
    assert different({name: rows for name, rows in now.items() if name not in own},
                     {name: rows for name, rows in before.items() if name not in own}) == {}  # fmt: skip
    assert different(made_anew(folder), now) == {}


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_thinned_segment_is_read_as_the_whole_one_less_what_went(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Brute force: the list of what was appended, with what was taken out struck off, from any position, twice."""
    directory = tmp_path_factory.mktemp("thin")
    journal = Journal(directory, segment_bytes=data.draw(st.sampled_from([1, 200, 1 << 20])))
    texts = data.draw(st.lists(st.binary(min_size=16, max_size=60), min_size=1, max_size=12))
    for text in texts:
        journal.append(text).result()
    journal.close()
    whole = list(read_records(directory, {}))
    left = set(range(len(whole)))
    for _ in range(2):
        gone = data.draw(st.sets(st.sampled_from(sorted(left)))) if left else set()
        left -= gone
        places = {(whole[k].segment, whole[k].offset) for k in gone}
        for path in sorted(directory.glob("*.seg")):
            size = path.stat().st_size
            copy = thin(path, lambda record: (record.segment, record.offset) in places)  # noqa: B023
            assert (copy is None) == (not any(segment == path.name for segment, _ in places))
            if copy is not None:
                assert copy.stat().st_size < size
                copy.replace(path)
    assert list(damages(directory)) == []
    expected = [whole[k] for k in sorted(left)]
    assert list(read_records(directory, {})) == expected
    start = data.draw(st.sampled_from(whole))
    after = {one.segment: one.next_offset for one in whole if one <= start}
    assert list(read_records(directory, after)) == [one for one in expected if one > start]
    ends: dict[str, int] = {}
    for item in (one for writer in JournalReader(directory).read({}) for one in writer):
        assert isinstance(item, Record | Gap)
        assert item.offset >= ends.get(item.segment, 0)
        ends[item.segment] = item.next_offset
    assert ends == {one.segment: one.next_offset for one in whole}, "a position at the end is the same position"
    again = Journal(directory)
    again.append(b"and on").result()
    again.close()
    assert [one.payload for one in read_records(directory, {})] == [*(one.payload for one in expected), b"and on"]
    hurt = data.draw(st.sampled_from(sorted(directory.glob("*.seg"))))
    body = bytearray(hurt.read_bytes())
    body[data.draw(st.integers(0, len(body) - 1))] ^= 1
    hurt.write_bytes(body)
    # The end of the newest segment may still be under way; a segment that follows says that it is not.
    sealing = Journal(directory)
    sealing.append(b"the last").result()
    sealing.close()
    item = [one for writer in JournalReader(directory).read({}) for one in writer]
    n_read, n_written = sum(isinstance(one, Record) for one in item), len(expected) + 2
    assert n_read == n_written or (n_read == n_written - 1 and any(isinstance(one, Damage) for one in item))


def test_a_damaged_segment_stays_whole(folder: Folder) -> None:
    data = folder.settings
    hurt = sorted(data.journal_dir.glob("*.seg"))[3]
    folder.pool.retention.apply(OLD, author="ann")
    body = bytearray(hurt.read_bytes())
    body[-30] ^= 1
    hurt.write_bytes(body)
    pruned = prune_journal(folder.pool, data.journal_dir)
    assert pruned["segments"] and hurt.name not in pruned["segments"]
    assert hurt.read_bytes() == bytes(body)
    assert not list(data.journal_dir.glob("*.thin"))
