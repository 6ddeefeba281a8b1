"""Two trainers on a pool of a million steps, with kills and expiries: no group is lost, none is consumed twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from core.pool import Pool
from tests.conftest import ServeProcess, eventually
from tests.left_out import only_in_ci

pytestmark = [
    pytest.mark.timeout(280),
    only_in_ci("takes a minute"),
]

N_GROUPS, GROUP, STEPS = 2500, 8, 50
FILL = """
INSERT INTO trajectories SELECT t + 1, 't' || t FROM range(20000) r(t);
INSERT INTO trajectory_events
SELECT t + 1, t + 1, 'complete', NULL, NULL, NULL, (t % 8) / 7.0, NULL, NULL, TIMESTAMP '2026-11-01'
FROM range(20000) r(t);
INSERT INTO steps BY NAME
SELECT
    i + 1 AS step_id, i // 50 + 1 AS trajectory_id, CASE WHEN i % 50 > 0 THEN i END AS parent_step_id,
    't' || (i // 50) || '.' || (i % 50) AS step_uid, md5(i::VARCHAR)::UUID AS content_hash, i % 50 AS step_index,
    TIMESTAMP '2026-11-01' + to_seconds(i // 50) AS created_at, TIMESTAMP '2026-11-01' AS ingested_at,
    'g' || (i // 400) AS prompt_uid, 'train' AS channel, 'whitebox' AS source, 'producer' AS identity_source,
    'main' AS call_kind, 'ok' AS status, 'engine' AS token_source, 3 + 4 * (i % 50) AS n_prompt_tokens,
    2 AS n_response_tokens, CASE WHEN i % 50 > 0 THEN 1 + 4 * (i % 50) ELSE 0 END AS n_shared_tokens,
    0 AS n_shared_messages, TRUE AS has_logprobs, i % 50 = 49 AS is_last, 3 AS policy_version,
    []::VARCHAR[] AS tool_names
FROM range(1000000) r(i);
INSERT INTO step_tokens
SELECT i + 1, i // 50 + 1, CASE WHEN i % 50 > 0 THEN [7, 8]::INTEGER[] ELSE [1, 2, 3]::INTEGER[] END,
    [i % 1000, i % 997]::INTEGER[], [-0.5, -0.25]::FLOAT[], NULL FROM range(1000000) r(i);
INSERT INTO step_messages SELECT i + 1, i // 50 + 1, NULL, NULL, NULL FROM range(1000000) r(i);
"""
TRAINER = """
import sys, time
from core.trainer import Trainer
base, name = sys.argv[1:]
recipe = {"algorithm": "grpo", "n_rollouts": 8, "batch_size": 250}
with Trainer(base, name, lease_s=6, inline=False, recipe=recipe, partial=True) as trainer:
    for batch in trainer.batches():
        time.sleep(0.2)
        batch.ack()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with 2,500 groups of 8 rollouts of 50 steps, filled by SQL: ingest is not what is tested here."""
    data = tmp_path_factory.mktemp("million") / "data"
    pool = Pool.open(data / "pool.duckdb")
    with pool._db.write() as cursor:
        cursor.execute(FILL)
    pool.integrity.rebuild_state()
    assert pool.steps.count() == N_GROUPS * GROUP * STEPS == 1_000_000
    pool.close()
    return data


def trainer(studio: ServeProcess, name: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", TRAINER, studio.base_url, name], stdout=subprocess.DEVNULL)


def test_two_trainers_consume_every_group_once(folder: Path) -> None:
    studio = ServeProcess(folder, "http://127.0.0.1:9/v1", env={"CLAW_STUDIO_POOL_THREADS": str(os.cpu_count() or 2)})
    running = {name: trainer(studio, name) for name in ("a", "b")}

    def consumed() -> list[dict]:
        batches = studio.http.get("/api/v1/batches?limit=1000", timeout=60).json()["batches"]
        return [one for one in batches if one["state"] == "acked"]

    try:
        for name in ("a", "b"):
            n = len(consumed())
            eventually(lambda n=n: len(consumed()) > n, timeout_s=120, every_s=0.5)
            running[name].send_signal(signal.SIGKILL)
            running[name].wait(30)
            time.sleep(1)
            running[name] = trainer(studio, name)
        eventually(lambda: sum(one["n_groups"] for one in consumed()) >= N_GROUPS, timeout_s=150, every_s=1.0)
    finally:
        for process in running.values():
            process.kill()
            process.wait(30)
    groups = [
        group["prompt_uid"]
        for one in consumed()
        for group in studio.http.get(f"/api/v1/batches/{one['batch_uid']}", timeout=60).json()["groups"]
    ]
    assert studio.stop() == 0
    assert len(groups) == len(set(groups)) == N_GROUPS
