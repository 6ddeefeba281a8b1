"""Packed rows against separate sequences: log-probs, entropies, and the gradients of every loss.

transformers' RMSNorm and rotary tables compute in fp32 whatever the model's dtype. In fp64 a packed hidden state that
differs in the last bit can round to another fp32 number, an error of 6e-8 that packing didn't make. The 1e-9 of fp64
is therefore asked of models whose norms compute in fp64 (``norms_in_dtype``); the untouched models must reach what
one fp32 rounding allows.
"""

from __future__ import annotations

import numpy as np
import pytest

from core.errors import InvalidInput
from core.tree.attention import packed_hidden, padded_to_block, use_tree_attention
from core.tree.build import build, concatenate, layout
from core.tree.losses import LOSSES, batch_loss
from core.tree.order import sort_with_lcp
from core.tree.packing import pack
from core.tree.scores import scores_from_logits, token_scores
from core.tree.terms import denominators, loss_terms

from .models import gradient, join, make, relative, rollouts, separate_logps, separate_loss

FAMILIES = ("Qwen3", "Llama")
# dtype, norms in that dtype, log-probs relative, gradients relative norm
PRECISIONS = {
    "fp64": ("float64", True, 1e-9, 1e-9),
    "fp64 untouched": ("float64", False, 1e-6, 1e-6),
    "fp32": ("float32", False, 1e-5, 1e-5),
}


def advantages_of(sequences, seed: int) -> np.ndarray:
    """Different for duplicates, of both signs."""
    return np.random.default_rng(seed).normal(size=len(sequences)).astype(np.float32)


def two_trees_and_padding(seed: int):
    """Two prompt groups in one row, 9 tokens of padding."""
    groups = [rollouts(seed), rollouts(seed + 1000)]
    sequences = join(groups)
    trees = []
    for low in (0, len(groups[0])):
        index = np.arange(low, low + len(groups[0]))
        trees.append(layout(sequences, *sort_with_lcp(sequences, index)))
    size = sum(tree.n_packed for tree in trees)
    return sequences, concatenate(trees, pad_to=size + 9, pad_id=3)


def packed_loss(model, row, sequences, advantages, name, normalise, totals=None, kind="cascade"):
    terms = loss_terms(row, sequences, advantages)
    use_tree_attention(model, kind)
    scores = token_scores(model, packed_hidden(model, row), terms, rows=7, vocabulary=40)
    return batch_loss(name, scores.logp, terms, totals or denominators([terms]), normalise=normalise)


@pytest.mark.parametrize("kind", ["cascade", "blocks"])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_and_entropies(family, precision, kind):
    import torch

    dtype, in_dtype, tolerance, _ = PRECISIONS[precision]
    model = make(family, getattr(torch, dtype), norms_in_dtype=in_dtype).eval()
    for seed in range(4):
        sequences, row = two_trees_and_padding(seed)
        terms = loss_terms(row, sequences)
        with torch.no_grad():
            use_tree_attention(model, kind)
            hidden = packed_hidden(model, row)
            scores = token_scores(model, hidden, terms, rows=7, vocabulary=40)
            by_logits = scores_from_logits(model.get_output_embeddings()(hidden), terms, rows=7)
            alone = separate_logps(model, sequences)
        assert hidden.dtype == getattr(torch, dtype)
        assert row.n_packed < row.n_original
        for column, (actual, again) in enumerate([(scores.logp, by_logits.logp), (scores.entropy, by_logits.entropy)]):
            wanted = torch.cat([one[column].to(actual) for one in alone])
            assert len(actual) == len(wanted) > 20
            for values in (actual, again):
                assert ((values - wanted).abs() / wanted.abs().clamp_min(1)).max() <= tolerance


@pytest.mark.parametrize("normalise", ["token", "step"])
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients(family, precision, name, normalise):
    import torch

    dtype, in_dtype, _, tolerance = PRECISIONS[precision]
    model = make(family, getattr(torch, dtype), norms_in_dtype=in_dtype).train()
    sequences, row = two_trees_and_padding(7)
    advantages = advantages_of(sequences, 3)
    loss = packed_loss(model, row, sequences, advantages, name, normalise)
    actual = gradient(model, loss)
    logps = [logp for logp, _ in separate_logps(model, sequences)]
    wanted_loss = separate_loss(name, logps, sequences, advantages, normalise)
    wanted = gradient(model, wanted_loss)
    assert loss.item() == pytest.approx(wanted_loss.item(), rel=1e-5 if dtype == "float32" else 1e-6)
    assert float(wanted.norm()) > 1e-3
    assert relative(actual, wanted) <= tolerance


def test_the_comparison_can_fail():
    """Plain causal attention over the packed row, or one advantage for both duplicates, is far off."""
    import torch

    model = make("Qwen3", torch.float64).train()
    sequences, row = two_trees_and_padding(7)
    advantages = advantages_of(sequences, 3)
    wanted = gradient(model, packed_loss(model, row, sequences, advantages, "ppo_clip", "token"))
    causal = row.end.copy()
    causal[:] = len(causal)
    from dataclasses import replace

    blind = packed_loss(model, replace(row, end=causal), sequences, advantages, "ppo_clip", "token")
    assert relative(gradient(model, blind), wanted) > 1e-2
    shared = advantages.copy()
    shared[-1] = shared[-2]
    assert relative(gradient(model, packed_loss(model, row, sequences, shared, "ppo_clip", "token")), wanted) > 1e-3


@pytest.mark.parametrize("kind", ["cascade", "blocks"])
def test_gradient_checkpointing_changes_nothing(kind):
    import torch

    model = make("Qwen3", torch.float64).train()
    sequences, row = two_trees_and_padding(11)
    advantages = advantages_of(sequences, 5)
    plain = gradient(model, packed_loss(model, row, sequences, advantages, "cispo", "token", kind=kind))
    model.activation_checkpointing_enable()
    again = gradient(model, packed_loss(model, row, sequences, advantages, "cispo", "token", kind=kind))
    assert relative(again, plain) <= 1e-12


@pytest.mark.parametrize("normalise", ["token", "step"])
@pytest.mark.parametrize("name", LOSSES)
def test_any_split_into_rows_has_the_same_gradient(name, normalise):
    """Micro-batches under a small budget, summed, against the one row: the denominators are the batch's."""
    import torch

    model = make("Llama", torch.float64).train()
    sequences = rollouts(21, n=12)
    advantages = advantages_of(sequences, 9)
    whole = gradient(model, packed_loss(model, build(sequences), sequences, advantages, name, normalise))
    packing = pack(sequences, np.zeros(len(sequences), dtype=np.int64), int(sequences.lengths.max()) + 5)
    rows = [packing.row(sequences, i) for i in range(len(packing.rows))]
    assert len(rows) > 1
    totals = denominators([loss_terms(row, sequences, advantages) for row in rows])
    parts = [
        gradient(model, packed_loss(model, row, sequences, advantages, name, normalise, totals=totals)) for row in rows
    ]
    assert relative(sum(parts), whole) <= 1e-6


def test_entropy_has_its_gradient():
    import torch

    model = make("Qwen3", torch.float64, norms_in_dtype=True).train()
    sequences, row = two_trees_and_padding(2)
    terms = loss_terms(row, sequences)
    use_tree_attention(model)
    scores = token_scores(model, packed_hidden(model, row), terms, rows=7, vocabulary=40)
    actual = gradient(model, scores.entropy.sum() + 0.3 * scores.logp.sum())
    alone = separate_logps(model, sequences)
    wanted = gradient(model, sum(entropy.sum() + 0.3 * logp.sum() for logp, entropy in alone))
    assert relative(actual, wanted) <= 1e-9


def test_flex_attention_on_the_cpu_has_its_forward():
    """torch 2.13 refuses FlexAttention's backward on the CPU; the forward is compared here, eagerly."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    from core.tree.attention import block_mask, blocked_attention
    from core.tree.cascade import cascade_attention, pieces

    _, row = two_trees_and_padding(4)
    row = padded_to_block(concatenate([layout_of(row)]), 16)
    torch.manual_seed(0)
    query = torch.randn(1, 4, len(row.tokens), 8, dtype=torch.float64)
    key, value = (torch.randn(1, 2, len(row.tokens), 8, dtype=torch.float64) for _ in range(2))
    with torch.no_grad():
        flex = flex_attention(query, key, value, block_mask=block_mask(row.end, block=16), scale=0.3, enable_gqa=True)
        end = torch.from_numpy(row.end.astype(np.int64))
        real = slice(0, row.n_packed)
        for other in (
            blocked_attention(query, key, value, end, 0.3, block=50),
            cascade_attention(query, key, value, pieces(row), 0.3),
        ):
            assert (flex - other)[:, :, real].abs().max() < 1e-12


def layout_of(row):
    """The row without its padding."""
    from dataclasses import replace

    n = row.n_packed
    return replace(row, tokens=row.tokens[:n], position_ids=row.position_ids[:n], end=row.end[:n], n_padding=0)


def test_models_that_cannot_be_packed_are_refused():
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from .models import SIZES

    sliding = Qwen3Config(**SIZES, use_sliding_window=True, sliding_window=4, max_window_layers=0)
    with pytest.raises(InvalidInput, match="full attention"):
        use_tree_attention(Qwen3ForCausalLM(sliding))
    model = make("Llama", torch.float32)
    with pytest.raises(InvalidInput, match="no tree attention"):
        use_tree_attention(model, "dense")
    with pytest.raises(InvalidInput, match="is not a tree attention"):
        packed_hidden(model, build(rollouts(0)))


@pytest.mark.parametrize("kind", ["cascade", "blocks"])
def test_calls_without_a_row_go_on_as_before(kind):
    """A right-padded batch, whose mask transformers makes."""
    import torch

    model = make("Qwen3", torch.float64).eval()
    ids = torch.randint(0, 97, (2, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    with torch.no_grad():
        before = model(ids, attention_mask=mask).logits
        use_tree_attention(model, kind)
        after = model(ids, attention_mask=mask).logits
    assert torch.equal(before, after)
