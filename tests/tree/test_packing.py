from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InvalidInput
from core.tree.build import build
from core.tree.order import sort_with_lcp
from core.tree.packing import Part, first_fit_decreasing, pack, partition
from core.tree.sequences import Sequences
from tests.effort import settings

from . import reference
from .strategies import sequences


def compositions(n):
    """Every way to cut 0..n into contiguous ranges."""
    for bits in range(2 ** max(0, n - 1)):
        edges = [0] + [i + 1 for i in range(n - 1) if bits >> i & 1] + [n]
        yield list(itertools.pairwise(edges))


@given(sequences(min_size=1, max_size=7), st.integers(8, 30))
@settings(max_examples=200, deadline=None)
def test_cut_is_the_best_contiguous_partition(seqs, budget):
    order, lcp = sort_with_lcp(seqs)
    lists = [seqs.sequence(i).tolist() for i in order]
    lengths = seqs.lengths[order]
    if lengths.max() > budget:
        return

    def price(ranges):
        return [reference.count(reference.trie(lists[a:b])) for a, b in ranges]

    best = min((sum(price(ranges)), len(ranges)) for ranges in compositions(len(lists)) if max(price(ranges)) <= budget)
    parts = partition(lengths, lcp, budget)
    assert parts[0][0] == 0 and parts[-1][1] == len(lists)
    assert all(a[1] == b[0] for a, b in itertools.pairwise(parts))
    assert max(price(parts)) <= budget
    assert (sum(price(parts)), len(parts)) == best


@given(sequences(max_size=9), st.integers(4, 24), st.data())
@settings(max_examples=200, deadline=None)
def test_every_sequence_is_in_one_row_or_reported(seqs, budget, data):
    groups = np.array([data.draw(st.integers(0, 2)) for _ in range(len(seqs))], dtype=np.int64)
    packing = pack(seqs, groups, budget)
    assert packing.over_budget.tolist() == np.flatnonzero(seqs.lengths > budget).tolist()
    placed = []
    for index, parts in enumerate(packing.rows):
        row = packing.row(seqs, index, pad=True)
        assert len(row.tokens) == budget and row.n_packed == packing.row_tokens[index]
        assert row.attention_pairs == sum(part.attention_pairs for part in parts)
        for local, member in enumerate(row.members.tolist()):
            assert row.restore(row.tokens, local).tolist() == seqs.sequence(member).tolist()
            placed.append(member)
        for part in parts:
            assert set(groups[part.order]) == {part.group}
    assert sorted(placed + packing.over_budget.tolist()) == list(range(len(seqs)))
    assert packing.n_original == seqs.lengths[placed].sum()
    assert packing.n_padding == budget * len(packing.rows) - packing.n_packed


def plain_first_fit(sizes, budget):
    """Numbers of the parts in each row: largest first, ties in the order given, each where it first fits."""
    rows = []
    for number in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        for row in rows:
            if sum(sizes[i] for i in row) + sizes[number] <= budget:
                row.append(number)
                break
        else:
            rows.append([number])
    return rows


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(40, 90))
@settings(max_examples=200, deadline=None)
def test_rows_are_those_of_first_fit_decreasing(sizes, budget):
    nothing = np.zeros(0, dtype=np.int64)
    parts = [Part(number, nothing, nothing, nothing, size, size, 0) for number, size in enumerate(sizes)]
    rows = first_fit_decreasing(parts, budget)
    assert [[part.group for part in row] for row in rows] == plain_first_fit(sizes, budget)


def test_a_group_that_fits_is_one_tree():
    seqs = Sequences.from_lists([[1, 2, 3]] * 4, [[4], [5], [4], [6, 7]])
    packing = pack(seqs, np.zeros(4, dtype=np.int64), 100)
    assert len(packing.rows) == 1 and packing.n_packed == build(seqs).n_packed == 7


def test_the_budget_must_be_positive():
    with pytest.raises(InvalidInput, match="token budget"):
        pack(Sequences.from_lists([[1]], [[2]]), np.zeros(1, dtype=np.int64), 0)
