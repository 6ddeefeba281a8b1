"""A read of lists meets a commit that adds rows: the library alone says "Corrupted", the pool does not.

The meeting takes nanoseconds. Here a library in front of the C library's makes it last: a copy of 251 list offsets,
which is what the read does between its two looks at the column's end, waits for the commit. The reference is DuckDB
itself.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from core.pool.store.readcommitlock import ReadCommitLock
from tests.left_out import missing

ROOT = Path(__file__).parents[2]
SLOW_COPY = """
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>
void *memmove(void *, const void *, size_t);
void *memcpy(void *to, const void *from, size_t n) {
    static int met = 0;
    if (n == 251 * 8 && access("armed", F_OK) == 0 && __sync_bool_compare_and_swap(&met, 0, 1)) {
        close(open("inside", O_CREAT | O_WRONLY, 0600));
        for (int left = atoi(getenv("MAX_MS")); left > 0 && access("added", F_OK) != 0; left--) usleep(1000);
    }
    return memmove(to, from, n);
}
"""
MEET = """
import pathlib, sys, threading, time
import duckdb
from core.errors import StudioError
from core.pool.store.database import Database

ROWS = "SELECT i * 2 AS a, ['v' || i] AS l FROM range({}) r(i)"
READ = "SELECT * FROM x WHERE a = 3"

def meet(read, add):
    told = []
    def reading():
        try:
            told.append(read())
        except (duckdb.Error, StudioError) as error:
            told.append(f"{type(error).__name__}: {error}")
    pathlib.Path("armed").touch()
    thread = threading.Thread(target=reading)
    thread.start()
    while not pathlib.Path("inside").exists():
        assert thread.is_alive(), told
        time.sleep(0.001)
    add()
    pathlib.Path("added").touch()
    thread.join()
    print(told[0])

if sys.argv[1] == "library":
    connection = duckdb.connect(":memory:", config={"threads": 1})
    connection.execute("CREATE TABLE x (a BIGINT, l VARCHAR[])")
    connection.execute("INSERT INTO x " + ROWS.format(251))
    meet(
        lambda: connection.cursor().execute(READ).fetchall(),
        lambda: connection.cursor().execute("INSERT INTO x " + ROWS.format(30)),
    )
    print(connection.execute("SELECT count(*), sum(len(l)) FROM x").fetchall())
else:
    path = "pool.duckdb"
    with duckdb.connect(path) as connection:
        connection.execute("CREATE TABLE x (a BIGINT, l VARCHAR[])")
        connection.execute("CREATE MACRO hidden() AS TABLE SELECT * FROM x")
    database = Database(path, memory="300MB", threads=1, clock=time.time)
    def add(n):
        with database.write() as cursor:
            cursor.execute("INSERT INTO x " + ROWS.format(n))
    add(251)
    sql = READ if sys.argv[1] == "pool" else READ.replace("x", "hidden()")
    def read():
        with database.read() as cursor:
            return cursor.execute(sql).fetchall()
    meet(read, lambda: add(30))
    with database.read() as cursor:
        print(cursor.execute("SELECT count(*), sum(len(l)) FROM x").fetchall(), database.damage)
    database.close()
"""


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        missing("no C compiler")
    folder = tmp_path_factory.mktemp("slow")
    (folder / "slow.c").write_text(SLOW_COPY)
    made = folder / "slow.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-fno-builtin", "-o", made, folder / "slow.c"], check=True)
    return made


def meet(slow: Path, who: str, path: Path, *, most_ms: int = 30_000) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", MEET, who],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=path,
        env={**os.environ, "LD_PRELOAD": str(slow), "MAX_MS": str(most_ms), "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_library_still_says_corrupted_of_a_whole_file(slow: Path, tmp_path: Path) -> None:
    """Once this fails, the library is mended, and ``core.pool.store.readcommitlock`` can go."""
    lines = meet(slow, "library", tmp_path)
    assert lines[0].endswith("Corrupted fixed-size segment: array count extends past the end of the segment")
    assert lines[1] == "[(281, 281)]"


def test_a_read_of_lists_and_a_commit_take_turns(slow: Path, tmp_path: Path) -> None:
    # The commit waits for the read, so the read waits in vain.
    assert meet(slow, "pool", tmp_path, most_ms=500) == ["[]", "[(281, 281)] None"]


def test_a_false_alarm_is_not_taken_for_damage(slow: Path, tmp_path: Path) -> None:
    lines = meet(slow, "hidden", tmp_path)
    assert lines[0].startswith("PoolError") and "beside a write" in lines[0]
    assert lines[1] == "[(281, 281)] None"


def test_reads_are_together_and_a_commit_is_alone() -> None:
    turns, inside, seen = ReadCommitLock(), [], []
    together = threading.Barrier(3)

    def read() -> None:
        with turns.read():
            together.wait(20)
            inside.append("read")
            seen.append(list(inside))
            inside.remove("read")

    def commit() -> None:
        with turns.commit():
            inside.append("commit")
            time.sleep(0.01)
            seen.append(list(inside))
            inside.remove("commit")

    threads = [threading.Thread(target=one) for one in (read, read, read, commit, commit)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert [one for one in seen if "commit" in one] == [["commit"], ["commit"]]
