from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InvalidInput
from core.tree.build import build
from core.tree.mask import dense_mask, mask_blocks
from core.tree.sequences import Sequences
from tests.effort import settings

from .strategies import sequences


@given(sequences(min_size=1), st.data())
@settings(max_examples=200, deadline=None)
def test_image_is_the_mean_of_the_dense_mask(seqs, data):
    end = build(seqs).end
    size = len(end)
    if size == 0:
        return
    dense = dense_mask(end)
    q0, k0 = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, size - 1))
    q1, k1 = data.draw(st.integers(q0 + 1, size)), data.draw(st.integers(k0 + 1, size))
    image = mask_blocks(end, q0, q1, k0, k1, (data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))))
    for r, (qa, qb) in enumerate(zip(image.q_edges, image.q_edges[1:], strict=False)):
        for c, (ka, kb) in enumerate(zip(image.k_edges, image.k_edges[1:], strict=False)):
            assert image.coverage[r, c] == pytest.approx(dense[qa:qb, ka:kb].mean(), abs=1e-6)


def test_full_zoom_shows_single_tokens():
    end = build(Sequences.from_lists([[1, 2], [1, 3], [4]], [[5], [5], []])).end
    image = mask_blocks(end, 0, len(end), 0, len(end), 100)
    assert np.array_equal(image.coverage.astype(bool), dense_mask(end))


def test_a_million_tokens_need_no_square_memory():
    rng = np.random.default_rng(0)
    lists = [rng.integers(0, 1000, 20000, dtype=np.int32) for _ in range(50)]
    end = build(Sequences.from_lists(lists, [[]] * 50)).end
    image = mask_blocks(end, 0, len(end), 0, len(end), 512)
    assert image.coverage.shape == (512, 512)
    pairs = (image.coverage * np.diff(image.q_edges)[:, None] * np.diff(image.k_edges)[None, :]).sum(dtype=np.float64)
    assert pairs == pytest.approx(50 * 20000 * 20001 / 2, rel=1e-3)


def test_refusals():
    end = np.arange(1, 9001, dtype=np.int32)
    with pytest.raises(InvalidInput):
        dense_mask(end)
    with pytest.raises(InvalidInput):
        mask_blocks(end, 5, 5, 0, 10)
    with pytest.raises(InvalidInput):
        mask_blocks(end, 0, 5, 0, 10, 0)
