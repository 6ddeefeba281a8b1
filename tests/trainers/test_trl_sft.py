"""TRL's own SFTTrainer, in one process and in two, on the pool that is hard on trainers: rows, masks and loss."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from core.batch.plan import plan
from core.batch.recipe import parse_recipe
from core.export import export
from core.types import View
from tests.batch.keeping_all import SFT_ALL
from tests.export.uneven_pool import fill
from tests.left_out import only_in_ci

from .running import run_processes, seen_by, watched_loss_is_the_mean_over_tokens

PROGRAM = Path(__file__).with_name("in_trl_sft.py")


@pytest.fixture
def pool(pool):
    return fill(pool)


CASES = [(2, "trajectory", 4), (1, "trajectory", 5), (2, "step", 5)]


@only_in_ci("a run of TRL each")
@pytest.mark.parametrize(("n_processes", "merge", "batch"), CASES)
def test_each_sampled_token_is_trained_once(pool, tmp_path, model_dir, n_processes, merge, batch):
    planned = plan(pool, View(), parse_recipe(SFT_ALL))
    result = export(planned, pool, "trl_sft", tmp_path, merge=merge)
    out = tmp_path / "run"
    out.mkdir()
    run_processes(PROGRAM, n_processes, model_dir, result.path, out, batch)
    reports = seen_by(out, n_processes)
    assert {one["n"] for one in reports} == {n_processes}

    steps = [pool.steps.get(uid) for uid in planned.step_uids]
    bare = {int(step["response_ids"][0]) for step in steps if len(step["prompt_ids"]) == 0}
    loss_tokens = {int(token) for step in steps for token in step["response_ids"]} - bare
    sequences = {(*map(int, step["prompt_ids"]), *map(int, step["response_ids"])) for step in steps}
    rows = [row for one in reports for batch in one["seen"] for row in batch["rows"]]
    assert {tuple(row["ids"]) for row in rows} <= sequences, "rows are sequences as they were sampled"
    assert {token for row in rows for token in row["trained"]} == loss_tokens
    assert len(loss_tokens) == result.manifest["n_loss_tokens"] and bare
    seen = Counter(tuple(row["ids"]) for row in rows)
    n_over = -result.n_rows % (n_processes * batch) if n_processes > 1 else 0
    assert len(seen) == result.n_rows and seen.total() == result.n_rows + n_over
    text = str(result.manifest["differences"])
    assert "again to fill the last one" in text and "n_rows" in text and "without a prompt" in text

    watched_loss_is_the_mean_over_tokens(reports, model_dir)
