"""Measures lost prefix sharing within a trajectory, where a step's prompt differs from the step before it.

If an agent only appends, a step shares all tokens of the step before. If its harness renders the history again
(``realigned``) or replaces its end (``tail_replaced``), the prompt diverges earlier, and all later tokens are computed
again.
"""

from __future__ import annotations

import numpy as np

from core.tree.build import PackedTree
from core.tree.nodes import TreeNodes
from core.tree.sequences import Int64, Sequences

DRIFTS = frozenset({"realigned", "tail_replaced"})
"""Transitions that lose sharing unintentionally; compactions and forks do so on purpose."""


def shared_with(sequences: Sequences, previous: Int64) -> Int64:
    """Leading tokens that each sequence shares with another: int64 [n].

    Args:
        sequences: n sequences.
        previous: int64 [n], the sequence before it in its trajectory; -1 for none, which shares 0.
    """
    shared = np.zeros(len(sequences), dtype=np.int64)
    for i in np.flatnonzero(previous >= 0).tolist():
        one, other = sequences.sequence(i), sequences.sequence(int(previous[i]))
        limit = min(len(one), len(other))
        differs = one[:limit] != other[:limit]
        at = int(differs.argmax()) if limit else 0
        shared[i] = at if limit and differs[at] else limit
    return shared


def unshared_tokens(sequences: Sequences, previous: Int64) -> Int64:
    """Tokens of the step before that each sequence doesn't share: int64 [n]; 0 for a first step."""
    before = np.where(previous >= 0, sequences.lengths[previous], 0)
    lost: Int64 = before - shared_with(sequences, previous)
    return lost


def node_of_turn(tree: PackedTree, nodes: TreeNodes, row: int, shared: int) -> int:
    """The node with a member's token at index ``shared``; -1 if the member is not longer."""
    path = tree.path(row)
    if shared >= len(path):
        return -1
    return int(np.searchsorted(nodes.start, path[shared], side="right")) - 1
