"""kill -9 at any moment: what was journalled is in the pool once, in order, with its tokens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import orjson

from core.ingest import Ingest
from core.journal import Journal
from core.pool import Pool
from tests.ingest.recorded import rollout

CHILD = """
import sys, time
from pathlib import Path
from core.ingest import Ingest, thread
from core.pool import Pool
thread.MAX_RECORDS = 7
folder = Path(sys.argv[1])
pool = Pool.open(folder / "pool.duckdb")
ingest = Ingest(folder / "journal", pool, wait=lambda s: time.sleep(s), clock=time.time)
print("begun", flush=True)
while ingest.run_once():
    pass
print("done", flush=True)
time.sleep(60)
"""


def test_kill_9_loses_and_doubles_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", segment_bytes=1 << 16)
    agents = [list(rollout(f"t{n}", turns=10, known=n % 2 == 0, task=f"task {n}")) for n in range(20)]
    records = [agent[turn] for turn in range(10) for agent in agents]
    for future in [journal.append(record) for record in records]:
        future.result()
    n_killed_midway = 0
    for wait_s in (0.0, 0.1, 0.25, 0.4):
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline() == "begun\n"
        time.sleep(wait_s)
        os.kill(child.pid, signal.SIGKILL)
        n_killed_midway += child.stdout.read() == ""
        child.wait()
        child.stdout.close()
    assert n_killed_midway > 0
    pool = Pool.open(tmp_path / "pool.duckdb")
    ingest = Ingest(tmp_path / "journal", pool, wait=journal.wait, clock=time.time)
    assert ingest.catch_up(60)
    stats = pool.stats.totals()
    assert stats["n_steps"] == len(records)
    assert stats["n_trajectories"] == len(agents)
    assert (stats["n_conflicts"], stats["n_ingest_errors"]) == (0, 0)
    for agent in agents:
        first = orjson.loads(agent[0])
        steps = pool.trajectories.get(pool.steps.get(first["step_uid"])["trajectory_uid"])["steps"]
        parsed_records = [orjson.loads(record) for record in agent]
        assert [s["step_uid"] for s in steps] == [r["step_uid"] for r in parsed_records]
        assert [s["step_index"] for s in steps] == list(range(10))
        assert [s["transition"] for s in steps] == [None] + ["extends"] * 9
        for step, record in zip(steps, parsed_records, strict=True):
            assert step["prompt_ids"].tolist() == record["response"]["prompt_token_ids"]
    journal.close()
    pool.close()
