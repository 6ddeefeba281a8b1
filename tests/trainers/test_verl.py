"""verl, in an environment of its own: its RolloutSkip loads our file, and its estimator agrees with our advantages.

python3.11 -m venv .cache/trainers/verl && .cache/trainers/verl/bin/pip install torch==2.13.0 verl==0.9.1
"""

from __future__ import annotations

import json
import shutil

import pytest

from core.batch.plan import plan
from core.batch.recipe import parse_recipe
from core.export import export
from core.pool import Pool
from core.types import View
from tests.export.conftest import conversation, done

from .running import run

pytestmark = pytest.mark.trainers

CONFIG = {
    "trainer": {"experiment_name": "exp", "project_name": "proj"},
    "actor_rollout_ref": {"rollout": {"n": 2}},
    "data": {"train_batch_size": 2, "max_prompt_length": 16, "max_response_length": 16},
    "estimator": "grpo",
}


def test_rollout_skip_replays_our_batch(tmp_path):
    pool = Pool.open(tmp_path / "pool.duckdb", memory="512MB", threads=1)
    try:
        pool.steps.append(
            conversation("a", "A", [([1, 2, 3], [10, 11]), ([20], [12])])
            + conversation("b", "A", [([1, 2, 3], [13])])
            + conversation("c", "B", [([4, 5], [14, 15])])
            + conversation("d", "B", [([4, 5], [16]), ([21, 22], [17, 18])]),
            completions=[
                *done("a", reward=1.0), *done("b", reward=0.25), *done("c", reward=0.0), *done("d", reward=0.5),
            ],
        )  # fmt: skip
        planned = plan(pool, View(), parse_recipe({"algorithm": "grpo"}))
        result = export(planned, pool, "verl_rollout", tmp_path / "out", merge="trajectory", rewards="trajectory")
    finally:
        pool.close()
    folder = tmp_path / "dump" / "exp_proj" / "GBS2_N2_in16_out16" / "1"
    folder.mkdir(parents=True)
    shutil.copy(result.path, folder / "gen_batch.dp")
    (folder / "meta.json").write_text(json.dumps({"global_steps": 1}))
    report = run("in_verl.py", "verl", tmp_path / "dump", json.dumps(CONFIG))
    assert report["meta"] == {"plan": planned.hash}
    rows = report["rows"]
    keys = ("group", "trajectory", "n_turns", "prompt", "response", "ids", "score")
    assert [tuple(row[key] for key in keys) for row in rows] == [
        ("A", "a", 2, [1, 2, 3], [10, 11, 20, 12], [10, 11, 12], 1.0),
        ("A", "b", 1, [1, 2, 3], [13], [13], 0.25),
        ("B", "c", 1, [4, 5], [14, 15], [14, 15], 0.0),
        ("B", "d", 2, [4, 5], [16, 21, 22, 17, 18], [16, 17, 18], 0.5),
    ]
    assert rows[0]["logprobs"] == [-0.125, -0.25, -0.125]
    assert all(row["positions"] == list(range(len(row["prompt"]) + len(row["response"]))) for row in rows)
    for row in rows:
        assert row["advantages"] == pytest.approx(row["ours"], rel=1e-5)
        assert row["ours"] == [pytest.approx(row["ours"][0])] * len(row["ids"])
