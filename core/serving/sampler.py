"""Samples one token from logits: temperature, top-k, top-p, min-p, biases and penalties."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from core.serving.protocol import Sampling


def adjusted(logits_V: Any, sampling: Sampling, prompt_ids: Sequence[int], ids: Sequence[int]) -> Any:
    """Logits after biases and penalties, as vLLM applies them; the same tensor if there are none.

    Args:
        logits_V: float32 [n_vocab]; not modified.
        prompt_ids, ids: the tokens before; only ``repetition_penalty`` counts those of the prompt.
    """
    import torch

    plain = (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (0.0, 0.0, 1.0)
    if plain and not sampling.logit_bias:
        return logits_V
    logits_V = logits_V.clone()
    for token, bias in sampling.logit_bias:
        logits_V[token] += bias
    seen = torch.tensor(sorted({*prompt_ids, *ids}), dtype=torch.int64)
    values = logits_V[seen]
    by = sampling.repetition_penalty
    logits_V[seen] = torch.where(values > 0, values / by, values * by)
    counts_V = torch.bincount(torch.tensor(list(ids), dtype=torch.int64), minlength=logits_V.numel())
    return logits_V - sampling.frequency_penalty * counts_V - sampling.presence_penalty * (counts_V > 0)


def draw(logits_V: Any, sampling: Sampling, rng: random.Random, banned: Sequence[int] = ()) -> int:
    """Sample an id from raw logits.

    Args:
        logits_V: float32 [n_vocab]; not modified.
        sampling: temperature 0 is greedy; ``top_k`` is applied before ``min_p`` and ``top_p``, as in vLLM.
        rng: the sequence's random generator; one number is drawn per token, independent of the batch.
        banned: ids that must not be drawn (end tokens before ``min_tokens``).
    """
    import torch

    logits_V = logits_V.double()
    if banned:
        logits_V = logits_V.clone()
        logits_V[list(banned)] = float("-inf")
    if sampling.temperature == 0:
        return int(logits_V.argmax())
    scaled_V = logits_V / sampling.temperature
    if 0 < sampling.top_k < scaled_V.numel():
        floor = scaled_V.topk(sampling.top_k).values[-1]
        scaled_V = scaled_V.masked_fill(scaled_V < floor, float("-inf"))
    probs_V = torch.softmax(scaled_V, dim=-1)
    if sampling.min_p > 0:
        probs_V = probs_V.masked_fill(probs_V < sampling.min_p * probs_V.max(), 0.0)
    if sampling.top_p < 1:
        ranked, order = probs_V.sort(descending=True)
        before = ranked.cumsum(0) - ranked
        ranked = ranked.masked_fill(before >= sampling.top_p * ranked.sum(), 0.0)
        probs_V = torch.zeros_like(probs_V).scatter_(0, order, ranked)
    cumulative_V = probs_V.cumsum(0)
    at = rng.random() * float(cumulative_V[-1])
    index = int(torch.searchsorted(cumulative_V, at, right=True))
    # Rounding may select an index after the last possible token.
    return index if index < cumulative_V.numel() and probs_V[index] > 0 else int(probs_V.nonzero()[-1])
