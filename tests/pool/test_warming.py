"""Reading ahead changes no answer, whatever is written meanwhile, and keeps within its memory."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from core.pool import Pool
from core.pool.cache.cache import FEW_STEPS, LOG_BYTES
from core.pool.cache.columncache import FIRST, MAX_WRITES_BEHIND, READ_AHEAD_ORDER, SORTED, VALUES, ColumnCache, _read
from core.pool.cache.readahead import CacheWarmer
from core.pool.query.facets import count_by_sql
from core.pool.query.listing import list_steps, touch_rows
from core.pool.query.textsearch import TextSearch
from core.pool.query.viewreader import ViewReader
from core.pool.store.database import Cursor, Database
from core.types import Annotation, Step, View
from tests.pool.test_columncache import FACETS, NOW, Story, check


class Busy(Database):
    """While it is read something else happens: each new snapshot is out of date at once."""

    happens: Callable[[], None] | None = None

    @contextmanager
    def read(self) -> Iterator[Cursor]:
        """As ever, and then what happens."""
        with super().read() as cursor:
            happens, self.happens = self.happens, None
            if happens is not None:
                happens()
                self.happens = happens
            yield cursor


@pytest.mark.parametrize("seed", [1, 2])
def test_what_was_read_ahead_while_others_wrote_is_what_is_there(seed: int) -> None:
    rng = random.Random(seed)
    database = Busy(":memory:", memory="1GB", threads=2, clock=lambda: NOW)
    pool = Pool(database)
    story = Story(pool, rng)
    try:
        for _ in range(6):
            story.arrive(at_most=40)
        happenings = [story.arrive, story.move, story.complete, story.label, story.label_all, story.undo, story.adopt]
        database.happens = lambda: rng.choice(happenings)() if rng.random() < 0.6 else None
        pool.cache.columns.read_ahead(lambda: False)
        database.happens = None
        assert set(pool.cache.columns._columns) == set(READ_AHEAD_ORDER) == VALUES
        for _ in range(3):
            for name in READ_AHEAD_ORDER:
                with pool.cache.columns.reading(View(), facets=True, columns=[name]) as moment:
                    grown, fresh = moment.columns[name], _read(moment.cursor, name)
                    assert fresh is not None and moment.facets is not None
                    of = moment.step_ids()
                    np.testing.assert_array_equal(grown.taken(of), fresh.taken(of), name)
                    assert moment.facets.counts(None, FACETS, 200) == count_by_sql(moment.cursor, View(), FACETS, 200)
            check(pool, rng)
            rng.choice(happenings)()
    finally:
        pool.close()


def some(n: int, first: int = 0) -> list[Step]:
    return [Step(f"s{i}", f"t{i // 50}", "p", i % 50, NOW + i, latency_s=i % 7 / 8) for i in range(first, first + n)]


def reader_of(database: Database) -> ViewReader:
    return ViewReader(database, TextSearch())


def test_columns_read_ahead_keep_within_their_memory() -> None:
    database = Database(":memory:", memory="1GB", threads=2, clock=lambda: NOW)
    pool = Pool(database)
    pool.steps.append(some(999))
    numbers = ColumnCache(database, reader_of(database), max_bytes=13_000)
    numbers.read_ahead(lambda: False)
    # All times differ: two bytes a step and 8 a value. Of the others there are few values: one byte a step.
    assert list(numbers._columns) == [*FIRST[1:3], FIRST[0]], "the first that fit; one was asked for once more"
    assert numbers.n_bytes <= 13_000 + 3 * 4 * 1000 + 8 * 1000 + 8 * 1000
    for name in SORTED:
        list_steps(numbers, View({"step_index": [0, 30]}), name, 5, 0)
        assert sum(kept.n_bytes for kept in numbers._columns.values()) <= 13_000
    stops = iter([False, False, True])
    stopped = ColumnCache(database, reader_of(database))
    stopped.read_ahead(lambda: next(stops, True))
    assert list(stopped._columns) == [FIRST[0]]
    pool.close()


def test_what_fell_behind_is_brought_up_to_date() -> None:
    database = Database(":memory:", memory="1GB", threads=2, clock=lambda: NOW)
    pool = Pool(database)
    pool.steps.append(some(300))
    numbers = ColumnCache(database, reader_of(database))
    numbers.read_ahead(lambda: False)
    before = {name: kept.number for name, kept in numbers._columns.items()}
    pool.steps.append(some(10, 300))
    numbers.read_ahead(lambda: False)
    assert {name: kept.number for name, kept in numbers._columns.items()} == before, "not for every write"
    for _ in range(MAX_WRITES_BEHIND):
        with database.write(touches=None) as cursor:
            cursor.execute("UPDATE step_state SET latency_s = latency_s + 1 WHERE step_id = 5")
    numbers.read_ahead(lambda: False)
    assert {kept.number for kept in numbers._columns.values()} == {database.n_writes}
    first = list_steps(numbers, View(), "latency_s desc", 1, 0).to_pylist()[0]
    assert (first["step_uid"], first["latency_s"]) == ("s4", 4 / 8 + MAX_WRITES_BEHIND)
    pool.close()


def test_a_thread_warms_a_big_pool_and_ends_before_it_closes() -> None:
    pool = Pool.open(":memory:", clock=lambda: NOW)
    pool.steps.append(some(50))
    small = CacheWarmer(pool.cache.warm, every_s=0.01)
    small.start()
    small.stop()
    assert pool.cache.columns.n_bytes == 0, "a small pool needs none of it"
    with pool._db.read() as cursor:
        touch_rows(cursor, 20)
    pool._writer.next["step_id"] = FEW_STEPS
    warming = CacheWarmer(pool.cache.warm, every_s=0.01)
    warming.start()
    deadline = time.monotonic() + 60
    while len(pool.cache.columns._columns) < len(READ_AHEAD_ORDER) and time.monotonic() < deadline:
        time.sleep(0.01)
    warming.stop()
    assert set(pool.cache.columns._columns) == set(READ_AHEAD_ORDER)
    assert not [thread for thread in threading.enumerate() if thread.name == "pool-warming"]
    pool.close()


def test_a_pool_at_rest_takes_its_log_in(tmp_path: Path) -> None:
    pool = Pool.open(tmp_path / "pool.duckdb", clock=lambda: NOW)
    pool.steps.append(some(50))
    long = [Annotation("note", f"{i}" * 20_000, "a", "h", NOW, step_uid="s4") for i in range(500)]
    pool.labels.annotate(long)
    pool._writer.next["step_id"] = FEW_STEPS
    full = pool._db.log_bytes
    assert full > LOG_BYTES
    pool.cache.warm()
    assert pool._db.log_bytes == full, "somebody wrote since the last look"
    with pool._db.read() as cursor:
        before = cursor.execute("SELECT count(*) FROM annotations").fetchall()
        pool.cache.warm()
        assert cursor.execute("SELECT count(*) FROM annotations").fetchall() == before
    assert pool._db.log_bytes < 1 << 20
    assert len(pool.labels.annotations(step_uid="s4")) == 500
    pool.close()
    pool = Pool.open(tmp_path / "pool.duckdb", clock=lambda: NOW)
    assert [note["value"] for note in pool.labels.annotations(step_uid="s4")] == [note.value for note in long]
    pool.close()
