"""The packed file is the layout: rows and terms come back, and a model's loss on it is that of separate sequences."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from safetensors import safe_open

from core.batch.plan import plan
from core.batch.recipe import parse_recipe
from core.errors import InvalidInput
from core.export import export
from core.export.packed_tree import TERMS, TREE, read_rows, read_totals
from core.tree.attention import packed_hidden, use_tree_attention
from core.tree.losses import batch_loss
from core.tree.scores import token_scores
from core.tree.terms import denominators, loss_terms
from core.types import View
from tests.tree.models import gradient, make, relative, separate_logps, separate_loss

from .conftest import conversation, done
from .uneven_pool import attempts, uneven_steps


@pytest.fixture
def filled(pool):
    """Three groups; two rollouts of one sample the same tokens."""
    draw = np.random.default_rng(5)

    def ids(n):
        return draw.integers(3, 90, n).tolist()

    steps, completions = [], []
    for g in range(3):
        task, same = ids(9), (ids(4), ids(3))
        for r in range(4):
            turns = (
                [(task, same[0]), (ids(2), same[1])] if r < 2 else [(task, ids(5)), (ids(3), ids(4)), (ids(2), ids(2))]
            )
            steps += conversation(f"t{g}{r}", f"g{g}", turns)
            completions += done(f"t{g}{r}", reward=float(r))
    pool.steps.append(steps, completions=completions)
    return pool


@pytest.mark.parametrize("terms", ["occurrence_sum", "train_once", "fraction"])
@pytest.mark.parametrize(
    "recipe", [{"algorithm": "grpo"}, {"algorithm": "reinforce_plus_plus", "options": {"gamma": 0.9}}]
)
def test_rows_come_back_as_the_plans_layout(filled, tmp_path, terms, recipe):
    made = plan(filled, View(), parse_recipe({**recipe, "token_budget": 64}))
    result = export(made, filled, "packed_tree", tmp_path, terms=terms)
    read = list(read_rows(result.path))
    assert len(read) == len(made.layout.rows) == result.n_rows > 1
    every = []
    for index, (row, got, uids) in enumerate(read):
        wanted, sequences = made.layout.row(filled.training, index)
        for name in TREE:
            assert np.array_equal(getattr(row, name), getattr(wanted, name)), name
        assert row.n_original == wanted.n_original and uids == sequences.step_uids
        rows = {uid: line for uid, line in zip(made.step_uids, made.steps.to_pylist(), strict=True)}
        if made.level == "token":
            flat = [value for uid in uids for value in rows[uid]["token_advantages"]]
            again = loss_terms(wanted, sequences, token_advantages=np.array(flat), policy=terms)
        else:
            again = loss_terms(wanted, sequences, np.array([rows[uid]["advantage"] for uid in uids]), policy=terms)
        for name in TERMS:
            assert np.array_equal(getattr(got, name), getattr(again, name)), name
        every.append(got)
    totals, wanted_totals = read_totals(result.path), denominators(every)
    assert (totals.weight, totals.n_steps) == (wanted_totals.weight, wanted_totals.n_steps)
    assert result.n_tokens == made.totals["n_packed_tokens"]
    with safe_open(result.path, framework="numpy") as file:
        assert file.metadata()["plan"] == made.hash


def test_each_rank_reads_its_share_and_together_they_read_all(filled, tmp_path):
    made = plan(filled, View(), parse_recipe({"algorithm": "grpo", "token_budget": 64, "n_ranks": 2}))
    path = export(made, filled, "packed_tree", tmp_path).path
    whole = [uids for _, _, uids in read_rows(path)]
    shares = [[uids for _, _, uids in read_rows(path, rank=rank)] for rank in range(2)]
    assert abs(len(shares[0]) - len(shares[1])) <= 1
    assert sorted(shares[0] + shares[1]) == sorted(whole)
    assert [shares[rank].pop(0) for rank in made.layout.to_json()["row_ranks"]] == whole
    with pytest.raises(InvalidInput, match="the file has 2 ranks"):
        next(read_rows(path, rank=2))


@pytest.mark.parametrize("loss", ["ppo_clip", "sft"])
def test_a_models_gradient_on_the_file_is_that_of_separate_sequences(filled, tmp_path, loss):
    import torch

    made = plan(filled, View(), parse_recipe({"algorithm": "grpo", "token_budget": 64}))
    path = export(made, filled, "packed_tree", tmp_path).path
    model = make("Qwen3", torch.float64, norms_in_dtype=True).train()
    use_tree_attention(model, "cascade")
    totals = read_totals(path)
    total = sum(
        batch_loss(loss, token_scores(model, packed_hidden(model, row), terms).logp, terms, totals)
        for row, terms, _ in read_rows(path)
    )
    from_file = gradient(model, total)
    sequences = filled.steps.sequences(made.step_uids)
    advantages = made.steps["advantage"].to_numpy().astype(np.float32)
    logps = [logp for logp, _ in separate_logps(model, sequences)]
    wanted = gradient(model, separate_loss(loss, logps, sequences, advantages, "token"))
    assert relative(from_file, wanted) <= 1e-6


@pytest.mark.parametrize("algorithm", ["grpo", "turn_discount"])
def test_terms_are_the_sampled_tokens_that_may_be_trained_on_and_no_other(pool, tmp_path, algorithm):
    """Steps that are left out and masked tokens have no term: against a walk over the pool, token by token."""
    steps = [
        replace(one, response_mask=[int(i % 3 > 0) for i in range(len(one.response_ids or ()))])
        if one.step_uid in ("m7.a.2", "m7.b.0", "m8.a.1", "open.a.0")
        else one
        for one in uneven_steps()
    ]
    ends = [{"kind": "complete", "trajectory_uid": one.uid, "reward": one.reward} for one in attempts()]
    pool.steps.append(steps, completions=ends)
    made = plan(pool, View(), parse_recipe({"algorithm": algorithm, "token_budget": 64}))
    result = export(made, pool, "packed_tree", tmp_path)
    assert "m7.a.1" not in made.step_uids and "m7.a.2" in made.step_uids
    wanted = Counter()
    advantage_of = dict(zip(made.step_uids, made.steps["advantage"].to_pylist(), strict=True))
    for step in steps:
        if step.step_uid in advantage_of:
            whole = [*(step.prompt_ids or ()), *(step.response_ids or ())]
            for i, token in enumerate(step.response_ids or ()):
                at = len(step.prompt_ids or ()) + i
                if at and (step.response_mask is None or step.response_mask[i]):
                    old = None if step.response_logprobs is None else round(float(step.response_logprobs[i]), 4)
                    advantage = round(advantage_of[step.step_uid], 4)
                    wanted[step.step_uid, whole[at - 1], token, old, advantage] += 1
    counts, n_weight = Counter(), 0.0
    for row, terms, uids in read_rows(result.path):
        for m in range(len(terms)):
            old = None if np.isnan(terms.old_logp[m]) else round(float(terms.old_logp[m]), 4)
            before = int(row.tokens[terms.packed_pos[m]])
            advantage = round(float(terms.advantage[m]), 4)
            counts[uids[int(terms.step[m])], before, int(terms.target[m]), old, advantage] += 1
            assert row.tokens[terms.target_pos[m]] == terms.target[m]
        n_weight += terms.weight.sum()
    assert counts == wanted
    assert result.manifest["n_loss_tokens"] == wanted.total() == n_weight == read_totals(result.path).weight
    assert read_totals(result.path).n_steps == len({uid for uid, *_ in wanted})
