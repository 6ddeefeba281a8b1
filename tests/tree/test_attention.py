"""A real transformer on a packed row says the same as on each sequence alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.tree.attention import block_mask, blocked_attention, mask_mod
from core.tree.build import build, concatenate
from core.tree.cascade import cascade_attention, pieces
from core.tree.mask import dense_mask
from core.tree.sequences import Sequences
from tests.effort import settings

from .strategies import sequences


@pytest.fixture(scope="module")
def model():
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        attn_implementation="sdpa",
    )
    return Qwen3ForCausalLM(config).double().eval()


def logprobs(model, ids, **extra):
    import torch

    with torch.no_grad():
        logits = model(input_ids=torch.tensor(ids, dtype=torch.long)[None], use_cache=False, **extra).logits[0]
    return torch.log_softmax(logits, dim=-1).numpy()


def rollouts(seed: int) -> Sequences:
    rng = np.random.default_rng(seed)
    base = rng.integers(0, 97, 9).tolist()
    prompts = [base, base, [*base, 1, 2], [*base, 1, 2], base[:4], [7]]
    answers = [rng.integers(0, 97, n).tolist() for n in (3, 5, 4, 1, 2, 6)]
    return Sequences.from_lists([*prompts, prompts[0]], [*answers, answers[0]])


@pytest.mark.parametrize("seed", range(3))
def test_packed_row_equals_separate_sequences(model, seed):
    import torch

    first, second = rollouts(seed), rollouts(seed + 100)
    trees = [build(first), build(second)]
    row = concatenate(trees, pad_to=sum(t.n_packed for t in trees) + 5)
    positions = torch.from_numpy(row.position_ids.astype(np.int64))[None]
    mask = torch.from_numpy(dense_mask(row.end))[None, None]
    packed = logprobs(model, row.tokens, attention_mask=mask, position_ids=positions)
    causal = logprobs(model, row.tokens, attention_mask=torch.ones_like(mask).tril(), position_ids=positions)
    assert row.n_packed < row.n_original
    assert packed.dtype == np.float64
    sequences = [s.sequence(i) for s in (first, second) for i in range(len(s))]
    worst = worst_causal = 0.0
    for member, ids in enumerate(sequences):
        alone = logprobs(model, ids)
        worst = max(worst, np.abs(row.restore(packed, member) - alone).max() / np.abs(alone).max())
        worst_causal = max(worst_causal, np.abs(row.restore(causal, member) - alone).max())
    assert worst <= 1e-9
    assert worst_causal > 1e-3, "the comparison must be able to fail"


@given(sequences(max_size=10, min_size=1), st.integers(0, 9), st.sampled_from([1, 2, 3, 4, 8, 16]))
@settings(max_examples=60, deadline=None)
def test_block_mask_is_the_one_that_torch_makes_from_all_pairs(seqs, padding, block):
    import torch
    from torch.nn.attention.flex_attention import create_block_mask

    tree = build(seqs)
    row = concatenate([tree, tree], pad_to=2 * tree.n_packed + padding)
    n = len(row.tokens)
    if n == 0:
        return
    made = block_mask(row.end, block=block)
    visible = mask_mod(torch.from_numpy(row.end.astype(np.int64)))
    wanted = create_block_mask(visible, None, None, n, n, device="cpu", BLOCK_SIZE=block)
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(made, name), getattr(wanted, name)), name
    for counts, indices in (
        ("kv_num_blocks", "kv_indices"),
        ("full_kv_num_blocks", "full_kv_indices"),
        ("q_num_blocks", "q_indices"),
        ("full_q_num_blocks", "full_q_indices"),
    ):
        assert torch.equal(getattr(made, indices), getattr(wanted, indices)), (counts, indices)
    assert made.seq_lengths == wanted.seq_lengths and made.BLOCK_SIZE == wanted.BLOCK_SIZE
    assert torch.equal(made.to_dense(), wanted.to_dense())


@given(sequences(max_size=10, min_size=1))
@settings(max_examples=100, deadline=None)
def test_pieces_cover_each_visible_pair_once(seqs):
    tree = build(seqs)
    row = concatenate([tree, tree], pad_to=2 * tree.n_packed + 3)
    drawn = np.zeros((len(row.tokens), len(row.tokens)), dtype=int)
    for start, stop, end in pieces(row).tolist():
        drawn[start:stop, start:stop] += np.tri(stop - start, dtype=int)
        drawn[stop:end, start:stop] += 1
    real = dense_mask(row.end)
    real[row.n_packed :] = False
    assert np.array_equal(drawn, real)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("way", ["cascade", "blocks"])
def test_both_ways_equal_a_dense_mask(way, dtype):
    import torch

    first = build(rollouts(1))
    row = concatenate([first, build(rollouts(2))], pad_to=120)
    torch.manual_seed(0)
    exact = [torch.randn(1, len(row.tokens), heads, 8, dtype=torch.float64) for heads in (6, 2, 2)]
    gradient = torch.randn(1, 6, len(row.tokens), 8, dtype=torch.float64)
    gradient[:, :, row.n_packed :] = 0

    def run(attend, kind):
        query, key, value = (states.to(kind).transpose(1, 2).requires_grad_() for states in exact)
        out = attend(query, key, value)
        grads = torch.autograd.grad(out, (query, key, value), gradient.to(kind))
        return [states.double()[:, :, : row.n_packed] for states in (out, *grads)]

    def dense(query, key, value):
        mask = torch.from_numpy(dense_mask(row.end))
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=0.3, enable_gqa=True
        )

    def mine(query, key, value):
        if way == "cascade":
            return cascade_attention(query, key, value, pieces(row), 0.3)
        return blocked_attention(query, key, value, torch.from_numpy(row.end.astype(np.int64)), 0.3, block=17)

    kind = getattr(torch, dtype)
    wanted = run(dense, torch.float64)
    for ours, best, other in zip(run(mine, kind), wanted, run(dense, kind), strict=True):
        error = (ours - best).norm() / best.norm()
        plain = (other - best).norm() / best.norm()
        assert error <= max(1.5 * plain, 1e-13), (error, plain)
