"""What the pool knows of sharing gives the same order, prefixes and tree as comparing every token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InvalidInput
from core.tree.build import build
from core.tree.order import sort_by_deltas, sort_by_tokens
from core.tree.packing import pack
from core.tree.sequences import Sequences
from tests.effort import settings

from .strategies import tokens


@st.composite
def with_deltas(draw) -> Sequences:
    """Forests as the pool stores them: extensions, replaced tails, retries, steps whose parent isn't told."""
    lists: list[list[int]] = []
    parent, n_shared = [], []
    for _ in range(draw(st.integers(0, 14))):
        fresh = draw(st.lists(tokens, max_size=4))
        base = draw(st.integers(-1, len(lists) - 1))
        known = 0 if base < 0 else draw(st.sampled_from([len(lists[base]), draw(st.integers(0, len(lists[base])))]))
        lists.append((lists[base][:known] if base >= 0 else []) + fresh)
        base_or_none = base if draw(st.integers(0, 4)) else -1
        parent.append(base_or_none)
        n_shared.append(known if base_or_none >= 0 else 0)
    plain = Sequences.from_lists(lists, [[]] * len(lists))
    base_or_none = replace(plain, parent=np.array(parent, dtype=np.int64), n_shared=np.array(n_shared, dtype=np.int64))
    return base_or_none.take(draw(st.permutations(range(len(lists)))))


@given(with_deltas(), st.data())
@settings(max_examples=400, deadline=None)
def test_deltas_give_the_order_and_prefixes_of_the_tokens(seqs, data):
    index = np.flatnonzero(data.draw(st.lists(st.booleans(), min_size=len(seqs), max_size=len(seqs))))
    for chosen in (np.arange(len(seqs)), index):
        order, lcp = sort_by_deltas(seqs, chosen)
        wanted_order, wanted_lcp = sort_by_tokens(seqs, chosen)
        assert order.tolist() == wanted_order.tolist()
        assert lcp.tolist() == wanted_lcp.tolist()


@given(with_deltas())
@settings(max_examples=150, deadline=None)
def test_deltas_give_the_same_tree_and_rows(seqs):
    blind = replace(seqs, parent=None, n_shared=None)
    one, two = build(seqs), build(blind)
    for name in ("tokens", "position_ids", "end", "members", "run_offsets", "run_start", "run_length", "order", "lcp"):
        assert np.array_equal(getattr(one, name), getattr(two, name)), name
    groups = np.arange(len(seqs)) % 3
    for mine, other in zip(pack(seqs, groups, 9).rows, pack(blind, groups, 9).rows, strict=True):
        assert [part.order.tolist() for part in mine] == [part.order.tolist() for part in other]


def test_tokens_of_led_sequences_are_not_read():
    """Ids that contradict the deltas go unnoticed where a longer sequence vouches for them: the way is really taken."""
    seqs = Sequences.from_lists([[1, 2], [1, 2, 3]], [[], []])
    lying = replace(seqs, parent=np.array([-1, 0]), n_shared=np.array([0, 2]), ids=np.array([9, 9, 1, 2, 3], np.int32))
    assert sort_by_deltas(lying, np.arange(2))[1].tolist() == [0, 2]
    assert sort_by_tokens(lying, np.arange(2))[1].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("parent", "n_shared", "field"),
    [
        ([-1, 5], [0, 0], "parent"),
        ([-1, 0], [0, 3], "n_shared"),
        ([-1, -1], [0, 1], "n_shared"),
        ([-1], [0, 0], "parent"),
    ],
)
def test_deltas_that_cannot_be_are_refused(parent, n_shared, field):
    with pytest.raises(InvalidInput) as caught:
        replace(
            Sequences.from_lists([[1, 2], [1, 2, 3]], [[], []]),
            parent=np.array(parent, dtype=np.int64),
            n_shared=np.array(n_shared, dtype=np.int64),
        )
    assert caught.value.field == field


@pytest.mark.parametrize("ring", [2, 3, 5])
def test_equal_sequences_may_name_each_other(ring):
    seqs = Sequences.from_lists([[1]] * ring + [[1, 2]], [[]] * (ring + 1))
    parent = np.append(np.roll(np.arange(ring), 1), -1)
    order, lcp = sort_by_deltas(replace(seqs, parent=parent, n_shared=np.array([1] * ring + [0])), np.arange(ring + 1))
    assert order.tolist() == list(range(ring + 1)) and lcp.tolist() == [0] + [1] * ring
