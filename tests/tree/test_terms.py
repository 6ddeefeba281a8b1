"""Loss terms against a walk over the sequences in plain Python."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InvalidInput
from core.tree.build import build, concatenate
from core.tree.losses import LOSSES, batch_loss
from core.tree.scores import by_step
from core.tree.sequences import Sequences
from core.tree.terms import POLICIES, coefficients, denominators, loss_terms
from tests.effort import settings

from .strategies import sequences


def with_logprobs(seqs: Sequences) -> Sequences:
    """Every response token gets a log-prob that names it."""
    responses = [seqs.sequence(i)[seqs.n_prompt[i] :] for i in range(len(seqs))]
    old = [[-(100 * i + k) / 64 for k in range(len(r))] for i, r in enumerate(responses)]
    return Sequences.from_lists([seqs.sequence(i)[: seqs.n_prompt[i]] for i in range(len(seqs))], responses, old)


@given(sequences(max_size=7))
@settings(max_examples=200, deadline=None)
def test_every_sampled_token_has_its_own_term(seqs):
    seqs = with_logprobs(seqs)
    row = build(seqs)
    advantages = np.arange(len(seqs), dtype=np.float32) - 2
    terms = loss_terms(row, seqs, advantages)
    wanted, unpredicted = [], 0
    for i in range(len(seqs)):
        ids, path, n_prompt = seqs.sequence(i).tolist(), row.path(i).tolist(), int(seqs.n_prompt[i])
        for k in range(n_prompt, len(ids)):
            if k == 0:
                unpredicted += 1
                continue
            old = -(100 * i + k - n_prompt) / 64
            wanted.append((path[k - 1], path[k], ids[k], old, advantages[i], 1.0, i))
    columns = (terms.packed_pos, terms.target_pos, terms.target, terms.old_logp, terms.advantage, terms.weight)
    assert list(zip(*(c.tolist() for c in columns), terms.step.tolist(), strict=True)) == wanted
    assert terms.n_unpredicted == unpredicted
    per_token = np.repeat(advantages, seqs.n_response)
    again = loss_terms(row, seqs, token_advantages=per_token)
    for field in fields(terms):
        assert np.array_equal(getattr(terms, field.name), getattr(again, field.name)), field.name


@given(sequences(max_size=7))
@settings(max_examples=150, deadline=None)
def test_policies_merge_what_stands_at_one_place(seqs):
    seqs = with_logprobs(seqs)
    row = build(seqs)
    advantages = np.arange(len(seqs), dtype=np.float32) - 2
    full, once, merged = (loss_terms(row, seqs, advantages, policy=name) for name in POLICIES)
    owners: dict[int, list[int]] = {}
    for m in range(len(full)):
        owners.setdefault(int(full.target_pos[m]), []).append(m)
    firsts = [members[0] for members in owners.values()]
    for terms in (once, merged):
        assert terms.target_pos.tolist() == full.target_pos[firsts].tolist()
        assert terms.step.tolist() == full.step[firsts].tolist()
        assert terms.target.tolist() == row.tokens[terms.target_pos].tolist()
    assert once.old_logp.tolist() == full.old_logp[firsts].tolist()
    assert merged.weight.tolist() == [len(members) for members in owners.values()]
    np.testing.assert_allclose(merged.advantage, [full.advantage[m].mean() for m in owners.values()], rtol=1e-6)
    np.testing.assert_allclose(merged.old_logp, [full.old_logp[m].mean() for m in owners.values()], rtol=1e-6)
    assert merged.weight.sum() == len(full)


def test_fraction_is_exact_where_the_loss_is_linear_and_only_there():
    """Duplicates of different advantage, ratios beyond the clip."""
    import torch

    seqs = Sequences.from_lists([[1, 2]] * 3, [[3, 4], [3, 4], [3, 5]], [[-1.0, -2.0], [-1.5, -0.5], [-3.0, -2.0]])
    row = build(seqs)
    values = {}
    for name, policy in [(n, p) for n in LOSSES for p in POLICIES]:
        terms = loss_terms(row, seqs, np.array([1.0, -2.0, 0.5]), policy=policy)
        per_position = torch.linspace(-3, -0.2, len(row.tokens), dtype=torch.float64).requires_grad_()
        batch_loss(name, per_position[terms.target_pos], terms, denominators([terms])).backward()
        values[name, policy] = per_position.grad
    for name in ("sft", "policy_gradient"):
        torch.testing.assert_close(values[name, "fraction"], values[name, "occurrence_sum"], rtol=1e-6, atol=1e-9)
        assert not torch.allclose(values[name, "train_once"], values[name, "occurrence_sum"])
    for name in ("ppo_clip", "gspo", "cispo"):
        assert not torch.allclose(values[name, "fraction"], values[name, "occurrence_sum"], rtol=1e-3)


@given(sequences(max_size=5, min_size=1), sequences(max_size=5, min_size=1), st.sampled_from(list(POLICIES)))
@settings(max_examples=100, deadline=None)
def test_coefficients_of_a_batch_sum_to_one(a, b, policy):
    rows = [loss_terms(build(seqs), seqs, policy=policy) for seqs in (a, b)]
    totals = denominators(rows)
    n_terms = sum(map(len, rows))
    for normalise in ("token", "step"):
        shares = np.concatenate([coefficients(terms, totals, normalise) for terms in rows])
        assert shares.sum() == pytest.approx(1.0 if n_terms else 0.0)
    assert np.concatenate([coefficients(terms, totals, "sum") for terms in rows]).sum() == totals.weight
    for terms in rows:
        step = coefficients(terms, totals, "step")
        for one in np.unique(terms.step):
            assert step[terms.step == one].sum() == pytest.approx(1 / totals.n_steps)


def test_values_come_back_by_step():
    seqs = Sequences.from_lists([[1], [], [1], [2]], [[2, 3], [5, 6], [2], []])
    terms = loss_terms(build(seqs), seqs)
    values_by_step = by_step(terms, terms.target)
    assert {step: values.tolist() for step, values in values_by_step.items()} == {0: [2, 3], 1: [6], 2: [2]}
    assert terms.n_unpredicted == 1
    nothing = Sequences.from_lists([[1]], [[]])
    assert by_step(loss_terms(build(nothing), nothing), np.zeros(0)) == {}


def test_terms_of_a_padded_row_of_trees_point_into_it():
    seqs = with_logprobs(Sequences.from_lists([[1, 2], [1, 2], [9]], [[3], [4, 5], [8]]))
    whole = build(seqs)
    terms = loss_terms(concatenate([whole], pad_to=whole.n_packed + 4), seqs)
    assert terms.target.tolist() == [3, 4, 5, 8]
    assert terms.packed_pos.max() < whole.n_packed


def test_what_is_missing_is_named():
    import torch

    seqs = Sequences.from_lists([[1], [1]], [[2, 3], [4]], [[-1.0, -1.0], None])
    row = build(seqs)
    with pytest.raises(InvalidInput, match="no loss policy 'mean'"):
        loss_terms(row, seqs, policy="mean")
    with pytest.raises(InvalidInput, match="where 2 are needed") as caught:
        loss_terms(row, seqs, np.zeros(3))
    assert caught.value.field == "advantages"
    with pytest.raises(InvalidInput, match="where 3 are needed"):
        loss_terms(row, seqs, token_advantages=np.zeros(2))
    with pytest.raises(InvalidInput, match="twice"):
        loss_terms(row, seqs, np.zeros(2), token_advantages=np.zeros(3))
    terms = loss_terms(row, seqs, np.array([1.0, np.nan]))
    totals, logp = denominators([terms]), torch.zeros(3)
    with pytest.raises(InvalidInput, match="1 of 3 terms") as caught:
        batch_loss("policy_gradient", logp, terms, totals)
    assert caught.value.field == "advantage"
    with pytest.raises(InvalidInput) as caught:
        batch_loss("ppo_clip", logp, loss_terms(row, seqs, np.ones(2)), totals)
    assert caught.value.field == "old_logp"
    with pytest.raises(InvalidInput, match="no loss 'dpo'"):
        batch_loss("dpo", logp, terms, totals)
    with pytest.raises(InvalidInput, match="no normalisation"):
        coefficients(terms, totals, "mean")
    assert float(batch_loss("sft", logp, terms, totals)) == 0.0
