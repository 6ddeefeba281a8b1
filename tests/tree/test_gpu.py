"""Where CUDA exists: FlexAttention in bf16 on a packed row, forward and backward, against separate sequences."""

from __future__ import annotations

import numpy as np
import pytest

from core.tree.attention import packed_hidden, padded_to_block, use_tree_attention
from core.tree.build import build
from core.tree.losses import batch_loss
from core.tree.scores import token_scores
from core.tree.terms import denominators, loss_terms

from .models import SIZES, gradient, relative, rollouts


def on_gpu(dtype):
    """The same weights, all of them bf16 numbers, in any dtype; heads as wide as FlexAttention asks for."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(1)
    config = Qwen3Config(**{**SIZES, "head_dim": 32}, attn_implementation="sdpa")
    return Qwen3ForCausalLM(config).to(torch.bfloat16).to(dtype).to("cuda").train()


def test_bf16_flex_is_as_near_to_fp32_as_separate_bf16():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    sequences = rollouts(3, n=12)
    advantages = np.random.default_rng(0).normal(size=len(sequences)).astype(np.float32)
    row = padded_to_block(build(sequences))
    terms = loss_terms(row, sequences, advantages)
    totals = denominators([terms])

    def separate(dtype):
        model = on_gpu(dtype)
        model.set_attn_implementation("sdpa")
        scored = []
        for i in range(len(sequences)):
            one = sequences.take([i])
            alone = build(one)
            mine = loss_terms(alone, one, advantages[i : i + 1])
            if len(mine) == 0:
                continue
            ids = torch.from_numpy(alone.tokens.astype(np.int64)).to("cuda")[None]
            hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0]
            logp = token_scores(model, hidden, mine).logp
            scored.append((logp, batch_loss("ppo_clip", logp, mine, totals)))
        logp = torch.cat([one.detach().float() for one, _ in scored])
        return logp, gradient(model, sum(loss for _, loss in scored)).float()

    exact_logp, exact = separate(torch.float32)
    plain_logp, plain = separate(torch.bfloat16)
    model = on_gpu(torch.bfloat16)
    use_tree_attention(model, "flex")
    logp = token_scores(model, packed_hidden(model, row), terms).logp
    packed = gradient(model, batch_loss("ppo_clip", logp, terms, totals)).float()
    assert relative(logp.detach().float(), exact_logp) <= 1.2 * relative(plain_logp, exact_logp)
    assert relative(packed, exact) <= 1.2 * relative(plain, exact)
