"""Distributes packed rows over k ranks: equal numbers of rows, and nearly equal work.

The cost of linear layers depends on a row's tokens, that of attention on its visible pairs, Σ (depth + 1). The method
is Karmarkar and Karp's largest differencing in its balanced k-way form: sorted rows start as k-tuples, and the two
partial assignments with the largest spread are merged, largest with smallest. Row counts differ by at most one, which
collectives (FSDP, DDP) need and plain longest-first does not give.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from core.errors import InvalidInput
from core.tree.packing import Part
from core.tree.sequences import Int64
from core.tree.terms import Float64


@dataclass(frozen=True, slots=True)
class CostModel:
    """Cost of a row = ``per_token`` · tokens + ``per_pair`` · visible pairs, in any one unit.

    The defaults are multiply-adds of a decoder layer of width 4096 (MLP 3 × 11008, grouped-query attention): 1.9e8 per
    token, and 2 × 4096 per visible pair.
    """

    per_token: float = 1.9e8
    per_pair: float = 8192.0

    @classmethod
    def of_decoder(cls, hidden: int, intermediate: int, heads: int, kv_heads: int, head_width: int) -> CostModel:
        """Multiply-adds of one decoder layer with a gated MLP."""
        projections = hidden * head_width * (2 * heads + 2 * kv_heads)
        return cls(float(projections + 3 * hidden * intermediate), float(2 * heads * head_width))

    def training_flops(self, tokens: float, pairs: float) -> float:
        """FLOPs of one layer's forward and backward: 2 per multiply-add, once forward and twice backward.

        The usual 6·N per token (Kaplan et al., arXiv 2001.08361, table 1) for the weights, and 12 · heads · head width
        per visible pair for scores and values (PaLM, arXiv 2204.02311, appendix B, whose causal half is counted here
        pair by pair).
        """
        return 6.0 * (self.per_token * tokens + self.per_pair * pairs)

    def of_row(self, parts: Sequence[Part]) -> float:
        """Cost of a row of parts."""
        tokens = sum(part.n_packed for part in parts)
        return self.per_token * tokens + self.per_pair * sum(part.attention_pairs for part in parts)


@dataclass(frozen=True, slots=True, eq=False)
class Balance:
    """An assignment of rows to ranks.

    Attributes:
        ranks: row indices of each rank, int64, ascending.
        costs: float64 [k], cost of each rank.
    """

    ranks: list[Int64]
    costs: Float64

    @property
    def imbalance(self) -> float:
        """Largest cost divided by the mean, at least 1: the slowdown of a synchronous step."""
        mean = float(self.costs.mean())
        return float(self.costs.max()) / mean if mean else 1.0


def balance_rows(rows: Sequence[Sequence[Part]], n_ranks: int, cost: CostModel | None = None) -> Balance:
    """Distribute packed rows over ranks by their cost."""
    model = cost or CostModel()
    return balance(np.array([model.of_row(row) for row in rows], dtype=np.float64), n_ranks)


def balance(costs: Float64, n_ranks: int) -> Balance:
    """Distribute items over ranks: counts differ by at most one, costs are balanced by largest differencing.

    Args:
        costs: float64 [n], none negative.
        n_ranks: k.

    Raises:
        InvalidInput: fewer than one rank.
    """
    if n_ranks < 1:
        raise InvalidInput("there must be at least one rank", field="n_ranks")
    order = np.argsort(-costs, kind="stable").tolist()
    heap: list[tuple[float, int, list[tuple[float, list[int]]]]] = []
    for number, low in enumerate(range(0, len(order), n_ranks)):
        group = [(float(costs[i]), [i]) for i in order[low : low + n_ranks]]
        group += [(0.0, []) for _ in range(n_ranks - len(group))]
        heapq.heappush(heap, (group[-1][0] - group[0][0], number, group))
    number = len(heap)
    while len(heap) > 1:
        _, _, a = heapq.heappop(heap)
        _, _, b = heapq.heappop(heap)
        merged = [(x + y, mine + other) for (x, mine), (y, other) in zip(a, reversed(b), strict=True)]
        merged.sort(key=lambda pair: -pair[0])
        heapq.heappush(heap, (merged[-1][0] - merged[0][0], number, merged))
        number += 1
    final = heap[0][2] if heap else [(0.0, []) for _ in range(n_ranks)]
    ranks = [np.array(sorted(items), dtype=np.int64) for _, items in final]
    return Balance(ranks, np.array([float(costs[items].sum()) for items in ranks]))
