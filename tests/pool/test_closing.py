"""A pool that is closed while somebody reads: the read ends with an error, the process does not."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

PROGRAM = """
import sys, threading, time
from core.pool import Pool

pool = Pool.open(sys.argv[1])
begun, ended = threading.Barrier(4), []

def read():
    try:
        with pool._db.read() as cursor:
            begun.wait()
            cursor.execute("SELECT count(*) FROM range(100000) a, range(100000) b, range(100) c").fetchall()
    except Exception as error:
        ended.append(type(error).__name__)

threads = [threading.Thread(target=read) for _ in range(3)]
for thread in threads:
    thread.start()
begun.wait()
time.sleep(0.3)
pool.close()
for thread in threads:
    thread.join(20)
try:
    pool.steps.count()
except Exception as error:
    ended.append(type(error).__name__)
print(ended)
"""


def test_reads_that_go_on_end_when_the_pool_is_closed(tmp_path: Path) -> None:
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "pool.duckdb")], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout.strip()) == (0, str(["InterruptException"] * 3 + ["PoolError"])), done.stderr
    assert time.monotonic() - start < 60
