"""Backup while it is written, restore, the deep check against damage, and retention that spares what counts."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from core.backup import MANIFEST, backup, restore
from core.batch.datasets import freeze_version, version_plan
from core.batch.leases import Fetch, Leases
from core.batch.recipe import parse_recipe
from core.errors import Conflict, InvalidInput, NotFound, PoolError
from core.ingest import Ingest
from core.ingest.deepcheck import deep_check
from core.journal import Journal, read_records
from core.pool import Pool
from core.pool.upkeep.retention import Retention
from core.records import steps_record
from core.trash import prune_journal
from core.types import Annotation, View
from tests.batch.keeping_all import SFT_ALL
from tests.effort import settings

T0 = 1_700_000_000.0
DAY = 86400.0


SAID = (
    "step_uid", "prompt_ids", "response_ids", "response_logprobs", "messages", "response_message", "tools",
    "original_reward", "metadata", "parent_step_uid",
)  # fmt: skip


class Studio:
    """Journal, ingest and pool of a data folder, without gateway and engines."""

    def __init__(self, data: Path, *, segment_bytes: int = 1 << 16) -> None:
        self.data, self.now = data, T0
        data.mkdir(parents=True, exist_ok=True)
        self.pool = Pool.open(data / "pool.duckdb", memory="300MB", threads=1, clock=lambda: self.now)
        self.journal = Journal(data / "journal", segment_bytes=segment_bytes)
        self.ingest = Ingest(data / "journal", self.pool, wait=self.journal.wait, clock=lambda: self.now)

    def send(self, uid: str, n: int = 3, **fields: Any) -> None:
        """Steps of one trajectory, each a record of its own."""
        prompt: list[int] = [1, 2]
        messages: list[dict[str, Any]] = [{"role": "user", "content": f"task of {uid}"}]
        for i in range(n):
            step = {
                "step_uid": f"{uid}.{i}", "trajectory_uid": uid, "prompt_uid": uid[0], "step_index": i,
                "prompt_ids": prompt, "response_ids": [10 + i, 20], "response_logprobs": [-0.5, None],
                "messages": messages, "response_message": {"role": "assistant", "content": f"answer {i} é"},
                "tools": [{"type": "function", "function": {"name": "t", "parameters": {"b": 1, "a": 2}}}],
                "reward": 0.25 * i, "finish_reason": "stop", "created_at": self.now + i, "channel": "train",
                "is_last": i == n - 1, "metadata": {"i": i},
            }  # fmt: skip
            self.journal.append(steps_record(at=self.now, steps=[{**step, **fields}])).result()
            prompt = [*prompt, 10 + i, 20, 5]
            messages = [*messages, step["response_message"], {"role": "user", "content": f"go on {i}"}]

    def catch_up(self) -> None:
        assert self.ingest.catch_up(120)

    def check(self) -> Any:
        return deep_check(self.pool, self.data / "journal")

    def close(self) -> None:
        self.journal.close()
        self.pool.close()


@pytest.fixture
def studio(tmp_path: Path) -> Iterator[Studio]:
    opened = Studio(tmp_path / "data")
    yield opened
    opened.close()


def contents(pool: Pool) -> list[Any]:
    return [
        json.loads(json.dumps(pool.trajectories.get(uid), default=_plain)) for uid in sorted(pool.trajectories.uids())
    ]


def _plain(value: Any) -> Any:
    return [None if x != x else x for x in value.tolist()]


def test_a_backup_of_a_studio_that_is_written_reads_on(studio: Studio, tmp_path: Path) -> None:
    for k in range(20):
        studio.send(f"a{k}")
    studio.catch_up()
    stop = threading.Event()
    sent: list[str] = []

    def write() -> None:
        while not stop.is_set():
            uid = f"b{len(sent)}"
            studio.send(uid)
            sent.append(uid)
            studio.ingest.run_once()
            studio.pool.labels.annotate([Annotation("tag", "seen", "a", "human", T0, trajectory_uid=uid)])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        manifests = [
            backup(studio.pool, studio.data / "journal", tmp_path / f"b{k}", clock=lambda: T0) for k in range(3)
        ]
        sent_before = len(sent)
    finally:
        stop.set()
        writer.join()
    studio.catch_up()
    assert manifests[-1]["n_steps"] <= 3 * (20 + sent_before + 1)
    expected = {t["trajectory_uid"]: t for t in contents(studio.pool)}
    for k, manifest in enumerate(manifests):
        restored = restore(tmp_path / f"b{k}", tmp_path / f"restored{k}")
        assert restored == manifest
        again = Studio(tmp_path / f"restored{k}")
        assert again.pool.steps.count() == manifest["n_steps"]
        assert again.pool.journal.positions() == manifest["positions"]
        again.catch_up()  # the rest of the copied journal, once
        assert again.check().ok
        assert again.pool.steps.count() >= manifest["n_steps"] >= 60
        for one in contents(again.pool):
            steps, original = (
                [{name: step[name] for name in SAID} for step in side["steps"]]
                for side in (one, expected[one["trajectory_uid"]])
            )
            assert steps == original[: len(steps)]
        again.send("new")
        again.catch_up()
        assert again.pool.trajectories.exists("new")
        again.close()


def test_a_backup_is_whole_or_not_there(studio: Studio, tmp_path: Path) -> None:
    studio.send("a")
    studio.catch_up()
    out = tmp_path / "backup"
    backup(studio.pool, studio.data / "journal", out, clock=lambda: T0)
    with pytest.raises(Conflict):
        backup(studio.pool, studio.data / "journal", out, clock=lambda: T0)
    with pytest.raises(Conflict):
        restore(out, studio.data)
    with pytest.raises(NotFound):
        restore(tmp_path / "nothing", tmp_path / "x")
    with pytest.raises(InvalidInput):
        backup(studio.pool, studio.data / "journal", Path("/proc/nowhere/backup"), clock=lambda: T0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup", "data"]
    damaged = next((out / "journal").iterdir())
    data = bytearray(damaged.read_bytes())
    data[100] ^= 1
    damaged.write_bytes(data)
    with pytest.raises(PoolError, match="changed since the backup"):
        restore(out, tmp_path / "restored")
    assert not (tmp_path / "restored" / "pool.duckdb").exists()
    assert json.loads((out / MANIFEST).read_bytes())["n_steps"] == 3


def test_the_deep_check_names_what_is_damaged(studio: Studio) -> None:
    for uid in ("a1", "a2", "b1", "b2"):
        studio.send(uid)
    studio.catch_up()
    freeze_version(studio.pool, "v1", View(), parse_recipe(SFT_ALL), author="a")
    report = studio.check()
    assert report.ok
    assert (report.n_steps, report.n_against_journal, report.n_without_record) == (12, 12, 0)
    assert report.versions == [{"name": "v1", "intact": True}]

    with studio.pool._db.write() as cursor:
        cursor.execute("UPDATE step_tokens SET response_ids = [10, 21] WHERE step_id = 2")
        cursor.execute(
            "UPDATE messages SET body = replace(body, 'task', 'TASK')"
            " WHERE message_id = (SELECT new_message_ids[1] FROM step_messages WHERE step_id = 4)"
        )
        cursor.execute("UPDATE dataset_steps SET trainable = NOT trainable WHERE place = 0")
    checked = studio.check()
    named = {one["step_uid"] for one in checked.mismatches}
    assert not checked.ok
    # A step's tokens are in the prompts of those after it.
    assert named == {"a1.1", "a1.2", "a2.0", "a2.1", "a2.2"}
    assert checked.versions == [{"name": "v1", "intact": False}]

    with studio.pool._db.write() as cursor:
        cursor.execute("UPDATE steps SET content_hash = uuid() WHERE step_id = 8")
    assert {one["step_uid"] for one in studio.check().mismatches} == named | {"b1.1"}


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    opened = Studio(tmp_path_factory.mktemp("deep") / "data", segment_bytes=1 << 20)
    for uid in ("a1", "a2", "b1", "b2"):
        opened.send(uid)
    opened.catch_up()
    yield opened
    opened.close()


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(which=st.integers(0, 11), inside=st.integers(0, 200), bit=st.integers(0, 7))
def test_a_damaged_record_costs_only_its_own_steps(which: int, inside: int, bit: int, captured: Studio) -> None:
    hurt = list(read_records(captured.data / "journal", {}))[which]
    path = captured.data / "journal" / hurt.segment
    whole = path.read_bytes()
    data = bytearray(whole)
    data[hurt.offset + inside] ^= 1 << bit
    try:
        path.write_bytes(data)
        report = captured.check()
    finally:
        path.write_bytes(whole)
    uid = f"{('a1', 'a2', 'b1', 'b2')[which // 3]}.{which % 3}"
    assert [one["step_uid"] for one in report.mismatches] == [uid]
    assert report.n_against_journal == 11


def test_steps_whose_segment_is_gone_are_counted(studio: Studio) -> None:
    studio.send("a1")
    studio.catch_up()
    for path in (studio.data / "journal").glob("*.seg"):
        path.unlink()
    report = studio.check()
    assert (report.ok, report.n_steps, report.n_without_record) == (False, 3, 3)
    assert sum(one["n_steps"] for one in report.missing) == 3


def test_retention_spares_versions_leases_and_what_is_new(studio: Studio) -> None:
    for uid in ("a0", "a1", "b0", "b1", "c0"):
        studio.send(uid)
    studio.catch_up()
    pool = studio.pool
    pool.labels.annotate([Annotation("tag", "x", "a", "human", T0, trajectory_uid="a1")])
    freeze_version(
        pool,
        "v1",
        View({}, "step_uid = 'a0.1'"),
        parse_recipe(SFT_ALL),
        author="a",
    )
    uids = iter(f"batch-{k}" for k in range(9))
    leases = Leases(pool, lambda: studio.now, lambda: next(uids), lambda _: 1)
    recipe = {**SFT_ALL, "batch_size": 1}
    acked = leases.fetch(Fetch(consumer="t", view=View({"trajectory_uid": "b0"}), recipe=recipe))
    assert acked.batch is not None
    pool.batches.finish(acked.batch["batch_uid"], "acked", consumer="t")
    leases.fetch(Fetch(consumer="t", view=View({"trajectory_uid": "c0"}), recipe=recipe, lease_s=90 * DAY))
    studio.now += 30 * DAY
    studio.send("d0")
    studio.catch_up()

    kept = {"n_kept_in_version": 1, "n_kept_leased": 1, "n_kept_recent": 0}
    before = pool.stats.totals()
    rule = Retention(older_than_days=7)
    preview = pool.retention.preview(rule)
    assert {name: preview[name] for name in kept} == kept
    assert (preview["n_trajectories"], preview["n_steps"]) == (3, 9)
    assert pool.stats.totals() == before, "a preview deletes nothing"
    assert pool.retention.preview(Retention(older_than_days=40))["n_trajectories"] == 0
    assert pool.retention.preview(Retention(consumed=1))["n_trajectories"] == 1
    assert pool.retention.preview(Retention(consumed=2))["n_trajectories"] == 0
    assert pool.retention.preview(Retention(older_than_days=7, channel="val"))["n_trajectories"] == 0
    assert pool.retention.preview(Retention(max_bytes=1 << 40))["n_trajectories"] == 0
    assert pool.retention.preview(Retention(max_bytes=0))["n_kept_recent"] == 1

    version = version_plan(pool, "v1").steps.to_pylist()
    whole = pool.trajectories.get("a0")
    assert pool.retention.apply(Retention(consumed=1), author="ann")["n_trajectories"] == 1
    assert not pool.trajectories.exists("b0")
    assert pool.retention.apply(rule, author="ann")["n_trajectories"] == 2
    assert sorted(pool.trajectories.uids()) == ["a0", "c0", "d0"]
    assert pool.retention.apply(rule, author="ann")["n_trajectories"] == 0
    assert [run["deleted"]["n_trajectories"] for run in pool.retention.runs()] == [0, 2, 1]
    assert version_plan(pool, "v1").steps.to_pylist() == version
    assert repr(pool.trajectories.get("a0")) == repr(whole)
    assert pool.versions.verify("v1")
    assert studio.check().ok
    left = pool.sql.run(
        "SELECT count(*) AS n FROM step_tokens UNION ALL SELECT count(*) FROM step_messages"
        " UNION ALL SELECT count(*) FROM annotations UNION ALL SELECT count(*) FROM step_state ORDER BY n"
    ).table["n"].to_pylist()  # fmt: skip
    assert left == [0, 9, 9, 9]
    bodies = pool.sql.run("SELECT body FROM messages").table["body"].to_pylist()
    assert not any("task of b" in body for body in bodies)
    assert any("task of a0" in body for body in bodies)
    # What was deleted may come again, as new.
    studio.send("b0")
    studio.catch_up()
    assert pool.steps.count(View({"trajectory_uid": "b0"})) == 3
    pool.integrity.rebuild_state()
    assert studio.check().ok


def test_by_size_the_oldest_go_first(studio: Studio) -> None:
    for k in range(6):
        studio.send(f"a{k}", n=4)
        studio.now += DAY
    studio.catch_up()
    studio.now += DAY
    size = studio.pool.file.n_bytes
    preview = studio.pool.retention.preview(Retention(max_bytes=size - size // 3))
    assert preview["n_trajectories"] == 2
    studio.pool.retention.apply(Retention(max_bytes=size - size // 3), author="ann")
    assert studio.pool.trajectories.uids() == [f"a{k}" for k in range(2, 6)]


def test_old_segments_go_when_nothing_is_left_of_them(tmp_path: Path) -> None:
    studio = Studio(tmp_path / "data", segment_bytes=2000)
    for k in range(8):
        studio.send(f"a{k}")
    studio.catch_up()
    before = sorted(path.name for path in (studio.data / "journal").glob("*.seg"))
    assert len(before) > 4
    assert prune_journal(studio.pool, studio.data / "journal")["segments"] == []
    studio.now += 30 * DAY
    studio.pool.retention.apply(Retention(older_than_days=1), author="ann")
    pruned = prune_journal(studio.pool, studio.data / "journal")
    assert pruned["segments"] == before[:-1]
    assert pruned["n_bytes"] > 0
    studio.send("b0")
    studio.catch_up()
    assert studio.pool.trajectories.uids() == ["b0"]
    studio.close()
    again = Studio(tmp_path / "data")
    again.send("b1")
    again.catch_up()
    assert again.pool.trajectories.uids() == ["b0", "b1"], "numbers are never used twice"
    again.close()


def test_a_rule_says_something() -> None:
    for wrong in ({}, {"channel": "train"}, {"older_than_days": -1}, {"consumed": 0}, {"max_bytes": -1}):
        with pytest.raises(InvalidInput):
            Retention(**wrong)
