"""Finds shared prefixes of token sequences; only the leaves are in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from core.linking.calls import Int32


def shared_prefix(left: NDArray[Any], right: NDArray[Any]) -> int:
    """Length of the longest common prefix of two flat arrays."""
    n = min(left.size, right.size)
    if n == 0:
        return 0
    same = left[:n] == right[:n]
    first = int(same.argmin())
    return n if same[first] else first


@dataclass
class TokenForest:
    """Full sequences (prompt, then response) by node, stored only for leaves, which no other sequence extends."""

    leaves: dict[int, Int32] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)
    prefix_of: dict[int, int] = field(default_factory=dict)
    """Node -> the longest other node that is a prefix of it."""

    def matches(self, prompt: Int32) -> dict[int, int]:
        """Number of leading tokens that ``prompt`` shares with each node."""
        lengths: dict[int, int] = {}
        for leaf, tokens in self.leaves.items():
            n = shared_prefix(tokens, prompt)
            node: int | None = leaf
            while node is not None:
                lengths[node] = max(lengths.get(node, 0), min(n, self.lengths[node]))
                node = self.prefix_of.get(node)
        return lengths

    def add(self, node: int, tokens: Int32, matches: Mapping[int, int]) -> None:
        """Add a node; ``matches`` is the result of ``matches`` for its prompt."""
        contained = [other for other, n in matches.items() if n == self.lengths[other]]
        if contained:
            longest = max(contained, key=lambda other: (self.lengths[other], other))
            self.prefix_of[node] = longest
            self.leaves.pop(longest, None)
        self.leaves[node] = tokens
        self.lengths[node] = int(tokens.size)

    @property
    def n_bytes(self) -> int:
        """Memory of the leaves, bytes."""
        return sum(tokens.nbytes for tokens in self.leaves.values())
