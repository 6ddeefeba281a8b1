"""Where sequences with a value part: the branch points of their prefix tree, and how much of the values each explains.

Four attempts as sequences of actions, with their rewards::

    a b d   1.0          a ─┬─ b ─┬─ d   1.0
    a b e   1.0             │     └─ e   1.0
    a c     0.0             └─ c         0.0, 0.0
    a c     0.0

After ``a`` the attempts part into ``b`` (mean 1) and ``c`` (mean 0): that explains all of the variance. ``d`` and ``e``
earn the same, so the second branch point explains none of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.tree.build import build
from core.tree.nodes import TreeNodes, tree_nodes
from core.tree.sequences import Int64, Sequences

Floats = NDArray[np.float64]
EPS = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """One way on from a branch point.

    Attributes:
        members: int64 [k], the sequences that take it, ascending.
        ends: they end at the branch point.
        mean: mean of their known values; None: none is known.
        n_known: members whose value is known.
    """

    members: Int64
    ends: bool
    mean: float | None
    n_known: int


@dataclass(frozen=True, slots=True, eq=False)
class BranchPoint:
    """A point where sequences with the same beginning part.

    Attributes:
        depth: number of tokens that they share.
        branches: the ways on, highest mean first, unknown means last.
        agreement: share of the sequences that take the most common way, 0 to 1.
        explained: share of the variance of all values that the branches' means explain, 0 to 1 (the between-group sum
            of squares of this point over the total sum of squares); None where the values are equal or fewer than two
            are known.
    """

    depth: int
    branches: tuple[Branch, ...]
    agreement: float
    explained: float | None


def branch_points(sequences: Sequences, values: Floats) -> list[BranchPoint]:
    """The branch points of sequences, in the order of their depth, those of equal depth by their first member.

    Args:
        sequences: n sequences; only ``ids`` and ``offsets`` are read.
        values: float64 [n], NaN where unknown.
    """
    nodes = tree_nodes(build(sequences))
    known = values[~np.isnan(values)]
    total = float(((known - known.mean()) ** 2).sum()) if len(known) > 1 else 0.0
    points = [_point(depth, ways, values, total) for depth, ways in _ways(sequences, nodes) if len(ways) > 1]
    return sorted(points, key=lambda one: (one.depth, min(int(way.members[0]) for way in one.branches)))


def _ways(sequences: Sequences, nodes: TreeNodes) -> list[tuple[int, list[tuple[Int64, bool]]]]:
    """(depth, its ways as (members, whether they end there)) of the root and of each node's end."""
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(nodes.parent.tolist()):
        children.setdefault(parent, []).append(node)
    empty = np.flatnonzero(sequences.lengths == 0).astype(np.int64)
    ways: list[tuple[int, list[tuple[Int64, bool]]]] = []
    for node in range(-1, len(nodes)):
        depth = 0 if node < 0 else int(nodes.depth[node] + nodes.length[node])
        ends = empty if node < 0 else np.flatnonzero(nodes.leaf_of_member == node).astype(np.int64)
        onward = [(nodes.owners(child), False) for child in children.get(node, [])]
        ways.append((depth, [*onward, *([(ends, True)] if len(ends) else [])]))
    return ways


def _point(depth: int, ways: list[tuple[Int64, bool]], values: Floats, total: float) -> BranchPoint:
    branches = []
    for members, ends in ways:
        known = values[members][~np.isnan(values[members])]
        branches.append(Branch(members, ends, float(known.mean()) if len(known) else None, len(known)))
    sizes = [len(one.members) for one in branches]
    of_point = [(one.mean, one.n_known) for one in branches if one.mean is not None]
    explained = None
    if total > 0:
        n = sum(k for _, k in of_point)
        mean = sum(value * k for value, k in of_point) / n if n else 0.0
        share = sum(k * (value - mean) ** 2 for value, k in of_point) / total
        # What is left of rounding is no difference.
        explained = 0.0 if share < EPS else min(share, 1.0)
    best_first = sorted(branches, key=lambda one: (one.mean is None, -(one.mean or 0.0), int(one.members[0])))
    return BranchPoint(depth, tuple(best_first), max(sizes) / sum(sizes), explained)
