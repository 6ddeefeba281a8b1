"""Axolotl's and LLaMA-Factory's own training on our files, in one process and in two: rows, masks and loss."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from core.batch.plan import plan
from core.batch.recipe import parse_recipe
from core.export import export
from core.types import View
from tests.batch.keeping_all import SFT_ALL
from tests.export.conftest import conversation, done
from tests.export.uneven_pool import fill
from tests.left_out import missing

from .running import run_processes, seen_by, watched_loss_is_the_mean_over_tokens

pytestmark = pytest.mark.trainers

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parents[1] / ".cache" / "trainers"
SFT = parse_recipe(SFT_ALL)


def train(trainer, n_processes, model_dir, path, out, batch):
    python = ENVIRONMENTS / trainer / "bin" / "python"
    if not python.exists():
        missing(f"{trainer} is not installed, so it trained on nothing: .ci/run installs it into .cache/trainers")
    out.mkdir()
    run_processes(HERE / f"in_{trainer}.py", n_processes, model_dir, path, out, batch, python=python)
    ranks = seen_by(out, n_processes)
    assert {rank["n"] for rank in ranks} == {n_processes}
    return ranks, [row for rank in ranks for step in rank["seen"] for row in step["rows"]]


@pytest.mark.parametrize(("n_processes", "merge", "batch"), [(2, "step", 2), (1, "trajectory", 3)])
def test_axolotl_trains_each_sampled_token(pool, tmp_path, model_dir, n_processes, merge, batch):
    fill(pool)
    planned = plan(pool, View(), SFT)
    result = export(planned, pool, "axolotl", tmp_path, merge=merge)
    ranks, rows = train("axolotl", n_processes, model_dir, result.path, tmp_path / "run", batch)

    steps = [pool.steps.get(uid) for uid in planned.step_uids]
    bare = {int(step["response_ids"][0]) for step in steps if len(step["prompt_ids"]) == 0}
    loss_tokens = {int(token) for step in steps for token in step["response_ids"]} - bare
    sequences = {(*map(int, step["prompt_ids"]), *map(int, step["response_ids"])) for step in steps}
    assert {tuple(row["ids"]) for row in rows} <= sequences, "rows are sequences as they were sampled"
    assert {token for row in rows for token in row["trained"]} == loss_tokens
    assert all(row["trained"] == [row["ids"][at] for at in row["at"]] for row in rows)
    seen = Counter(tuple(row["ids"]) for row in rows)
    n_over = -result.n_rows % (n_processes * batch) if n_processes > 1 else 0
    assert len(seen) == result.n_rows and seen.total() == result.n_rows + n_over
    assert "trains on rows of the first batch again" in str(result.manifest["differences"])
    assert "averages their mean losses" in str(result.manifest["differences"])
    for rank in ranks:
        watched_loss_is_the_mean_over_tokens([rank], model_dir)


@pytest.mark.parametrize(("n_processes", "batch"), [(2, 2), (1, 2)])
def test_llama_factory_trains_each_answer(pool, tmp_path, model_dir, n_processes, batch):
    from transformers import AutoTokenizer

    answers = [f"answer {'x ' * k}{k}" for k in range(5)]
    steps = [
        step
        for k, answer in enumerate(answers)
        for step in conversation(
            f"t{k}",
            "A",
            [([1], [2 + k])],
            messages=[{"role": "system", "content": "be brief"}, {"role": "user", "content": "read it"}],
            response_message={"role": "assistant", "content": answer},
            tools=None,
        )
    ]
    pool.steps.append(steps, completions=done(*(f"t{k}" for k in range(5)), reward=1.0))
    result = export(plan(pool, View(), SFT), pool, "llama_factory", tmp_path / "files")
    ranks, rows = train("llama_factory", n_processes, model_dir, result.path, tmp_path / "run", batch)

    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    seen = Counter(tokenizer.decode(row["trained"]).replace("<|im_end|>", "").strip() for row in rows)
    n_over = -result.n_rows % (n_processes * batch) if n_processes > 1 else 0
    assert set(seen) == set(answers) and seen.total() == result.n_rows + n_over
    assert "trains on rows of the first batch again" in str(result.manifest["differences"])
    watched_loss_is_the_mean_over_tokens(ranks, model_dir)
