"""``examples/train_packed.py`` as a person runs it, on a file that the plan exported: the loss falls."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from core.batch.plan import plan
from core.batch.recipe import Recipe
from core.export import export
from core.pool import Pool
from core.types import View
from tests.export.conftest import conversation, done
from tests.tree.models import make

ROOT = Path(__file__).resolve().parents[2]


def test_three_steps_lower_the_loss(tmp_path):
    import torch

    with closing(Pool.open(tmp_path / "pool.duckdb", memory="512MB", threads=1)) as pool:
        for r in range(4):
            turns = [([5, 6, 7, 8], [20 + r, 30]), ([9], [40 + r])]
            pool.steps.append(conversation(f"t{r}", "g", turns), completions=done(f"t{r}", reward=float(r)))
        rows = export(plan(pool, View(), Recipe(token_budget=64)), pool, "packed_tree", tmp_path / "out").path
    make("Qwen3", torch.float32).save_pretrained(tmp_path / "model")
    ran = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "train_packed.py"), str(rows), str(tmp_path / "model")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ran.returncode == 0, ran.stderr
    losses = [float(line.split()[1]) for line in ran.stdout.splitlines()]
    assert len(losses) == 3 and losses[0] > losses[1] > losses[2]
