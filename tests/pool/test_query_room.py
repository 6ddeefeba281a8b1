"""The copies of what a query reads are bounded for all its tables, leave the disk room, and outlive no process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.errors import InvalidInput, NoRoom
from core.pool import Pool
from core.pool.sql import runner
from core.types import Step
from tests.survival.test_full_disk import small_disk

N = 60
WIDE = 20_000
"""Token ids of a step: 80 kB."""


def filled(folder: Path) -> Pool:
    pool = Pool.open(folder / "pool.duckdb", memory="500MB")
    # The numbers can't be compressed, in the file or in a copy.
    ids = [list(range(k, k + WIDE * 7919, 7919)) for k in range(N)]
    said = {"note": "x" * 5_000}
    pool.steps.append(
        [Step(f"s{k}", f"t{k}", "p", 0, float(k), prompt_ids=ids[k], response_ids=[1], metadata=said) for k in range(N)]
    )
    return pool


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    pool = filled(tmp_path)
    yield pool
    pool.close()


def free_bytes(disk: Path) -> int:
    room = os.statvfs(disk)
    return room.f_bavail * room.f_frsize


TOKENS = "SELECT sum(len(prompt_suffix)) FROM step_tokens"
TWICE = f"SELECT ({TOKENS}) + (SELECT count(DISTINCT metadata) FROM steps)"
"""The metadata of a step has 5 kB."""


def test_all_tables_of_a_query_count_together(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    one = pool.sql.run(TOKENS).table.column(0).to_pylist()
    assert one == [N * WIDE]
    # Enough for the tokens, 4 bytes each and some for the rows, and not for another table beside them.
    monkeypatch.setattr(runner, "MAX_READ", N * (WIDE * 4 + 2_600))
    assert pool.sql.run(TOKENS).table.column(0).to_pylist() == one
    with pytest.raises(InvalidInput, match=r"reads more than .*step\w* goes beyond"):
        pool.sql.run(TWICE)
    assert pool.sql.run("SELECT count(DISTINCT step_uid) FROM step_state").table.num_rows == 1


def test_a_copy_takes_no_more_than_its_share_of_a_small_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    small_disk(disk, "size=32m")
    try:
        pool = filled(disk)
        assert pool.sql.run(TOKENS).table.num_rows == 1
        # The worker closes the first copy, of about 5 MiB, a moment after its answer.
        deadline = time.monotonic() + 30
        while free_bytes(disk) < 26 << 20 and time.monotonic() < deadline:
            time.sleep(0.02)
        (disk / "ballast").write_bytes(b"x" * (free_bytes(disk) - (6 << 20)))
        with pytest.raises(NoRoom, match=r"has only [56] MiB free"):
            pool.sql.run(TOKENS)
        assert free_bytes(disk) > 5 << 20, "something of the copy was left"
        assert pool.sql.run("SELECT count(*) FROM steps").table.column(0).to_pylist() == [N]
        (disk / "ballast").unlink()
        assert pool.sql.run(TOKENS).table.column(0).to_pylist() == [N * WIDE]
        pool.close()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


COPYING = """
import sys, time
from pathlib import Path
from core.pool import Pool
from core.pool.sql import runner
take = runner.CopyBudget.take
def slow(self, n_bytes, table):
    take(self, n_bytes, table)
    print("copying", flush=True)
    self.taken = getattr(self, "taken", 0) + 1
    if self.taken == 3: time.sleep(600)
runner.CopyBudget.take, runner.EXPORT_ROWS = slow, 8
Pool.open(Path(sys.argv[1]), memory="500MB").sql.run(sys.argv[2], timeout_s=120)
"""


def test_a_kill_in_the_middle_of_a_copy_leaves_no_file(tmp_path: Path) -> None:
    filled(tmp_path).close()
    there = {path.name for path in tmp_path.iterdir()}
    command = [
        sys.executable,
        "-c",
        COPYING,
        str(tmp_path / "pool.duckdb"),
        "SELECT sum(len(prompt_suffix)) FROM step_tokens",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(3):
            assert process.stdout.readline().strip() == "copying"
        held = Path(f"/proc/{process.pid}/fd")
        unnamed = [str(fd.readlink()) for fd in held.iterdir() if str(tmp_path) in str(fd.readlink())]
        assert any(name.endswith("(deleted)") for name in unnamed)
        process.kill()
    assert {path.name for path in tmp_path.iterdir()} - there <= {"pool.duckdb.wal"}


MANY_DESCRIPTORS = """
import os, resource, sys
from pathlib import Path
from core.pool import Pool
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
pool = Pool.open(Path(sys.argv[1]) / "pool.duckdb", memory="200MB")
held = [os.open("/dev/null", os.O_RDONLY) for _ in range(1500)]
print(pool.sql.run("SELECT count(*) FROM steps").table.column(0).to_pylist())
pool.close()
"""


def test_a_process_with_many_connections_answers_queries(tmp_path: Path) -> None:
    """Descriptors over 1023 are what ``select(2)`` can't wait for."""
    done = subprocess.run(
        [sys.executable, "-c", MANY_DESCRIPTORS, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "[0]\n", done.stderr[-2000:]
