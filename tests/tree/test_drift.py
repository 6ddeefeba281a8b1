from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from core.tree.build import build
from core.tree.drift import node_of_turn, shared_with, unshared_tokens
from core.tree.nodes import tree_nodes
from tests.effort import settings

from .strategies import sequences


@given(sequences(min_size=1), st.data())
@settings(max_examples=150, deadline=None)
def test_lost_sharing_is_counted_token_by_token(seqs, data):
    previous = np.array([data.draw(st.integers(-1, len(seqs) - 1)) for _ in range(len(seqs))], dtype=np.int64)
    shared, lost = shared_with(seqs, previous), unshared_tokens(seqs, previous)
    for i, other in enumerate(previous.tolist()):
        mine, theirs = seqs.sequence(i).tolist(), seqs.sequence(other).tolist() if other >= 0 else []
        n = 0
        while n < min(len(mine), len(theirs)) and mine[n] == theirs[n]:
            n += 1
        assert (shared[i], lost[i]) == (n, len(theirs) - n)


@given(sequences(min_size=1), st.data())
@settings(max_examples=150, deadline=None)
def test_the_node_of_a_turn_holds_that_token(seqs, data):
    tree = build(seqs)
    nodes = tree_nodes(tree)
    row = data.draw(st.integers(0, len(seqs) - 1))
    shared = data.draw(st.integers(0, 12))
    node = node_of_turn(tree, nodes, row, shared)
    path = tree.path(row)
    if shared >= len(path):
        assert node == -1
    else:
        assert nodes.start[node] <= path[shared] < nodes.start[node] + nodes.length[node]
        assert row in nodes.owners(node)
