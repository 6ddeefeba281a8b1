"""What an attacker would write into the SQL console and the WHERE box: ways out of it, and ways to exhaust it."""

from __future__ import annotations

_READERS = (
    "read_csv", "read_csv_auto", "read_text", "read_blob", "read_json", "read_json_auto", "read_ndjson",
    "read_json_objects", "read_ndjson_objects", "read_parquet", "parquet_scan", "parquet_metadata", "parquet_schema",
    "parquet_file_metadata", "parquet_kv_metadata", "sniff_csv", "glob", "read_duckdb", "read_xlsx", "st_read",
    "sqlite_scan", "postgres_scan", "mysql_scan", "iceberg_scan", "delta_scan",
)  # fmt: skip
_CATALOGUE = (
    "duckdb_settings()", "duckdb_secrets()", "duckdb_extensions()", "duckdb_databases()", "duckdb_tables()",
    "duckdb_columns()", "duckdb_functions()", "duckdb_variables()", "duckdb_logs()", "duckdb_temporary_files()",
    "duckdb_prepared_statements()", "duckdb_external_file_cache()", "duckdb_connection_count()", "duckdb_memory()",
    "pragma_database_size()", "pragma_version()", "pragma_platform()", "pragma_user_agent()",
    "pragma_table_info('sessions')", "pragma_storage_info('sessions')", "pragma_collations()",
    "pragma_metadata_info()", "which_secret('s3://x', 's3')", "checkpoint()", "force_checkpoint()",
    "enable_logging()", "disable_logging()", "enable_profiling()", "test_all_types()", "repeat('x', 100000000)",
    "repeat_row('x', num_rows = 100000000)", "summary((SELECT 1))", "seq_scan('sessions')", "index_scan('sessions')",
    "arrow_scan(1, 2, 3)", "arrow_scan_dumb(1, 2, 3)", "pandas_scan(4096)", "python_map_function()",
    "query('SELECT * FROM sessions')", "query_table('sessions')", "sql_auto_complete('SELECT * FROM ')",
    "json_execute_serialized_sql(json_serialize_sql('SELECT * FROM sessions'))", "histogram('sessions', 'key_sha256')",
    "histogram_values('sessions', 'key_sha256')",
)  # fmt: skip
_STATEMENTS = (
    "COPY steps TO '{out}'", "COPY (SELECT 1) TO '{out}' (FORMAT parquet)", "COPY steps FROM '{file}'",
    "COPY FROM DATABASE pool TO memory", "EXPORT DATABASE '{out}'", "IMPORT DATABASE '{folder}'",
    "ATTACH '{out}' AS x", "ATTACH ':memory:' AS x", "ATTACH '{pool}' AS x (READ_ONLY)", "DETACH pool", "USE memory",
    "INSTALL httpfs", "FORCE INSTALL httpfs FROM community", "INSTALL '{file}'", "LOAD httpfs", "LOAD '{file}'",
    "UPDATE EXTENSIONS", "SET enable_external_access = true", "SET GLOBAL memory_limit = '100GB'",
    "SET SESSION threads = 64", "SET lock_configuration = false", "SET temp_directory = '{folder}'",
    "SET home_directory = '{folder}'", "SET log_query_path = '{out}'", "SET profiling_output = '{out}'",
    "SET allow_unsigned_extensions = true", "SET VARIABLE x = getenv('CANARY')", "RESET memory_limit",
    "PRAGMA enable_profiling", "PRAGMA database_list", "PRAGMA show_tables", "PRAGMA memory_limit = '100GB'",
    "PRAGMA import_database('{folder}')", "CALL pragma_version()", "CALL checkpoint()", "CHECKPOINT", "VACUUM",
    "ANALYZE", "BEGIN", "COMMIT", "ROLLBACK", "PREPARE p AS SELECT 1", "EXECUTE p", "DEALLOCATE p",
    "CREATE SECRET s (TYPE s3, KEY_ID 'k', SECRET 's')", "CREATE PERSISTENT SECRET s (TYPE s3)", "DROP SECRET s",
    "CREATE TABLE x AS SELECT 1", "CREATE TEMP VIEW x AS SELECT 1", "CREATE MACRO f(x) AS x", "CREATE SEQUENCE s",
    "CREATE TYPE t AS ENUM ('a')", "CREATE SCHEMA x", "CREATE INDEX i ON steps (step_id)", "DROP TABLE steps",
    "ALTER TABLE steps RENAME TO x", "COMMENT ON TABLE steps IS 'x'", "INSERT INTO actions SELECT * FROM actions",
    "UPDATE step_state SET reward = 1", "DELETE FROM steps", "TRUNCATE steps", "EXPLAIN ANALYZE DELETE FROM steps",
    "EXPLAIN SELECT * FROM '{file}'", "DESCRIBE '{file}'", "SUMMARIZE '{file}'", "SHOW ALL TABLES", "SHOW DATABASES",
    "SELECT 1; COPY steps TO '{out}'", "SELECT 1;;SELECT 2", "SELECT 1 /* ; */; DELETE FROM steps --",
)  # fmt: skip
_SELECTS = (
    "SELECT * FROM '{file}'", 'SELECT * FROM "{file}"', "FROM '{folder}/*.csv'", "SELECT * FROM 'file://{file}'",
    "SELECT * FROM 'http://127.0.0.1:1/x.csv'", "SELECT * FROM 's3://bucket/x.parquet'", "SELECT * FROM '/dev/stdin'",
    "SELECT * FROM '/proc/self/environ'", "SELECT * FROM '/proc/self/fd/3'", "SELECT * FROM '{pool}'",
    "/**/SELECT/**/*/**/FROM/**/'{file}'", "SELECT\u00a0*\u00a0FROM\u00a0'{file}'", "SELECT * FROM U&'\\002Fetc'",
    "SELECT * FROM $$" + "{file}" + "$$", "SELECT (SELECT max(x) FROM '{file}' t(x))",
    "SELECT 1 WHERE EXISTS (FROM '{file}')", "WITH q AS (FROM '{file}') FROM q",
    "WITH RECURSIVE r AS (SELECT 1 UNION ALL SELECT x FROM '{file}' t(x)) FROM r",
    "SELECT * FROM steps, LATERAL (FROM '{file}')", "SELECT * FROM (PIVOT '{file}' ON canary USING count(*))",
    "SELECT * FROM (UNPIVOT '{file}' ON *)", "SELECT getenv('CANARY')", "SELECT GETENV('CANARY')",
    'SELECT "getenv"(\'CANARY\')', "SELECT main.getenv('CANARY')", "SELECT system.main.getenv('CANARY')",
    "SELECT 'CANARY'.getenv()", "SELECT list_transform(['CANARY'], lambda x: getenv(x))",
    "SELECT list_reduce(['CANARY', ''], lambda x, y: getenv(x))", "SELECT list_apply(['CANARY'], x -> getenv(x))",
    "SELECT [getenv(x) FOR x IN ['CANARY']]", "SELECT 1 ORDER BY getenv('CANARY')", "SELECT 1 LIMIT getenv('CANARY')",
    "SELECT * FROM range(length(getenv('CANARY')))", "SELECT sum(1) FILTER (getenv('CANARY') = 'x')",
    "SELECT CASE WHEN TRUE THEN getenv('CANARY') END", "SELECT g\u0435tenv('CANARY')", "SELECT ｇetenv('CANARY')",
    "SELECT current_setting('home_directory')", "SELECT getvariable('x')", "SELECT current_query()",
    "SELECT nextval('s')", "SELECT setseed(0.5)", "SELECT write_log('x')", "SELECT sleep_ms(100000)",
    "SELECT * FROM sessions", "SELECT * FROM main.sessions", "SELECT * FROM pool.main.sessions",
    'SELECT * FROM "Sessions"', "SELECT * FROM sessıons", "SELECT s.* FROM (SELECT * FROM sessions) s",
    "SELECT * FROM information_schema.tables", "SELECT * FROM pg_catalog.pg_settings", "SELECT * FROM sqlite_master",
    "SELECT * FROM duckdb_settings", "SELECT * FROM steps AT (VERSION => 1)", "SELECT * FROM read_0_typed",
    "SELECT system('id')", "SELECT load_extension('x')", "SELECT pg_read_file('{file}')", "SELECT xp_cmdshell('id')",
    "SELECT file_exists('{file}')", "SELECT content FROM read_text(['{file}'])", "SELECT ?", "SELECT $1", "SELECT",
    "(" * 3000, "SELECT " + "(" * 3000, "SELECT " + "[" * 40_000, "\x00", "SELECT \x00", "SELEC 1", "--", "/*", "'",
)  # fmt: skip
OUTSIDE = (
    *_STATEMENTS,
    *_SELECTS,
    *(f"SELECT * FROM {name}('{{file}}')" for name in _READERS),
    *(f"SELECT * FROM {call}" for call in _CATALOGUE),
)
"""Refused, each."""

_X = "'aaaaaaaaaa'"


def _replaced(n: int) -> str:
    text = _X
    for _ in range(n):
        text = f"replace({text}, 'a', {_X})"
    return text


def _nested(n: int) -> str:
    text = "1"
    for level in range(n):
        text = f"list_sum(list_transform(l, lambda x{level}: x{level} + {text}))"
    return f"SELECT {text} FROM (SELECT list(i) AS l FROM range(1000) r(i))"


def _joined(n: int) -> str:
    parts = ["c0 AS (SELECT * FROM range(10))"]
    parts += [f"c{i} AS (SELECT a.* FROM c{i - 1} a, c{i - 1} b)" for i in range(1, n)]
    return f"WITH {', '.join(parts)} SELECT count(*) FROM c{n - 1}"


_BIG = "(SELECT string_agg('a', '') FROM range(5000000))"
BOMBS = (
    f"SELECT length({_replaced(12)})", f"SELECT {_replaced(9)}", _nested(4), _joined(28), _joined(12),
    "SELECT length(list_reduce(list_transform((SELECT list(i) FROM range(60) r(i)), lambda x: 'aa'),"
    " lambda x, y: x || x))",
    "SELECT length(bitstring('1', 2000000000))", "SELECT bit_count(bitstring('1', 2147483647))",
    f"SELECT length(regexp_replace({_BIG}, 'a', {_BIG}, 'g'))", f"SELECT len(string_split({_BIG}, ''))",
    f"SELECT len(regexp_split_to_array({_BIG}, 'a'))", f"SELECT levenshtein({_BIG}, {_BIG})",
    f"SELECT damerau_levenshtein({_BIG}, {_BIG})", f"SELECT jaro_winkler_similarity({_BIG}, {_BIG})",
    f"SELECT hamming({_BIG}, {_BIG})", f"SELECT jaccard({_BIG}, {_BIG})",
    f"SELECT regexp_matches({_BIG}, '(a?){{900}}(a?){{900}}b')", f"SELECT {_BIG} LIKE '{'%a_' * 20}b'",
    f"SELECT {_BIG} SIMILAR TO '(a*)*(a*)*(a*)*b'", f"SELECT {_BIG} GLOB '{'*a?' * 20}b'",
    f"SELECT regexp_extract_all({_BIG}, 'a*?')", f"SELECT translate({_BIG}, 'a', {_BIG})",
    f"SELECT hex({_BIG}) || hex(hex({_BIG}))", f"SELECT list_transform(range, x -> x) FROM range({10**12})",
    "WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM r) SELECT max(i) FROM r",
    "WITH RECURSIVE r AS (SELECT 'a' AS t UNION ALL SELECT t || t FROM r) SELECT max(length(t)) FROM r",
    "WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT i FROM r, range(100)) SELECT count(*) FROM r",
    "SELECT count(*) FROM range(1000000) a, range(1000000) b, range(1000000) c",
    "SELECT list(a.range ORDER BY hash(b.range)) FROM range(100000) a, range(100000) b",
    "SELECT string_agg(md5(a.range::VARCHAR), '') FROM range(100000) a, range(1000) b",
    "SELECT DISTINCT a.range, b.range FROM range(100000) a, range(100000) b ORDER BY ALL LIMIT 5",
    "SELECT row_number() OVER (ORDER BY hash(a.range, b.range)) FROM range(100000) a, range(100000) b",
    "SELECT a.range % 7, count(DISTINCT b.range) FROM range(100000) a, range(100000) b GROUP BY CUBE (1)",
    "SELECT histogram(a.range * b.range) FROM range(100000) a, range(100000) b",
    "SELECT median(a.range * b.range), mode(a.range) FROM range(100000) a, range(100000) b",
    "SELECT * FROM range(1000000000)", "SELECT * FROM generate_series(1, 10000000000000)",
    f"SELECT {_BIG} AS a, {_BIG} AS b FROM range(100000)", "SELECT unnest(range(1000000)) FROM range(1000000)",
    "SELECT unnest([1, 2]), unnest([1, 2]) FROM range(100000000)",
    "SELECT * FROM (PIVOT (SELECT range AS i, range % 5000 AS k FROM range(1000000)) ON k USING sum(i))",
    f"SELECT {', '.join(f'{i} AS c{i}' for i in range(5000))} FROM range(1000000)",
    f"SELECT {'+'.join(['range'] * 900)} FROM range(100000000)",
    f"SELECT 1 WHERE 1 IN ({', '.join(map(str, range(15_000)))})",
    f"SELECT {'list_value(' * 400}1{')' * 400}", f"SELECT * FROM {', '.join(['range(10)'] * 30)}",
    "SELECT factorial(2000000000)", "SELECT 10::HUGEINT ** 100000", "SELECT pow(10, 1e308)",
    "SELECT list_distinct(list_concat(l, l)) FROM (SELECT list(range) AS l FROM range(10000000))",
    "SELECT list_sort(l) FROM (SELECT list(hash(range)) AS l FROM range(30000000))",
    "SELECT array_cross_product(a, a) FROM (SELECT [1., 2., 3.]::DOUBLE[3] AS a FROM range(1000000000))",
    "SELECT json_group_array(json_object('a', range)) FROM range(30000000)",
    f"SELECT json('{'[' * 20_000}{']' * 20_000}')", "SELECT date_trunc('day', range(1000000000)::DATE)",
    "SELECT unnest(generate_series(TIMESTAMP '0001-01-01', TIMESTAMP '9999-01-01', INTERVAL 1 SECOND))",
    "SELECT encode(repeat('a', 1000000000))", "SELECT rpad('a', 2000000000, 'b'), lpad('a', 2000000000, 'b')",
    "SELECT printf('%2000000000d', 1), format('{:2000000000}', 1), bar(1, 0, 1, 2000000000)",
    "SELECT concat_ws(s, s, s, s) FROM (SELECT string_agg(s, s) AS s FROM (SELECT 'aaaaaaaa' AS s FROM range(30000)))",
    "SELECT list_zip(l, l, l), list_slice(l, 1, -1, 1), flatten([l, l])"
    " FROM (SELECT list(range) AS l FROM range(30000000))",
)  # fmt: skip
"""Refused, or bounded in time, memory and rows."""

WHERE = (
    f"length({_replaced(12)}) > 0", f"{_replaced(9)} = 'x'",
    "length(list_reduce([agent, agent], lambda x, y: x || x)) > 0", "bit_count(bitstring('1', 2000000000)) > 0",
    "regexp_replace(preview, '', preview, 'g') = 'x'", "len(string_split(preview, '')) > 0",
    f"levenshtein(preview, '{'a' * 9000}') > 3",
    "list_transform([1], lambda x: list_transform([1], lambda y: x)) = [1]",
    f"regexp_matches('{'a' * 5000}', '(((a?){{900}}){{900}}){{900}}b')", "regexp_matches(preview, preview)",
    f"regexp_matches(preview, '{'a?' * 800}')", f"'{'a' * 5000}' LIKE '{'%a_' * 100}b'",
    f"preview ILIKE '{'%a_' * 100}b'", "preview LIKE preview", "preview SIMILAR TO '(a*)*b'", "preview GLOB '*a*a*b'",
    "repeat('x', 2000000000) = preview", "lpad('x', 2000000000, 'y') = preview", "range(10000000000) = [1]",
    "agent IN (SELECT content FROM read_text('{file}'))", "EXISTS (FROM '{file}')", "(SELECT 1 FROM '{file}') = 1",
    "(FROM sessions SELECT max(key_sha256)) = 'x'", "getenv('CANARY') = 'x'", "GETENV('CANARY') = 'x'",
    "main.getenv('CANARY') = 'x'", "'CANARY'.getenv() = 'x'", "current_setting('home_directory') = 'x'",
    "1 = 1) UNION SELECT content FROM read_text('{file}') WHERE (1 = 1", "1 = 1); COPY steps TO '{out}'; SELECT (1 = 1",
    "1 = 1) -- ", "1 = 1 /*", "TRUE] , [getenv('CANARY')", "nextval('s') = 1", "sleep_ms(100000) IS NULL", "?", "$x",
    "COLUMNS(*) IS NULL", "* IS NULL", "count(*) > 1", "row_number() OVER () > 1", "unnest([TRUE])", "agent.x.y = 1",
    "(WITH RECURSIVE r AS (SELECT 1 UNION ALL SELECT 1 FROM r) SELECT count(*) FROM r) > 1", "(" * 4990, "(" * 500,
    "- " * 4900 + "1 = 1", "NOT " * 2400 + "TRUE", "[" * 4900, "CASE WHEN " * 900, "abs(" * 2000, "'", '"', "$$",
    "\x00",
    " OR ".join(["agent = 'x'"] * 600), " || ".join(["preview"] * 900) + " = 'x'",
    " || ".join(["error"] * 190) + " = 'x'", "[" + ", ".join(["error"] * 900) + "] = ['x']",
    " OR ".join(f"lower(error) = '{n}'" for n in range(190)), "lower(upper(" * 45 + "error" + "))" * 45 + " = 'x'",
    "list_contains([" + ", ".join(["lower(error)"] * 150) + "], 'x')",
    "greatest(" + ", ".join(["error || model"] * 90) + ") = 'x'",
    "CASE " + " ".join(f"WHEN {n} = n_notes THEN error || '{n}'" for n in range(90)) + " ELSE 'y' END = 'x'",
    " OR ".join(f"regexp_matches(error, '(a|b|x)*{n}c.{{300}}d')" for n in range(45)),
    " OR ".join(f"regexp_matches(error, '{n}')" for n in range(300)), " OR ".join(["error LIKE '%a%b%c'"] * 300),
    " OR ".join(f"CAST(error || '{n}' AS VARCHAR) = 'x'" for n in range(99)), "error = model OR lower(error) = model",
    "x" * 10_001, "list_resize([1], 2000000000) = [1]", "printf('%2000000000d', 1) = preview",
)  # fmt: skip
"""Refused, or answered quickly."""
