from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.serving.protocol import Sampling
from core.serving.sampler import draw
from tests.effort import settings


def expected(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """The distribution, written out plainly."""
    probs = np.exp(logits / sampling.temperature - np.max(logits / sampling.temperature))
    if sampling.top_k:
        keep = np.argsort(-probs, kind="stable")[: sampling.top_k]
        probs = np.where(np.isin(np.arange(len(probs)), keep), probs, 0)
    probs = probs / probs.sum()
    probs = np.where(probs >= sampling.min_p * probs.max(), probs, 0)
    if sampling.top_p < 1:
        total, mass = probs.sum(), 0.0
        kept = np.zeros_like(probs)
        for i in np.argsort(-probs, kind="stable"):
            if mass >= sampling.top_p * total:
                break
            kept[i] = probs[i]
            mass += probs[i]
        probs = kept
    return probs / probs.sum()


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.5),
        Sampling(temperature=2.0, top_k=5),
        Sampling(top_p=0.7),
        Sampling(min_p=0.2),
        Sampling(temperature=1.3, top_k=9, top_p=0.8, min_p=0.05),
    ],
)
def test_draws_follow_the_distribution(sampling: Sampling):
    logits = torch.linspace(-2, 3, 16)[torch.randperm(16, generator=torch.Generator().manual_seed(1))]
    probs = expected(logits.double().numpy(), sampling)
    rng = random.Random(7)
    n = 4000
    counts = Counter(draw(logits, sampling, rng) for _ in range(n))
    assert all(probs[i] > 0 for i in counts)
    chi2 = sum((counts[i] - n * p) ** 2 / (n * p) for i, p in enumerate(probs) if p > 0)
    assert chi2 < 45  # 15 degrees of freedom: p < 1e-4


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-50, 50, width=32), min_size=2, max_size=20), st.integers(0, 10**6))
def test_greedy_and_banned(logits, seed):
    tensor = torch.tensor(logits, dtype=torch.float32)
    rng = random.Random(seed)
    best = draw(tensor, Sampling(temperature=0), rng)
    assert tensor[best] == tensor.max()
    assert draw(tensor, Sampling(temperature=0), rng, banned=[best]) != best
    assert draw(tensor, Sampling(), rng, banned=[best]) != best
    assert tensor[draw(tensor, Sampling(top_k=1), rng)] == tensor.max()
