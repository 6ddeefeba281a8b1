"""The compressed tree as nodes for drawing: one node per run of tokens that is shared by the same members."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.tree.build import PackedTree
from core.tree.sequences import Int32, Int64


@dataclass(frozen=True, slots=True, eq=False)
class TreeNodes:
    """N nodes in depth-first order; node i's tokens are ``tokens[start[i]:start[i] + length[i]]``.

    The members of a node have contiguous ranks, which are stored as two numbers; ``owners(i)`` returns the members.

    Attributes:
        parent: int32 [N], -1 for a root.
        start: int32 [N], packed position of the first token.
        length: int32 [N], tokens.
        depth: int32 [N], tokens before the node in its members' sequences.
        level: int32 [N], nodes above it.
        owner_first, owner_stop: int32 [N], ranks ``[first, stop)`` whose sequences pass through the node.
        member_of_rank: int64 [m], row of ``PackedTree.members`` at each rank.
        leaf_of_member: int32 [m], the node where each member ends; -1 for an empty sequence.
    """

    parent: Int32
    start: Int32
    length: Int32
    depth: Int32
    level: Int32
    owner_first: Int32
    owner_stop: Int32
    member_of_rank: Int64
    leaf_of_member: Int32

    def __len__(self) -> int:
        return len(self.start)

    @property
    def n_owners(self) -> Int32:
        """Members that pass through each node: int32 [N]."""
        return self.owner_stop - self.owner_first

    def owners(self, node: int) -> Int64:
        """Members (rows of ``PackedTree.members``) that pass through a node, ascending."""
        return np.sort(self.member_of_rank[self.owner_first[node] : self.owner_stop[node]])


def tree_nodes(tree: PackedTree) -> TreeNodes:
    """Cut the packed row where the set of owners changes. Costs one pass over the row, no per-token Python."""
    n_packed, n_ranks = tree.n_packed, len(tree.order)
    novel = np.diff(np.append(tree.novel_start, n_packed))
    adding = np.flatnonzero(novel > 0)  # ranks that add tokens; every packed token belongs to one of them
    turns = np.flatnonzero(np.diff(tree.end[:n_packed])) + 1
    start = np.union1d(turns, tree.novel_start[adding]).astype(np.int64)
    length = np.diff(np.append(start, n_packed))
    rank_at = np.searchsorted(tree.novel_start[adding], start, side="right") - 1
    first = adding[rank_at]
    # A subtree ends where a rank starts to add tokens, and that rank is the first non-owner.
    adding_start = np.append(tree.novel_start[adding], n_packed)
    stop = np.append(adding, n_ranks)[np.searchsorted(adding_start, tree.end[start])]

    last_of_path = _last_before(tree)
    is_run_start = tree.novel_start[first] == start
    parent = np.arange(len(start), dtype=np.int64) - 1
    above = last_of_path[first[is_run_start]]
    parent[is_run_start] = np.where(above < 0, -1, np.searchsorted(start, above, side="right") - 1)

    level = np.zeros(len(start), dtype=np.int32)
    for node, up in enumerate(parent.tolist()):
        if up >= 0:
            level[node] = level[up] + 1
    return TreeNodes(
        parent=parent.astype(np.int32),
        start=start.astype(np.int32),
        length=length.astype(np.int32),
        depth=tree.position_ids[start],
        level=level,
        owner_first=first.astype(np.int32),
        owner_stop=stop.astype(np.int32),
        member_of_rank=tree.order,
        leaf_of_member=_leaves(tree, start),
    )


def _last_before(tree: PackedTree) -> Int64:
    """Per rank, packed position of the last token it shares with its predecessor; -1 when it shares none."""
    before = np.full(len(tree.order), -1, dtype=np.int64)
    for rank in np.flatnonzero(tree.lcp > 0).tolist():
        row = tree.order[rank]
        runs = slice(tree.run_offsets[row], tree.run_offsets[row + 1])
        ends = np.cumsum(tree.run_length[runs], dtype=np.int64)
        wanted = int(tree.lcp[rank]) - 1
        run = int(np.searchsorted(ends, wanted, side="right"))
        offset = wanted - (int(ends[run - 1]) if run else 0)
        before[rank] = int(tree.run_start[runs][run]) + offset
    return before


def _leaves(tree: PackedTree, start: Int64) -> Int32:
    """Node of each member's last token."""
    has_runs = np.diff(tree.run_offsets) > 0
    leaves = np.full(len(tree.members), -1, dtype=np.int32)
    last_run = tree.run_offsets[1:][has_runs] - 1
    last_token = tree.run_start[last_run].astype(np.int64) + tree.run_length[last_run] - 1
    leaves[has_runs] = np.searchsorted(start, last_token, side="right") - 1
    return leaves
