"""A real transformer on a packed row says the same as on each sequence alone."""

from __future__ import annotations

import numpy as np
import pytest

from core.tree.build import build, concatenate
from core.tree.mask import dense_mask
from core.tree.sequences import Sequences


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
