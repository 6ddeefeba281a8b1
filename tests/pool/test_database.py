"""The file: migrations, one owner, readers beside a writer, all or nothing."""

from __future__ import annotations

import threading
from pathlib import Path

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InvalidInput, PoolError
from core.pool import Pool
from core.pool.store.database import in_list, migrations
from core.types import Annotation, Step, View
from tests.effort import settings


def step(number: int, trajectory: str = "t") -> Step:
    return Step(f"s{number}", trajectory, "p", number, 1e9 + number, prompt_ids=[number], response_ids=[1], reward=1.0)


def test_migrations_are_numbered_without_gaps() -> None:
    assert [number for number, _, _ in migrations()] == list(range(1, len(migrations()) + 1))


def test_what_is_stored_is_there_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "pool.duckdb"
    pool = Pool.open(path)
    pool.steps.append([step(0), step(1)], positions={"w0-1": 10}, completions=[{"trajectory_uid": "t", "reward": 2.0}])
    action = pool.labels.annotate([Annotation("tag", "x", "me", "test", 1e9, step_uid="s0")])
    pool.close()
    pool = Pool.open(path)
    assert pool.journal.positions() == {"w0-1": 10}
    assert pool.steps.get("s0")["tags"] == ["x"]
    assert pool.trajectories.get("t")["reward"] == 2.0
    pool.steps.append([step(2)], positions={"w0-1": 20})
    assert pool.journal.positions() == {"w0-1": 20}
    pool.labels.undo(action)
    assert pool.steps.get("s0")["tags"] == []
    assert [s["step_uid"] for s in pool.trajectories.get("t")["steps"]] == ["s0", "s1", "s2"]
    pool.close()


def test_a_file_from_a_newer_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pool.duckdb"
    Pool.open(path).close()
    connection = duckdb.connect(str(path))
    connection.execute("INSERT INTO schema_migrations VALUES (9999, 'future.sql', now()::TIMESTAMP)")
    connection.close()
    with pytest.raises(PoolError, match="newer") as raised:
        Pool.open(path)
    assert raised.value.hint


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pool.duckdb"
    path.write_bytes(b"not a database" * 1000)
    with pytest.raises(PoolError):
        Pool.open(path)


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    pool = Pool.open(tmp_path / "pool.duckdb")
    pool.steps.append([step(0)], positions={"a": 1})
    before = pool.stats.totals()
    with pytest.raises(InvalidInput):
        pool.steps.append([step(1)], positions={"a": 2}, completions=[{"trajectory_uid": "t", "reward": "much"}])
    with pytest.raises(InvalidInput):
        pool.steps.append([step(1), Step("bad", "t", "p", 1, 1e9, prompt_ids=[2**33])], positions={"a": 2})
    assert pool.stats.totals() == before
    assert pool.journal.positions() == {"a": 1}
    assert pool.steps.append([step(1)]) == 1
    assert pool.steps.get("s1")["prompt_ids"].tolist() == [1]
    pool.close()


def test_readers_see_whole_batches_while_a_writer_appends(tmp_path: Path) -> None:
    """Each batch is one trajectory of four steps: no reader ever counts a part of one."""
    pool = Pool.open(tmp_path / "pool.duckdb")
    done, problems = threading.Event(), []

    def write() -> None:
        for batch in range(6):
            pool.steps.append([step(batch * 4 + i, f"t{batch}") for i in range(4)])
            pool.labels.annotate([Annotation("tag", "x", "me", "test", 1e9, trajectory_uid=f"t{batch}")])
        done.set()

    def read() -> None:
        while not done.is_set():
            try:
                n = pool.steps.count()
                rows = pool.trajectories.page(limit=None).to_pylist()
                seen = pool.steps.page(View({"channel": "train"}), limit=None).num_rows
            except Exception as error:
                problems.append(error)
                return
            if n % 4 or seen % 4 or any(row["n_steps"] != 4 for row in rows):
                problems.append((n, seen, rows))

    threads = [threading.Thread(target=read) for _ in range(3)] + [threading.Thread(target=write)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert problems == []
    assert pool.steps.count() == 24
    pool.close()


@given(st.lists(st.integers(-5, 60), max_size=40), st.sampled_from([0, 3, 1000]))
@settings(max_examples=60, deadline=None)
def test_rows_among_numbers_are_those(numbers: list[int], max_bound: int) -> None:
    stored = [*range(0, 50, 2), None]
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE held AS SELECT unnest(?::BIGINT[]) AS number", [stored])
        with in_list(connection, "number", numbers, max_bound=max_bound) as (condition, bound):
            rows = connection.execute(f"SELECT number FROM held WHERE {condition} ORDER BY ALL", bound).fetchall()
    assert [row[0] for row in rows] == sorted(set(numbers) & set(range(0, 50, 2)))


def as_it_was_before(newest: int, source: Path, target: Path) -> None:
    """The pool at ``source`` in the schema of the migrations up to ``newest``."""
    connection = duckdb.connect(str(target))
    for _, _, sql in [known for known in migrations() if known[0] <= newest]:
        connection.execute(sql)
    connection.execute(f"ATTACH '{source}' AS now (READ_ONLY)")
    connection.execute(
        "CREATE TABLE schema_migrations (number INTEGER PRIMARY KEY, name VARCHAR, applied_at TIMESTAMP)"
    )
    tables = connection.execute(
        "SELECT table_name, list(column_name) FROM duckdb_columns()"
        " WHERE database_name <> 'now' AND NOT internal GROUP BY ALL"
    ).fetchall()
    for table, columns in tables:
        names = ", ".join(columns)
        connection.execute(f"INSERT INTO {table} ({names}) SELECT {names} FROM now.{table}")
    connection.execute("DELETE FROM schema_migrations WHERE number > ?", [newest])
    connection.close()


def test_a_pool_from_before_tags_were_texts_keeps_everything(tmp_path: Path) -> None:
    pool = Pool.open(tmp_path / "now.duckdb")
    pool.steps.append([step(i, f"t{i % 3}") for i in range(12)], completions=[{"trajectory_uid": "t1", "reward": 2.0}])
    tags = {"s0": ["x"], "s3": ["b", "a", 'say "x", [y]'], "s4": ["x", "\\"], "s5": ["Ünder\n"]}
    pool.labels.annotate(
        [Annotation("tag", tag, "me", "h", 1e9, step_uid=uid) for uid, own in tags.items() for tag in own]
    )
    undone = pool.labels.annotate([Annotation("tag", "gone", "me", "h", 1e9, step_uid="s0")])
    pool.labels.undo(undone)
    pool.labels.annotate([Annotation("tag", "whole", "me", "h", 1e9, trajectory_uid="t2")])
    pool.labels.annotate(
        [
            Annotation("quality", "good", "me", "h", 1e9, step_uid="s7"),
            Annotation("correct", True, "me", "h", 1e9, step_uid="s7"),
        ]
    )

    def content(at: Pool) -> object:
        steps, trajectories = at.steps.page(limit=None).to_pylist(), at.trajectories.page(limit=None).to_pylist()
        return (
            steps,
            trajectories,
            at.stats.facets(View(), ["tags", "quality"]),
            at.steps.get("s3"),
            at.trajectories.get("t2"),
            at.training.facts_hashes(at.training.plan_rows(channel=None)["step_id"].to_numpy()).to_pylist(),
        )

    before = content(pool)
    assert pool.steps.get("s3")["tags"] == sorted(tags["s3"])
    pool.close()
    old = tmp_path / "old.duckdb"
    as_it_was_before(9, tmp_path / "now.duckdb", old)
    connection = duckdb.connect(str(old))
    assert connection.execute("SELECT tags FROM step_state WHERE step_uid = 's3'").fetchall() == [(sorted(tags["s3"]),)]
    connection.close()

    pool = Pool.open(old)
    assert repr(content(pool)) == repr(before)
    pool.labels.redo(undone)
    assert pool.steps.get("s0")["tags"] == ["gone", "x"]
    pool.labels.undo(undone)
    assert repr(content(pool)) == repr(before)
    pool.integrity.rebuild_state()
    assert repr(content(pool)) == repr(before)
    pool.close()


def test_bulk_tags_write_no_row_anew(tmp_path: Path) -> None:
    pool = Pool.open(tmp_path / "pool.duckdb")
    pool.steps.append([step(i, f"t{i % 50}") for i in range(5000)])
    wrote = {}
    for kind, value in (("quality", "good"), ("tag", "good")):
        action, _ = pool.labels.annotate_view(View(), "step", kind, value, author="a", source="h")
        before = pool.file.n_bytes
        pool.labels.undo(action)
        wrote[kind] = pool.file.n_bytes - before
    assert 0 < wrote["tag"] < 3 * wrote["quality"]
    pool.close()
