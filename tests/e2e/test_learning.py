"""The closed loop in short: the shipped policy gets better through the studio, and not with shuffled rewards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from core.batch.learning import DIFFERENCE_MEAN, updates
from core.pool import Pool
from core.tasks.learn import HELD_OUT_CHANNEL, TRAIN_CHANNEL
from core.trainer import Guard

UPDATES = 10


@pytest.mark.beyond
@pytest.mark.timeout(1500)
def test_the_policy_learns_and_its_control_does_not(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "core.cli", "demo", "--learn", "--json", "--control", "shuffle"]
    command += ["--updates", str(UPDATES), "--data", str(tmp_path / "data")]
    env = {**os.environ, "CLAW_STUDIO_CONFIG": str(tmp_path / "none.toml")}
    printed = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
    events = [json.loads(line) for line in printed.splitlines()]
    assert [one["control"] for one in events if one["event"] == "run"] == [None, "shuffled rewards"]
    assert [one["update"] for one in events if one["event"] == "update"] == [*range(1, UPDATES + 1)] * 2
    success = [
        [one["success"] for one in events if one["event"] == "evaluation" and one["temperature"] == temperature]
        for temperature in (1.0, 0.0)
    ]
    (before, _, after, control_before, _, control_after), (greedy_before, greedy_after, *_) = success
    assert after - before > 0.25, events
    assert greedy_after - greedy_before > 0.25, events
    # bench/learn/bench_control.py measures how far a control drifts. Its greedy success says little: right action and
    # habit are nearly as likely, so a small drift decides which of the two is first.
    assert control_after - control_before < 0.1, events

    pool = Pool.open(tmp_path / "data" / "pool.duckdb")
    try:
        # Every attempt is a complete trajectory of exact tokens under one version, in one training row.
        faulty = pool.sql.run(
            "SELECT count(*) FROM steps WHERE token_source <> 'engine' OR policy_version <> policy_version_end"
            " OR mismatch IS NOT NULL"
        )
        assert faulty.table.column(0).to_pylist() == [0]
        points = {point.version: point for point in pool.learning.by_version(HELD_OUT_CHANNEL)}
        assert points[0].mean == pytest.approx(before)
        assert points[UPDATES].mean == pytest.approx(after)
        made = updates(pool, TRAIN_CHANNEL)
        assert [one.version for one in made] == [*range(UPDATES), *range(UPDATES + 1, 2 * UPDATES + 1)]
        assert all(one.staleness_max == 0 for one in made)
        assert all(one.metrics[DIFFERENCE_MEAN] < Guard().limit / 100 for one in made)
    finally:
        pool.close()
