"""The layout of a plan's steps in packed rows: trees per prompt group, rows under the token budget.

Token ids are read group by group and released; a row's arrays are made at access.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from core.credit.types import Ints
from core.errors import NotFound
from core.tree.balance import Balance, balance_rows
from core.tree.build import PackedTree, concatenate, layout
from core.tree.packing import Part, first_fit_decreasing, group_parts_of
from core.tree.sequences import Sequences

CHUNK_TOKENS = 16_000_000
"""Tokens read at once: 64 MB of ids."""


class TokenReader(Protocol):
    """The protocol by which layout and export read tokens."""

    def sequences(self, step_uids: Sequence[str]) -> Sequences:
        """Full sequences of these steps, in the order given."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class PlanLayout:
    """Packed rows of a plan.

    Attributes:
        token_budget: longest row, tokens.
        rows: parts of each row; ``Part.order`` indexes the plan's steps, ``Part.group`` its groups.
        over_budget: plan steps longer than a row (int64): none, unless the pool's lengths were wrong.
        group_tokens: int64 [g], tokens of each group before sharing.
        group_packed: int64 [g], packed tokens of each group, shared prefixes repeated across parts included.
        attention_pairs, attention_pairs_separate: visible pairs packed, and for separate sequences.
        step_uids: the plan's steps.
        dealt: the rows dealt to the trainer's ranks: as many each, and nearly the same work.
    """

    token_budget: int
    rows: list[list[Part]]
    over_budget: Ints
    group_tokens: Ints
    group_packed: Ints
    attention_pairs: int
    attention_pairs_separate: int
    step_uids: list[str]
    dealt: Balance

    @property
    def row_tokens(self) -> Ints:
        """Packed tokens per row, int64 [n_rows]."""
        return np.array([sum(part.n_packed for part in row) for row in self.rows], dtype=np.int64)

    @property
    def n_tokens(self) -> int:
        """Tokens before sharing."""
        return int(self.group_tokens.sum())

    @property
    def n_packed_tokens(self) -> int:
        """Tokens of all rows without padding."""
        return int(self.group_packed.sum())

    @property
    def step_packed(self) -> Ints:
        """Tokens that each plan step adds to its row, int64 [n]: its length minus what it shares with earlier steps."""
        novel = np.zeros(len(self.step_uids), dtype=np.int64)
        for row in self.rows:
            for part in row:
                novel[part.order] = part.lengths - part.lcp
        return novel

    @property
    def row_ranks(self) -> Ints:
        """Rank of each row, int64 [n_rows]."""
        ranks = np.zeros(len(self.rows), dtype=np.int64)
        for rank, rows in enumerate(self.dealt.ranks):
            ranks[rows] = rank
        return ranks

    @property
    def token_ratio(self) -> float | None:
        """Packed tokens / original tokens; None for no tokens."""
        return self.n_packed_tokens / self.n_tokens if self.n_tokens else None

    def row(self, reader: TokenReader, index: int, *, pad: bool = False) -> tuple[PackedTree, Sequences]:
        """One row's arrays and the sequences it is made of.

        ``members`` of the tree index the sequences; ``Sequences.step_uids`` names them.

        Raises:
            NotFound: no such row.
        """
        if not 0 <= index < len(self.rows):
            raise NotFound(f"no row {index}", field="row", hint=f"the layout has {len(self.rows)} rows")
        parts = self.rows[index]
        sequences = reader.sequences([self.step_uids[i] for part in parts for i in part.order.tolist()])
        trees, at = [], 0
        for part in parts:
            local = np.arange(at, at + len(part.order), dtype=np.int64)
            trees.append(layout(sequences, local, part.lcp))
            at += len(part.order)
        return concatenate(trees, pad_to=self.token_budget if pad else None), sequences

    def for_ranks(self, n_ranks: int) -> PlanLayout:
        """The same rows, dealt to ``n_ranks`` ranks."""
        return self if n_ranks == len(self.dealt.ranks) else replace(self, dealt=balance_rows(self.rows, n_ranks))

    def to_json(self) -> dict[str, Any]:
        """Statistics as JSON values; ``row_tokens``, ``row_ranks`` per row; ``rank_imbalance``: busiest / mean."""
        return {
            "token_budget": self.token_budget,
            "n_rows": len(self.rows),
            "n_tokens": self.n_tokens,
            "n_packed_tokens": self.n_packed_tokens,
            "n_padding": self.token_budget * len(self.rows) - self.n_packed_tokens,
            "token_ratio": self.token_ratio,
            "attention_pairs": self.attention_pairs,
            "attention_pairs_separate": self.attention_pairs_separate,
            "row_tokens": self.row_tokens.tolist(),
            "n_ranks": len(self.dealt.ranks),
            "row_ranks": self.row_ranks.tolist(),
            "rank_imbalance": self.dealt.imbalance,
            "n_over_budget": len(self.over_budget),
        }


def chunks(
    lengths: Ints, borders: Ints, max_tokens: int = CHUNK_TOKENS, stops: Ints | None = None
) -> Iterator[tuple[int, int]]:
    """Ranges ``[low, high)`` of steps that end on ``borders`` and hold about ``max_tokens`` tokens, at least one block.

    Args:
        lengths: int64 [n], tokens of each step.
        borders: int64, rising, where a range may end; the last is n.
        max_tokens: tokens per range.
        stops: int64, rising, some of the borders: a range that reaches one ends on the last one that it reaches.
    """
    total = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
    low = 0
    while low < len(lengths):
        last = int(np.searchsorted(total[borders], total[low] + max_tokens, side="right")) - 1
        high = int(borders[last]) if last >= 0 else low
        if high <= low:
            high = int(borders[np.searchsorted(borders, low, side="right")])
        if stops is not None and (reached := int(np.searchsorted(stops, high, side="right"))):
            high = int(stops[reached - 1]) if stops[reached - 1] > low else high
        yield low, high
        low = high


def lay_out(
    reader: TokenReader,
    step_uids: list[str],
    group: Ints,
    lengths: Ints,
    token_budget: int,
    n_ranks: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> PlanLayout:
    """Pack a plan's steps.

    Args:
        reader: the pool.
        step_uids: [n], in plan order.
        group: int64 [n], rising from 0.
        lengths: int64 [n], tokens of each step, for chunking.
        token_budget: longest row, tokens.
        n_ranks: ranks to deal the rows to.
        progress: called with (tokens read, tokens of the plan); an exception from it stops the packing.
    """
    total = int(lengths.sum())
    done = 0
    n_groups = int(group[-1]) + 1 if len(group) else 0
    borders = np.append(np.flatnonzero(np.diff(group)) + 1, len(group)).astype(np.int64)
    parts: list[Part] = []
    over: list[Ints] = [np.zeros(0, dtype=np.int64)]
    separate = 0
    for low, high in chunks(lengths, borders):
        sequences = reader.sequences(step_uids[low:high])
        full = sequences.lengths
        separate += int((full * (full + 1) // 2).sum())
        local = group[low:high]
        for one in range(int(local[0]), int(local[-1]) + 1):
            index = np.arange(np.searchsorted(local, one), np.searchsorted(local, one, side="right"))
            group_parts, too_long = group_parts_of(sequences, index, one, token_budget)
            parts += [replace(part, order=part.order + low) for part in group_parts]
            over.append(too_long + low)
        done += int(lengths[low:high].sum())
        if progress is not None:
            progress(done, total)
    group_tokens = np.zeros(n_groups, dtype=np.int64)
    group_packed = np.zeros(n_groups, dtype=np.int64)
    for part in parts:
        group_tokens[part.group] += part.n_original
        group_packed[part.group] += part.n_packed
    rows = first_fit_decreasing(parts, token_budget)
    return PlanLayout(
        token_budget=token_budget,
        rows=rows,
        over_budget=np.concatenate(over),
        group_tokens=group_tokens,
        group_packed=group_packed,
        attention_pairs=sum(part.attention_pairs for part in parts),
        attention_pairs_separate=separate,
        step_uids=step_uids,
        dealt=balance_rows(rows, n_ranks),
    )
