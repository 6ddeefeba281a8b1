"""Packs prefix trees into rows under a token budget.

First, the sorted sequences of each prompt group are cut into contiguous parts, each of which is one tree. A cut before
rank t repeats its shared prefix ``lcp[t]``, so the best cuts are found by dynamic programming over intervals. Then
whole parts are placed in rows by first-fit decreasing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from core.errors import InvalidInput
from core.tree.build import PackedTree, concatenate, layout
from core.tree.order import sort_with_lcp
from core.tree.sequences import Int64, Sequences


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A contiguous range of one group's sorted sequences, which becomes one tree.

    Attributes:
        group: the caller's group number.
        order: int64 [m], sequence indices in sorted order.
        lcp: int64 [m], ``lcp[0]`` is 0.
        lengths: int64 [m], tokens of its sequences.
        n_packed: tokens of its tree.
        n_original: tokens of its sequences.
        attention_pairs: visible pairs of its tree.
    """

    group: int
    order: Int64
    lcp: Int64
    lengths: Int64
    n_packed: int
    n_original: int
    attention_pairs: int


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """Rows of parts, none longer than the budget.

    Attributes:
        rows: parts of each row, in order.
        over_budget: int64 [k], sequences longer than the budget, which are in no row.
    """

    token_budget: int
    rows: list[list[Part]]
    over_budget: Int64

    @property
    def row_tokens(self) -> Int64:
        """Packed tokens per row, int64 [n_rows]."""
        return np.array([sum(part.n_packed for part in row) for row in self.rows], dtype=np.int64)

    @property
    def n_packed(self) -> int:
        """Packed tokens of all rows."""
        return int(self.row_tokens.sum())

    @property
    def n_original(self) -> int:
        """Tokens of the packed sequences before sharing."""
        return sum(part.n_original for row in self.rows for part in row)

    @property
    def n_padding(self) -> int:
        """Tokens needed to fill every row up to the budget."""
        return self.token_budget * len(self.rows) - self.n_packed

    def row(self, sequences: Sequences, index: int, *, pad: bool = False, pad_id: int = 0) -> PackedTree:
        """The arrays of one row, optionally padded to the budget. ``members`` index into ``sequences``."""
        trees = [layout(sequences, part.order, part.lcp) for part in self.rows[index]]
        return concatenate(trees, pad_to=self.token_budget if pad else None, pad_id=pad_id)


def pack(sequences: Sequences, groups: Int64, token_budget: int) -> Packing:
    """Pack sequences into rows of at most ``token_budget`` tokens; each group keeps its own trees.

    Args:
        sequences: n sequences.
        groups: int64 [n], any numbers; sequences of one number share prefixes.
        token_budget: longest row, tokens.
    """
    _check_budget(token_budget)
    parts: list[Part] = []
    over: list[Int64] = []
    by_group = np.argsort(groups, kind="stable")
    borders = np.flatnonzero(np.diff(groups[by_group])) + 1
    for index in np.split(by_group, borders) if len(by_group) else []:
        group = int(groups[index[0]])
        group_parts, too_long = group_parts_of(sequences, index, group, token_budget)
        parts += group_parts
        over.append(too_long)
    oversized = np.sort(np.concatenate(over)) if over else np.zeros(0, dtype=np.int64)
    return Packing(token_budget, first_fit_decreasing(parts, token_budget), oversized)


def group_parts_of(sequences: Sequences, index: Int64, group: int, token_budget: int) -> tuple[list[Part], Int64]:
    """Cut one group into parts within the budget with the fewest packed tokens.

    Args:
        sequences: the source.
        index: int64 [m], the group's sequences, ascending.
        group: number written into the parts.
        token_budget: most packed tokens of a part.

    Returns:
        the parts, and the sequences longer than the budget (int64, ascending).
    """
    _check_budget(token_budget)
    lengths = sequences.lengths[index]
    fits = lengths <= token_budget
    inside = index[fits]
    order, lcp = sort_with_lcp(sequences, inside)
    sorted_lengths = sequences.lengths[order]
    parts = []
    for low, high in partition(sorted_lengths, lcp, token_budget):
        part_lcp = lcp[low:high].copy()
        part_lcp[:1] = 0
        full = sorted_lengths[low:high]
        pairs = (full * (full + 1) - part_lcp * (part_lcp + 1)) // 2
        parts.append(
            Part(
                group=group,
                order=order[low:high],
                lcp=part_lcp,
                lengths=full,
                n_packed=int((full - part_lcp).sum()),
                n_original=int(full.sum()),
                attention_pairs=int(pairs.sum()),
            )
        )
    return parts, np.sort(index[~fits])


def partition(lengths: Int64, lcp: Int64, token_budget: int) -> list[tuple[int, int]]:
    """The best contiguous partition of sorted sequences: fewest packed tokens, then fewest parts.

    A part ``[i, j)`` costs ``lengths[i] + Σ novel[i+1:j]`` = ``P[j] − P[i] + lcp[i]`` with P the prefix sum of
    ``novel = lengths − lcp``. P telescopes over the parts, so only the sum of the repeated ``lcp[i]`` is minimised.

    Args:
        lengths: int64 [n], each at most ``token_budget``.
        lcp: int64 [n].
        token_budget: most tokens of a part.

    Returns:
        half-open rank ranges that cover 0..n in order.
    """
    n = len(lengths)
    if n == 0:
        return []
    repeated = lcp.copy()
    repeated[0] = 0
    prefix = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths - repeated)])
    best = np.zeros(n + 1, dtype=np.int64)
    n_parts = np.zeros(n + 1, dtype=np.int64)
    source = np.zeros(n + 1, dtype=np.int64)
    for stop in range(1, n + 1):
        low = int(np.searchsorted(prefix, prefix[stop] - token_budget))
        first = np.arange(low, stop)
        feasible = first[prefix[stop] - prefix[first] + repeated[first] <= token_budget]
        price = best[feasible] + repeated[feasible]
        cheapest = feasible[price == price.min()]
        choice = int(cheapest[n_parts[cheapest].argmin()])
        source[stop] = choice
        best[stop] = best[choice] + repeated[choice]
        n_parts[stop] = n_parts[choice] + 1
    ranges: list[tuple[int, int]] = []
    stop = n
    while stop > 0:
        ranges.append((int(source[stop]), stop))
        stop = int(source[stop])
    return ranges[::-1]


def first_fit_decreasing(parts: Iterable[Part], token_budget: int) -> list[list[Part]]:
    """Place parts in rows, largest first, each in the first row with enough room; ties by group, then by order."""
    ordered = sorted(enumerate(parts), key=lambda item: (-item[1].n_packed, item[1].group, item[0]))
    rows: list[list[Part]] = []
    # A segment tree of the maximum free room finds the first row with enough room in O(log rows).
    half = 1 << max(len(ordered) - 1, 0).bit_length()
    room = [token_budget] * (2 * half)
    for _, part in ordered:
        spot = 1
        while spot < half:
            spot *= 2
            spot += room[spot] < part.n_packed
        if spot - half == len(rows):
            rows.append([])
        rows[spot - half].append(part)
        room[spot] -= part.n_packed
        while spot > 1:
            spot //= 2
            room[spot] = max(room[2 * spot], room[2 * spot + 1])
    return rows


def _check_budget(token_budget: int) -> None:
    if token_budget < 1:
        raise InvalidInput("the token budget must be at least 1", field="token_budget")
