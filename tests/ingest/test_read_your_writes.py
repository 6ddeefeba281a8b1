"""What a client was told is stored is in the pool for its next read, and waiting for it is shared."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from core.ingest import Ingest, thread
from core.ingest.expected import ExpectedPositions
from core.journal import Journal
from core.pool import Pool
from core.records import complete_record, steps_record
from tests.conftest import eventually

N_WRITERS = 48


class Studio:
    """A journal and its pool; nothing is ingested unless somebody waits for it."""

    def __init__(self, folder: Path) -> None:
        self.pool = Pool.open(folder / "pool.duckdb", clock=time.time)
        self.journal = Journal(folder / "journal")
        self.ingest = Ingest(folder / "journal", self.pool, wait=self.journal.wait, clock=time.time)
        self.n_appends = 0
        self.appending = threading.Event()
        self.may_append = threading.Event()
        self.may_append.set()
        append = self.pool.steps.append

        def counted(*args: object, **kwargs: object) -> object:
            self.n_appends += 1
            self.appending.set()
            assert self.may_append.wait(60)
            return append(*args, **kwargs)  # type: ignore[arg-type]

        self.pool.steps.append = counted  # type: ignore[method-assign, assignment]

    def write(self, uid: str) -> tuple[str, int]:
        """Journal a step of a trajectory, and its completion."""
        step = {"step_uid": f"{uid}:0", "trajectory_uid": uid, "step_index": 0, "prompt_ids": [1], "response_ids": [2]}
        self.journal.append(steps_record(at=time.time(), steps=[step])).result()
        closing = complete_record(
            at=time.time(), trajectory_uid=uid, prompt_uid=None, channel=None, reward=1.0, outcome=None
        )
        return self.journal.append(closing).result()

    def close(self) -> None:
        self.journal.close()
        self.pool.close()


@pytest.fixture
def studio(tmp_path: Path) -> Studio:
    return Studio(tmp_path)


def test_all_that_wait_share_batches_and_each_reads_its_own_write(studio: Studio) -> None:
    studio.write("first")
    studio.may_append.clear()
    with ThreadPoolExecutor(N_WRITERS + 1) as threads:
        leader = threads.submit(studio.ingest.catch_up, 60.0)
        assert studio.appending.wait(60)
        written = threading.Barrier(N_WRITERS + 1)

        def one(number: int) -> bool:
            studio.write(f"t{number}")
            written.wait(60)
            caught_up = studio.ingest.catch_up(60.0)
            return caught_up and studio.pool.trajectories.get(f"t{number}")["complete"]

        writers = [threads.submit(one, number) for number in range(N_WRITERS)]
        written.wait(60)
        studio.may_append.set()
        assert leader.result(60)
        assert all(writer.result(60) for writer in writers)
    # The batch that was running when they came, and one for all of them; a late thread may need one of its own.
    assert studio.n_appends <= 5
    studio.close()


def test_settling_waits_for_what_is_expected_and_for_nothing_else(studio: Studio) -> None:
    studio.write("unasked")
    assert studio.ingest.settle(60.0)
    assert studio.n_appends == 0
    studio.ingest.expect([studio.write("asked")])
    assert not studio.ingest.settled
    assert studio.ingest.settle(60.0)
    assert studio.ingest.settled
    assert studio.pool.trajectories.get("asked")["complete"]
    studio.close()


def test_a_failing_pool_ends_the_wait_with_false(studio: Studio) -> None:
    studio.ingest.expect([studio.write("late")])

    def broken(*_: object, **__: object) -> None:
        raise OSError("the disk is gone")

    append = studio.pool.steps.append
    studio.pool.steps.append = broken  # type: ignore[method-assign, assignment]
    assert not studio.ingest.settle(5.0)
    assert not studio.ingest.settled
    studio.pool.steps.append = append  # type: ignore[method-assign]
    assert studio.ingest.settle(60.0)
    studio.close()


def test_the_last_record_of_each_segment_counts() -> None:
    expected = ExpectedPositions()
    assert expected.reached({})
    expected.add([("a", 10), ("b", 5), ("a", 3)])
    assert not expected.reached({})
    assert not expected.reached({"a": 10, "b": 6})
    assert not expected.reached({"a": 4})
    assert expected.reached({"a": 11})
    assert expected.reached({})


def test_ingest_does_not_pause_while_there_is_more_to_read(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread, "PAUSE_S", 3600.0)
    monkeypatch.setattr(thread, "MAX_BATCH_BYTES", 1)
    for i in range(4):
        studio.write(f"t{i}")
    studio.ingest.start()
    try:
        eventually(lambda: studio.ingest.n_ingested == 8)
    finally:
        studio.ingest.stop(studio.journal.notice)
    assert studio.n_appends == 8
    assert studio.pool.trajectories.count() == 4
    studio.close()
