"""TRL's own SFTTrainer, in one process and in two, on the pool that is hard on trainers: rows, masks and loss."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from core.batch.plan import plan
from core.batch.recipe import parse_recipe
from core.export import export
from core.pool import Pool
from core.serving.model import make_model
from core.types import View
from tests.effort import sampled
from tests.export.uneven_pool import fill

from .running import run_processes

PROGRAM = Path(__file__).with_name("in_trl_sft.py")


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"), seed=3)


@pytest.fixture
def pool(tmp_path):
    opened = Pool.open(tmp_path / "pool.duckdb", memory="512MB", threads=1, clock=lambda: 1_700_100_000.0)
    yield fill(opened)
    opened.close()


CASES = [(2, "trajectory", 4), (1, "trajectory", 5), (2, "step", 5)]


@pytest.mark.parametrize(("n_processes", "merge", "batch"), sampled(CASES, 3, "a run of TRL each"))
def test_each_sampled_token_is_trained_once(pool, tmp_path, model_dir, n_processes, merge, batch):
    import torch
    from transformers import AutoModelForCausalLM

    planned = plan(pool, View(), parse_recipe({"algorithm": "sft"}))
    result = export(planned, pool, "trl_sft", tmp_path, merge=merge)
    out = tmp_path / "run"
    out.mkdir()
    run_processes(PROGRAM, n_processes, model_dir, result.path, out, batch)
    told = [json.loads((out / f"seen-{rank}.json").read_text()) for rank in range(n_processes)]
    assert {one["n"] for one in told} == {n_processes}

    steps = [pool.steps.get(uid) for uid in planned.step_uids]
    bare = {int(step["response_ids"][0]) for step in steps if len(step["prompt_ids"]) == 0}
    loss_tokens = {int(token) for step in steps for token in step["response_ids"]} - bare
    sequences = {(*map(int, step["prompt_ids"]), *map(int, step["response_ids"])) for step in steps}
    rows = [row for one in told for batch in one["seen"] for row in batch["rows"]]
    assert {tuple(row["ids"]) for row in rows} <= sequences, "rows are sequences as they were sampled"
    assert {token for row in rows for token in row["trained"]} == loss_tokens
    assert len(loss_tokens) == result.manifest["n_loss_tokens"] and bare
    seen = Counter(tuple(row["ids"]) for row in rows)
    n_over = -result.n_rows % (n_processes * batch) if n_processes > 1 else 0
    assert len(seen) == result.n_rows and seen.total() == result.n_rows + n_over
    text = str(result.manifest["differences"])
    assert "again to fill the last one" in text and "n_rows" in text and "without a prompt" in text

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    for parts in zip(*(one["seen"] for one in told), strict=True):
        lost = []
        for row in (row for part in parts for row in part["rows"]):
            with torch.no_grad():
                scores = torch.log_softmax(model(input_ids=torch.tensor([row["ids"]])).logits[0], dim=-1)
            lost += [-scores[at - 1, row["ids"][at]].item() for at in map(row["ids"].index, row["trained"])]
        loss = sum(part["loss"] for part in parts) / n_processes
        assert loss == pytest.approx(sum(lost) / len(lost), rel=1e-4), "the mean over tokens of all processes"
