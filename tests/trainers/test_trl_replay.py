"""TRL's own GRPOTrainer, in one process and in two, on the pool that is hard on trainers: rows, advantages and loss."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from core.batch.plan import plan
from core.batch.recipe import parse_recipe
from core.export import export
from core.types import View
from tests.export.uneven_pool import fill
from tests.left_out import only_in_ci

from .running import run_processes

PROGRAM = Path(__file__).with_name("in_trl.py")
CLIP = 0.2


@pytest.fixture
def pool(pool):
    return fill(pool, {"no_logprobs"})


def reference(planned, pool):
    """Sampled token -> (advantage, log-prob) and the sequences, straight from the plan and the pool."""
    steps = planned.steps.to_pylist()
    tokens = {}
    for row in steps:
        step = pool.steps.get(row["step_uid"])
        each = row.get("token_advantages") or [row["advantage"]] * len(step["response_ids"])
        scores = step["response_logprobs"].tolist()
        tokens |= dict(zip(step["response_ids"].tolist(), zip(each, scores, strict=True), strict=True))
    return tokens


BY_TOKEN = ("reinforce_plus_plus", {"gamma": 0.5})
CASES = [(1, *BY_TOKEN), (2, *BY_TOKEN), (1, "grpo", {}), (2, "grpo", {})]


@only_in_ci("a run of TRL each")
@pytest.mark.parametrize(("n_processes", "algorithm", "options"), CASES)
def test_every_row_is_trained_once_with_the_plans_numbers(pool, tmp_path, model_dir, n_processes, algorithm, options):
    import pyarrow.parquet as pq
    import torch
    from transformers import AutoModelForCausalLM

    planned = plan(pool, View(), parse_recipe({"algorithm": algorithm, "options": options}))
    result = export(planned, pool, "trl_grpo", tmp_path)
    out = tmp_path / "run"
    out.mkdir()
    rows = pq.read_table(result.path).to_pylist()
    batch = 8 // n_processes
    run_processes(PROGRAM, n_processes, model_dir, result.path, out, batch)
    reports = [json.loads((out / f"seen-{rank}.json").read_text()) for rank in range(n_processes)]
    assert {one["n"] for one in reports} == {n_processes}
    trained = [row for one in reports for row in one["seen"] if "loss" not in row]

    tokens = reference(planned, pool)
    empty = {step["response_ids"][0] for step in map(pool.steps.get, planned.step_uids) if len(step["prompt_ids"]) == 0}
    seen = [i for row in trained for i in row["completion_ids"]]
    assert sorted(seen) == sorted(set(tokens) - empty), "each sampled token once, whatever the number of processes"
    assert len(seen) == result.manifest["n_loss_tokens"]
    for row in trained:
        for token, advantage, score in zip(row["completion_ids"], row["advantages"], row["logprobs"], strict=True):
            assert (advantage, score) == pytest.approx(tokens[token], abs=1e-6)

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    terms = {}
    with torch.no_grad():
        for row in rows:
            ids = [*row["prompt_ids"], *row["completion_ids"]]
            scores = torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0], dim=-1)
            for i, on in enumerate(row["completion_mask"]):
                if on:
                    at = len(row["prompt_ids"]) + i
                    advantage, old = tokens[ids[at]]
                    ratio = torch.exp(scores[at - 1, ids[at]] - old).item()
                    clipped = min(max(ratio, 1 - CLIP), 1 + CLIP)
                    terms[ids[at]] = -min(ratio * advantage, clipped * advantage)
    batches = [[[]] for _ in range(n_processes)]
    for rank, one in enumerate(reports):
        for row in one["seen"]:
            if "loss" in row:
                batches[rank][-1].append(row["loss"])
                batches[rank].append([])
            else:
                batches[rank][-1] += row["completion_ids"]
    for parts in zip(*batches, strict=True):
        inside = [token for part in parts for token in part[:-1]]
        if parts[0]:
            wanted = sum(terms[token] for token in inside) / len(inside)
            assert sum(part[-1] for part in parts) / n_processes == pytest.approx(wanted, rel=1e-4, abs=1e-6)
