"""kill -9 in the middle of bulk edits, undo and redo: each is there whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from core.pool import Pool
from core.types import Step

EDITOR = """
import sys
from core.pool import Pool
from core.types import View
pool = Pool.open(sys.argv[1], memory="512MB")
k = int(sys.argv[2])
while True:
    print("begin", flush=True)
    view = View({}, f"step_index >= {k % 7}")
    uid, n = pool.labels.annotate_view(view, "step", "tag", f"tag-{k}", author="a", source="human")
    print("made", uid, n, flush=True)
    other, n = pool.labels.annotate_view(View(), "trajectory", "reward", float(k), author="a", source="human")
    pool.labels.undo(uid)
    print("undone", uid, flush=True)
    pool.labels.redo(uid)
    print("redone", uid, flush=True)
    pool.labels.annotate_view(view, "trajectory", "tag", f"whole-{k}", author="a", source="human")
    pool.labels.undo(other)
    k += 1
"""


def test_a_killed_bulk_edit_leaves_all_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "pool.duckdb"
    pool = Pool.open(path, memory="512MB")
    pool.steps.append(
        [
            Step(f"s{t}.{i}", f"t{t}", f"p{t % 5}", i, float(i), prompt_ids=[1], response_ids=[i])
            for t in range(40)
            for i in range(20)
        ]
    )
    pool.close()
    for k, wait_s in enumerate((0.0, 0.12, 0.35)):
        process = subprocess.Popen(
            [sys.executable, "-c", EDITOR, str(path), str(k * 100)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "begin\n"
        time.sleep(wait_s)
        os.kill(process.pid, signal.SIGKILL)
        lines = [line.split() for line in process.stdout.read().splitlines()]
        process.wait()
        process.stdout.close()

        pool = Pool.open(path, memory="512MB")
        actions = {action["action_uid"]: action for action in pool.labels.actions(10_000)}
        stored = pool.sql.run(
            "SELECT x.action_uid, count(*) AS n FROM annotations a JOIN actions x USING (action_id) GROUP BY ALL"
        ).table.to_pylist()
        assert {row["action_uid"]: row["n"] for row in stored} == {
            uid: action["n_annotations"] for uid, action in actions.items()
        }
        last: dict[str, str] = {}
        for word, *rest in lines:
            if word in ("made", "undone", "redone"):
                assert rest[0] in actions, "what was answered is there"
                last[rest[0]] = word
        for uid, word in list(last.items())[:-1]:
            assert actions[uid]["undone"] == (word == "undone")
        before = (pool.steps.page(limit=None).to_pylist(), pool.trajectories.page(limit=None).to_pylist())
        pool.integrity.rebuild_state()
        assert (pool.steps.page(limit=None).to_pylist(), pool.trajectories.page(limit=None).to_pylist()) == before
        pool.close()
