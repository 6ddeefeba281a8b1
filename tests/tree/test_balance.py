from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InvalidInput
from core.tree.balance import CostModel, balance, balance_rows
from core.tree.packing import pack
from core.tree.sequences import Sequences
from tests.effort import settings


@given(st.lists(st.integers(0, 1000), max_size=40), st.integers(1, 6))
@settings(max_examples=200, deadline=None)
def test_each_row_has_one_rank_and_counts_are_equal(costs, k):
    costs = np.array(costs, dtype=np.float64)
    dealt = balance(costs, k)
    assert sorted(np.concatenate(dealt.ranks).tolist()) == list(range(len(costs)))
    counts = [len(rank) for rank in dealt.ranks]
    assert max(counts) - min(counts) <= 1
    assert dealt.costs.tolist() == [costs[rank].sum() for rank in dealt.ranks]
    assert dealt.imbalance >= 1


@given(st.lists(st.integers(1, 50), min_size=2, max_size=7))
@settings(max_examples=400, deadline=None)
def test_two_ranks_are_near_the_best_of_all_deals(costs):
    """With at most k = 4 rows a rank the differencing method is within 2 - Σ i!/k! = 19/12 of the best equal deal."""
    values = np.array(costs, dtype=np.float64)
    half = (len(values) + 1) // 2
    deals = [np.array(d) for d in product((0, 1), repeat=len(values)) if half >= sum(d) >= len(values) - half]
    best = min(max(values[d == 0].sum(), values[d == 1].sum()) for d in deals)
    assert best <= balance(values, 2).costs.max() <= 19 / 12 * best + 1e-9


def test_a_deep_tree_costs_more_than_a_shallow_one_of_the_same_size():
    """Two long rows and two of short sequences, equal in tokens: by tokens any deal is even, by cost one is."""
    rng = np.random.default_rng(0)
    long = [rng.integers(0, 99, 400) for _ in range(2)]
    short = [rng.integers(0, 99, 20) for _ in range(40)]
    seqs = Sequences.from_lists([*long, *short], [[]] * 42)
    rows = pack(seqs, np.arange(42), 400).rows
    tokens_only, cost = CostModel(1.0, 0.0), CostModel(1.0, 1.0)
    assert len(rows) == 4 and {tokens_only.of_row(row) for row in rows} == {400.0}
    dealt = balance_rows(rows, 2, cost)
    assert dealt.imbalance == pytest.approx(1.0, abs=1e-3)
    assert cost.of_row(rows[0]) == 400 + 400 * 401 / 2


def test_cost_of_a_decoder():
    model = CostModel.of_decoder(hidden=8, intermediate=16, heads=2, kv_heads=1, head_width=4)
    assert model.per_token == 8 * 4 * 6 + 3 * 8 * 16
    assert model.per_pair == 16


def test_at_least_one_rank():
    with pytest.raises(InvalidInput):
        balance(np.ones(2), 0)
    assert [len(rank) for rank in balance(np.zeros(0), 3).ranks] == [0, 0, 0]
