"""The SQL console: what may be asked is answered, and everything else is refused before it does anything."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from core.errors import InvalidInput, StudioError
from core.pool import Pool
from core.types import Annotation, Step

ATTACKS = {
    "insert": "INSERT INTO annotations SELECT * FROM annotations",
    "update": "UPDATE step_state SET reward = 1",
    "delete": "DELETE FROM steps",
    "truncate": "TRUNCATE steps",
    "merge": "MERGE INTO steps USING steps u ON TRUE WHEN MATCHED THEN DELETE",
    "drop": "DROP TABLE steps",
    "alter": "ALTER TABLE steps ADD COLUMN x INTEGER",
    "create": "CREATE TABLE x (i INTEGER)",
    "create temp": "CREATE TEMP TABLE x AS SELECT 1",
    "create macro": "CREATE MACRO count_star() AS 1",
    "create view": "CREATE VIEW x AS SELECT * FROM sessions",
    "insert in a with": "WITH q AS (INSERT INTO actions SELECT * FROM actions RETURNING action_id) SELECT * FROM q",
    "delete in a nested with": "SELECT * FROM (WITH q AS (DELETE FROM steps RETURNING step_id) SELECT * FROM q)",
    "with before an insert": "WITH q AS (SELECT 1) INSERT INTO actions SELECT * FROM q",
    "two queries": "SELECT 1; DELETE FROM steps",
    "two selects": "SELECT 1; SELECT 2",
    "no query": "",
    "only a comment": "-- nothing",
    "copy to": "COPY steps TO '{file}'",
    "copy from": "COPY steps FROM '{file}'",
    "copy a query": "COPY (SELECT 1) TO '{file}' (FORMAT csv)",
    "export": "EXPORT DATABASE '{file}'",
    "import": "IMPORT DATABASE '{file}'",
    "attach": "ATTACH '{file}' AS other",
    "detach": "DETACH pool",
    "use": "USE memory",
    "install": "INSTALL httpfs",
    "load": "LOAD httpfs",
    "update extensions": "UPDATE EXTENSIONS",
    "set": "SET enable_external_access = true",
    "set global": "SET GLOBAL threads = 64",
    "set variable": "SET VARIABLE x = 1",
    "reset": "RESET enable_external_access",
    "pragma": "PRAGMA database_list",
    "pragma as table": "SELECT * FROM pragma_database_size()",
    "call": "CALL pragma_version()",
    "checkpoint": "CHECKPOINT",
    "force checkpoint": "FORCE CHECKPOINT",
    "checkpoint as table": "SELECT * FROM force_checkpoint()",
    "vacuum": "VACUUM",
    "analyze": "ANALYZE",
    "begin": "BEGIN",
    "commit": "COMMIT",
    "rollback": "ROLLBACK",
    "prepare": "PREPARE p AS DELETE FROM steps",
    "execute": "EXECUTE p",
    "deallocate": "DEALLOCATE p",
    "secret": "CREATE SECRET s (TYPE s3)",
    "explain analyze": "EXPLAIN ANALYZE DELETE FROM steps",
    "read_csv": "SELECT * FROM read_csv('{file}')",
    "read_csv deep": "SELECT (SELECT max(x) FROM read_csv('{file}') t(x))",
    "read_csv in a with": "WITH q AS (FROM read_csv('{file}')) FROM q",
    "read_text": "SELECT content FROM read_text('{file}')",
    "read_blob": "SELECT content FROM read_blob('{file}')",
    "read_json": "SELECT * FROM read_json('{file}')",
    "read_parquet": "SELECT * FROM read_parquet('{file}')",
    "read_duckdb": "SELECT * FROM read_duckdb('{file}')",
    "a file as table": "SELECT * FROM '{file}'",
    "a file as quoted table": 'SELECT * FROM "{file}"',
    "an address as table": "SELECT * FROM 'https://example.org/x.parquet'",
    "a file under a name of its own": "WITH \"{file}\" AS (SELECT 1) SELECT * FROM (SELECT * FROM read_text('{file}'))",
    "glob": "SELECT * FROM glob('/*')",
    "sniff": "SELECT * FROM sniff_csv('{file}')",
    "parquet metadata": "SELECT * FROM parquet_metadata('{file}')",
    "query()": "SELECT * FROM query('DELETE FROM steps')",
    "query() reading": "SELECT * FROM query('SELECT * FROM sessions')",
    "query_table": "SELECT * FROM query_table('sessions')",
    "serialized sql": "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT * FROM sessions'))",
    "hidden table": "SELECT * FROM sessions",
    "hidden table, qualified": "SELECT * FROM main.sessions",
    "hidden table, mixed case": 'SELECT * FROM "SeSSions"',
    "hidden table in a subquery": "SELECT 1 WHERE EXISTS (SELECT 1 FROM sessions)",
    "hidden table behind a name": "SELECT * FROM sessions WHERE (WITH sessions AS (SELECT 1) SELECT TRUE)",
    "hidden table in a lateral join": "SELECT * FROM steps, LATERAL (SELECT * FROM revocations) r",
    "describe hidden": "DESCRIBE sessions",
    "pivot hidden": "SELECT * FROM (PIVOT sessions ON channel IN ('train') USING count(*))",
    "another catalog": "SELECT * FROM system.main.duckdb_settings",
    "information schema": "SELECT * FROM information_schema.tables",
    "settings": "SELECT * FROM duckdb_settings()",
    "secrets": "SELECT * FROM duckdb_secrets()",
    "other queries": "SELECT * FROM duckdb_prepared_statements()",
    "getenv": "SELECT getenv('HOME')",
    "getenv in an order": "SELECT 1 ORDER BY getenv('HOME')",
    "getvariable": "SELECT getvariable('x')",
    "current_setting": "SELECT current_setting('memory_limit')",
    "sequence": "SELECT nextval('s')",
    "setseed": "SELECT setseed(0.5)",
    "write_log": "SELECT write_log('x')",
    "sleep": "SELECT sleep_ms(100000)",
    "pg_sleep": "SELECT pg_sleep(1000)",
    "scan memory": "SELECT * FROM arrow_scan(1, 2, 3)",
    "scan memory too": "SELECT * FROM pandas_scan(12345)",
    "python": "SELECT * FROM python_map_function()",
    "a python variable": "SELECT * FROM secret_of_this_process",
    "much of little": "SELECT repeat('x', 2000000000)",
    "a long list": "SELECT range(10000000000)",
    "a long list, called otherwise": "SELECT main.generate_series(1, 10000000000)",
    "a method": "SELECT 'x'.repeat(2000000000)",
    "a function in a lambda": "SELECT list_transform([1], lambda x: getenv('HOME'))",
    "a function in a table function": "SELECT * FROM range(nextval('s'))",
    "a subquery in a table function": "SELECT * FROM unnest((SELECT list(key_sha256) FROM sessions))",
    "a function in a window": "SELECT sum(1) OVER (ORDER BY getenv('HOME'))",
    "an unknown function": "SELECT system('ls')",
    "a placeholder": "SELECT ?",
    "dollar placeholder": "SELECT $x",
    "nonsense": "SELEC 1",
}

secret_of_this_process = [{"x": 1}]


def step(index: int) -> Step:
    return Step(
        f"s{index}", f"t{index // 5}", "p", index % 5, float(index), prompt_ids=[1, 2], response_ids=[index], reward=1.0
    )


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    pool = Pool.open(tmp_path_factory.mktemp("console") / "pool.duckdb", memory="500MB")
    pool.steps.append(
        [step(i) for i in range(50)], sessions=[{"key_sha256": "k", "trajectory_uid": "t", "channel": "c"}]
    )
    pool.labels.annotate([Annotation("tag", "x", "a", "human", 1.0, step_uid="s0")])
    yield pool
    pool.close()


def state(pool: Pool) -> str:
    """All that a query could have changed."""
    seen = [
        pool.steps.page(limit=None).to_pylist(),
        pool.labels.actions(),
        pool.journal.sessions(),
        pool.sql.schema(),
        pool.n_writes,
    ]
    return hashlib.sha256(repr(seen).encode()).hexdigest()


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused_and_changes_nothing(name: str, pool: Pool, tmp_path: Path) -> None:
    file = tmp_path / "there.csv"
    file.write_text("a\n1\n")
    before = state(pool)
    with pytest.raises(InvalidInput) as caught:
        pool.sql.run(ATTACKS[name].replace("{file}", str(file)))
    assert caught.value.field == "sql"
    assert state(pool) == before
    assert file.read_text() == "a\n1\n"
    assert list(tmp_path.iterdir()) == [file]
    assert pool.sql.run("SELECT 1 AS x").table.to_pylist() == [{"x": 1}], "the console lives on"


OUTSIDE = [
    "INSERT INTO actions SELECT * FROM actions",
    "DELETE FROM steps",
    "CREATE TABLE x (i INTEGER)",
    "SELECT * FROM read_text('{file}')",
    "SELECT * FROM '{file}'",
    "SELECT * FROM secret_of_this_process",
    "COPY (SELECT 1) TO '{file}'",
    "ATTACH '{file}' AS other",
    "INSTALL httpfs",
    "SET GLOBAL enable_external_access = true",
    "SET threads = 64",
    "EXPORT DATABASE '{file}'",
]


@pytest.mark.parametrize("statement", OUTSIDE)
def test_the_database_holds_without_the_check(statement: str, pool: Pool, tmp_path: Path) -> None:
    """The walls behind the parser: what the check would miss, a reading cursor still cannot do."""
    file = tmp_path / "there.csv"
    file.write_text("a\n1\n")
    before = state(pool)
    with pytest.raises(duckdb.Error), pool._db.read() as cursor:
        cursor.execute(statement.replace("{file}", str(file))).fetchall()
    assert state(pool) == before
    assert file.read_text() == "a\n1\n"
    assert list(tmp_path.iterdir()) == [file]


QUESTIONS = {
    "SELECT count(*) AS n FROM step_state": [{"n": 50}],
    "FROM step_state SELECT count(*) AS n;": [{"n": 50}],
    "SELECT 1 AS x -- a comment": [{"x": 1}],
    "WITH q AS (SELECT step_uid FROM main.step_state) SELECT count(*) AS n FROM q": [{"n": 50}],
    "WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM r WHERE i < 5) SELECT sum(i)::INT AS s FROM r": [
        {"s": 15}
    ],
    "VALUES (1), (2)": [{"col0": 1}, {"col0": 2}],
    "SELECT t.trajectory_uid AS t, avg(s.reward) AS r FROM step_state s JOIN trajectory_state t USING (trajectory_id)"
    " GROUP BY ALL HAVING count(*) > 1 ORDER BY t LIMIT 1": [{"t": "t0", "r": 1.0}],
    "SELECT i AS i FROM range(3) r(i) WHERE i IN (SELECT unnest([1, 2])) ORDER BY i DESC": [{"i": 2}, {"i": 1}],
    "SELECT list_transform([1, 2], lambda x: x + 1) AS l, [y * 2 FOR y IN [3]] AS m": [{"l": [2, 3], "m": [6]}],
    "SELECT json_extract_string('{\"a\": 1}', '$.a') AS a, '{\"a\": 2}'::JSON->>'a' AS b": [{"a": "1", "b": "2"}],
    "SELECT row_number() OVER (ORDER BY step_id) AS n, median(reward) OVER () AS q FROM step_state LIMIT 1": [
        {"n": 1, "q": 1.0}
    ],
    "SELECT CASE WHEN coalesce(NULL, 1) BETWEEN 0 AND 2 THEN 'y' END AS c, 'abc' LIKE 'a%' AS l, 7 // 2 AS d": [
        {"c": "y", "l": True, "d": 3}
    ],
    "SELECT * FROM (PIVOT (SELECT channel, reward FROM step_state) ON channel IN ('train') USING sum(reward))": [
        {"train": 50.0}
    ],
    "SELECT 1 AS x UNION SELECT 2 ORDER BY x": [{"x": 1}, {"x": 2}],
    "SELECT DISTINCT ON (channel) channel, date_trunc('day', created_at)::DATE::VARCHAR AS d FROM step_state": [
        {"channel": "train", "d": "1970-01-01"}
    ],
    "SELECT grouping(channel) AS g, count(*) AS n FROM step_state GROUP BY CUBE (channel) ORDER BY g": [
        {"g": 0, "n": 50},
        {"g": 1, "n": 50},
    ],
    "SELECT regexp_extract('a1', '[0-9]') AS r, strftime(TIMESTAMP '2020-01-02', '%Y') AS y": [
        {"r": "1", "y": "2020"}
    ],
    "SELECT NULL AS x": [{"x": None}],
}  # fmt: skip


@pytest.mark.parametrize("query", QUESTIONS)
def test_a_question_is_answered(query: str, pool: Pool) -> None:
    answer = pool.sql.run(query)
    assert answer.table.to_pylist() == QUESTIONS[query]
    assert not answer.truncated
    assert answer.elapsed_s >= 0


def test_describe_and_summarize(pool: Pool) -> None:
    described = pool.sql.run("DESCRIBE step_state").table.to_pylist()
    assert described[0]["column_name"] == "step_id"
    assert pool.sql.run("SUMMARIZE trajectory_state").table.num_rows > 10


def test_the_row_limit_says_that_there_was_more(pool: Pool) -> None:
    assert pool.sql.run("SELECT step_uid FROM step_state", limit=50).truncated is False
    cut = pool.sql.run("SELECT step_uid FROM step_state ORDER BY step_id", limit=49)
    assert (cut.table.num_rows, cut.truncated) == (49, True)
    began = time.monotonic()
    cut = pool.sql.run("SELECT * FROM range(10000000)", limit=10_000)
    assert (cut.table.num_rows, cut.truncated) == (10_000, True)
    assert time.monotonic() - began < 60
    hidden = pool.sql.run("SELECT 1 AS x FROM range(5) -- LIMIT 2", limit=3)
    assert (hidden.table.num_rows, hidden.truncated) == (3, True)
    with pytest.raises(InvalidInput):
        pool.sql.run("SELECT 1", limit=0)


def test_wide_rows_end_at_a_number_of_bytes(pool: Pool) -> None:
    wide = pool.sql.run(
        "SELECT string_agg(md5(i::VARCHAR), '') AS s FROM range(2000000) r(i) GROUP BY i % 500", limit=10_000
    )
    assert wide.truncated is False or wide.table.nbytes >= 64 << 20
    assert wide.table.nbytes < 256 << 20


def test_a_query_that_never_ends_is_stopped(pool: Pool) -> None:
    endless = "SELECT sum(a.i * b.i * c.i) FROM range(1000000) a(i), range(1000000) b(i), range(1000000) c(i)"
    began = time.monotonic()
    with pytest.raises(InvalidInput, match=r"0\.3 seconds"):
        pool.sql.run(endless, timeout_s=0.3)
    assert time.monotonic() - began < 60
    with pytest.raises(InvalidInput, match="Stopped"):
        pool.sql.run(
            "WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM r) SELECT sum(i) FROM r", timeout_s=0.3
        )
    assert not any(thread.name == "sql-watch" for thread in threading.enumerate())


def test_more_memory_than_there_is_is_refused(pool: Pool) -> None:
    with pytest.raises(InvalidInput):
        pool.sql.run("SELECT list(hash(a.i, b.i)) FROM range(100000) a(i), range(10000) b(i)", timeout_s=30)


def test_only_so_many_at_once(pool: Pool) -> None:
    endless = "SELECT sum(a.i * b.i * c.i) FROM range(1000000) a(i), range(1000000) b(i), range(1000000) c(i)"
    errors: list[StudioError] = []

    def ask() -> None:
        try:
            pool.sql.run(endless, timeout_s=2.5)
        except StudioError as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(error.type for error in errors) == ["conflict", "invalid_input", "invalid_input"]
    pool.steps.append([step(50)])  # writes go on beside queries


def test_the_schema_explains_itself(pool: Pool) -> None:
    tables = {table["table"]: table for table in pool.sql.schema()}
    assert {"steps", "step_state", "trajectory_state", "annotations", "step_tokens"} <= tables.keys()
    assert not {"sessions", "revocations"} & tables.keys()
    columns = {column["name"]: column for column in tables["step_tokens"]["columns"]}
    assert columns["response_logprobs"]["type"] == "FLOAT[]"
    assert "natural log" in columns["response_logprobs"]["doc"]
    assert "said about a trajectory" in tables["trajectory_events"]["doc"]
    for name in tables:
        assert pool.sql.run(f"SELECT * FROM {name} LIMIT 1").table.num_columns == len(tables[name]["columns"])


def test_steps_and_trajectories_have_readable_names(tmp_path: Path) -> None:
    pool = Pool.open(tmp_path / "pool.duckdb", memory="500MB")
    try:
        cut = dict(finish_reason="length", metadata={"run": "a"}, agent="one")
        steps = [
            Step(f"s{i}", f"t{i // 2}", "p", i % 2, float(i), prompt_ids=[1], response_ids=[i], reward=1.0,
                 **(cut if i == 3 else {}))
            for i in range(4)
        ]  # fmt: skip
        pool.steps.append(steps)
        pool.labels.annotate([Annotation("reward", 0.25, "a", "human", 1.0, step_uid="s3")])
        columns = "step_uid, trajectory_uid, agent, reward, captured_reward, findings, metadata->>'run' AS run"
        rows = pool.sql.run(f"SELECT {columns} FROM steps ORDER BY step_uid").table.to_pylist()
        assert rows[3] == {
            "step_uid": "s3", "trajectory_uid": "t1", "agent": "one", "reward": 0.25, "captured_reward": 1.0,
            "findings": ["truncated"], "run": "a",
        }  # fmt: skip
        assert [row["findings"] for row in rows[:3]] == [[]] * 3
        assert [row["trajectory_uid"] for row in rows] == [one.trajectory_uid for one in steps]
        # A condition and a limit are applied where the table is read.
        one = pool.sql.run("SELECT * FROM steps WHERE trajectory_uid = 't0'").table
        assert sorted(one["step_uid"].to_pylist()) == ["s0", "s1"]
        assert pool.sql.run("SELECT * FROM steps", limit=3).truncated
        joined = pool.sql.run(
            "SELECT t.trajectory_uid AS uid, t.findings, count(*) AS n FROM trajectories t JOIN steps s"
            " ON s.trajectory_uid = t.trajectory_uid GROUP BY ALL ORDER BY uid"
        ).table.to_pylist()
        assert joined == [{"uid": "t0", "findings": [], "n": 2}, {"uid": "t1", "findings": ["truncated"], "n": 2}]
        assert pool.sql.run("SELECT count(*) AS n FROM steps").table.to_pylist() == [{"n": 4}]
        listed = {table["table"]: table for table in pool.sql.schema()}
        for name in ("steps", "trajectories"):
            undocumented = [column["name"] for column in listed[name]["columns"] if not column["doc"]]
            assert listed[name]["doc"] and not undocumented
    finally:
        pool.close()
