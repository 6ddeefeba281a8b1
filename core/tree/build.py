"""Build the prefix tree of many token sequences and lay it out depth first.

No Python loop runs over tokens: ``core.tree.order`` sorts the sequences with their shared prefixes, and one pass
over the sequences (not the tokens) keeps the current root path on a stack.

Three sequences ``5 6 7``, ``5 6 8 9``, ``5 6 8``::

    sorted      5 6 7 | 5 6 8 | 5 6 8 9     lcp 0 2 3
    tokens      5 6 7 8 9                   depth-first layout, each shared token once
    positions   0 1 2 2 3
    end         5 5 3 5 5                   token k is visible to query q iff k <= q < end[k]
    runs        5 6 8 9 = (0, 2) + (3, 2)   (packed start, length) from the root
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.errors import InvalidInput
from core.tree.order import sort_with_lcp
from core.tree.sequences import Int32, Int64, Sequences, ragged_index

_MAX_PACKED = 2**31 - 1


@dataclass(frozen=True, slots=True, eq=False)
class PackedTree:
    """The compressed prefix tree of m sequences as one packed row (a row may have several trees).

    ``members`` says which sequence of the source each of the m rows of ``run_offsets`` is; ``order``,
    ``lcp`` and ``novel_start`` are by rank in sorted order.

    Attributes:
        tokens: int32 [T], depth-first.
        position_ids: int32 [T], depth of each token in its sequence.
        end: int32 [T], one past the subtree of each token; padding has ``end = k + 1``.
        members: int64 [m], index of each member in the source ``Sequences``.
        run_offsets: int64 [m + 1], member i's runs are ``run_offsets[i]:run_offsets[i + 1]``.
        run_start: int32 [n_runs], packed position where the run begins.
        run_length: int32 [n_runs].
        order: int64 [m], row of ``members`` at each rank.
        lcp: int64 [m], tokens shared with the previous rank; 0 where a tree begins.
        novel_start: int64 [m], packed position of the first token that the rank adds.
        n_original: tokens of all members before sharing.
        n_padding: padding tokens at the end of the row, included in T.
    """

    tokens: Int32
    position_ids: Int32
    end: Int32
    members: Int64
    run_offsets: Int64
    run_start: Int32
    run_length: Int32
    order: Int64
    lcp: Int64
    novel_start: Int64
    n_original: int
    n_padding: int = 0

    @property
    def n_packed(self) -> int:
        """Tokens of the row without padding."""
        return len(self.tokens) - self.n_padding

    @property
    def token_ratio(self) -> float | None:
        """Packed tokens / original tokens, in (0, 1]; None for no tokens."""
        return self.n_packed / self.n_original if self.n_original else None

    @property
    def attention_pairs(self) -> int:
        """Visible (query, key) pairs of the packed row: the attention work."""
        return int(self.position_ids[: self.n_packed].sum(dtype=np.int64)) + self.n_packed

    def path(self, member: int) -> Int64:
        """Packed position of every token of a member, root first: int64 [length]."""
        runs = slice(self.run_offsets[member], self.run_offsets[member + 1])
        return ragged_index(self.run_start[runs].astype(np.int64), self.run_length[runs].astype(np.int64))

    def restore(self, values: NDArray[Any], member: int) -> NDArray[Any]:
        """A member's rows of a packed array ``[T, ...]``, e.g. its token ids of ``tokens``."""
        return values[self.path(member)]

    def restore_index(self) -> Int64:
        """Packed position of every token of every member, one after another: int64 [n_original]."""
        return ragged_index(self.run_start.astype(np.int64), self.run_length.astype(np.int64))


def build(sequences: Sequences) -> PackedTree:
    """Sort, compare, lay out: the packed tree of all sequences (``members`` is 0, 1, ..., n - 1).

    Raises:
        InvalidInput: more than 2**31 - 1 packed tokens.
    """
    order, lcp = sort_with_lcp(sequences)
    return layout(sequences, order, lcp)


def layout(sequences: Sequences, order: Int64, lcp: Int64) -> PackedTree:
    """Lay out the sequences ``order`` (sorted, with neighbour prefixes ``lcp``) as one packed row.

    ``order`` may be any contiguous part of a sorted order; ``lcp[0]`` is taken as 0. ``lcp`` 0 later on
    simply begins another tree in the same row.

    Raises:
        InvalidInput: more than 2**31 - 1 packed tokens.
    """
    lcp = lcp.copy()
    lcp[:1] = 0
    lengths = sequences.lengths[order]
    novel = lengths - lcp
    novel_start = np.cumsum(novel) - novel
    n_packed = int(novel.sum())
    if n_packed > _MAX_PACKED:
        raise InvalidInput(f"{n_packed} packed tokens don't fit one row", hint="plan with a smaller token budget")
    source = sequences.offsets[:-1][order] + lcp
    pieces = [sequences.ids[a:b] for a, b in zip(source.tolist(), (source + novel).tolist(), strict=True)]
    position_ids = np.arange(n_packed, dtype=np.int32)
    position_ids += np.repeat((lcp - novel_start).astype(np.int32), novel)
    end, paths = _walk(lcp.tolist(), lengths.tolist(), novel_start.tolist(), n_packed)

    members = np.sort(order)
    row_of_rank = np.searchsorted(members, order)
    rank_of_row = np.empty(len(order), dtype=np.int64)
    rank_of_row[row_of_rank] = np.arange(len(order))
    in_order = [paths[rank] for rank in rank_of_row.tolist()]
    flat = np.array([run for path in in_order for run in path], dtype=np.int32).reshape(-1, 2)
    return PackedTree(
        tokens=np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int32),
        position_ids=position_ids,
        end=end,
        members=members,
        run_offsets=np.concatenate([[0], np.cumsum([len(path) for path in in_order])]).astype(np.int64),
        run_start=flat[:, 0].copy(),
        run_length=flat[:, 1].copy(),
        order=row_of_rank.astype(np.int64),
        lcp=lcp,
        novel_start=novel_start,
        n_original=int(lengths.sum()),
    )


def _walk(
    lcp: list[int], lengths: list[int], starts: list[int], n_packed: int
) -> tuple[Int32, list[list[tuple[int, int]]]]:
    """One pass over the ranks with the root path on a stack of ``[packed start, length]`` runs.

    A rank cuts the stack to its ``lcp`` (what is cut off ends where the rank starts), then adds its novel
    tokens; if they follow the top run in the layout the run grows instead, so chains stay one run.

    Returns:
        end int32 [n_packed], and each rank's path as ``(packed start, length)`` runs.
    """
    stack: list[tuple[int, int]] = []
    depth = 0
    closed: list[tuple[int, int, int]] = []  # packed start, length, end
    paths: list[list[tuple[int, int]]] = []
    for shared, length, start in zip(lcp, lengths, starts, strict=True):
        while depth > shared:
            top_start, top_length = stack.pop()
            kept = max(0, top_length - (depth - shared))
            closed.append((top_start + kept, top_length - kept, start))
            depth -= top_length - kept
            if kept:
                stack.append((top_start, kept))
        if length > shared:
            if stack and sum(stack[-1]) == start:
                top_start, top_length = stack.pop()
                stack.append((top_start, top_length + length - shared))
            else:
                stack.append((start, length - shared))
            depth = length
        paths.append(stack.copy())
    closed += [(start, length, n_packed) for start, length in stack]
    table = np.array(closed, dtype=np.int64).reshape(-1, 3)
    table = table[np.argsort(table[:, 0], kind="stable")]
    return np.repeat(table[:, 2].astype(np.int32), table[:, 1]), paths


def concatenate(trees: Sequence[PackedTree], *, pad_to: int | None = None, pad_id: int = 0) -> PackedTree:
    """Several trees side by side in one row; no token of one is visible to another.

    Args:
        trees: rows without padding, over disjoint members of one source.
        pad_to: length of the row; the rest is padding; each padding token sees only itself.
        pad_id: token id of the padding.

    Raises:
        InvalidInput: the trees are longer than ``pad_to``, or one is padded already.
    """
    if any(tree.n_padding for tree in trees):
        raise InvalidInput("a padded row can't be joined to another", field="trees")
    sizes = np.array([len(tree.tokens) for tree in trees], dtype=np.int64)
    n_packed = int(sizes.sum())
    n_padding = 0 if pad_to is None else pad_to - n_packed
    if n_padding < 0:
        raise InvalidInput(f"{n_packed} packed tokens are more than the row's {pad_to}", field="pad_to")
    base = (np.cumsum(sizes) - sizes).tolist()
    n_members = np.array([len(tree.members) for tree in trees], dtype=np.int64)
    member_base = (np.cumsum(n_members) - n_members).tolist()
    padding = np.arange(n_packed, n_packed + n_padding, dtype=np.int32)

    def join(parts: list[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
        return np.concatenate(parts).astype(dtype) if parts else np.zeros(0, dtype=dtype)

    runs = join([np.diff(tree.run_offsets) for tree in trees], np.int64)
    return PackedTree(
        tokens=join([t.tokens for t in trees] + [np.full(n_padding, pad_id)], np.int32),
        position_ids=join([t.position_ids for t in trees] + [np.zeros(n_padding)], np.int32),
        end=join([t.end + b for t, b in zip(trees, base, strict=True)] + [padding + 1], np.int32),
        members=join([t.members for t in trees], np.int64),
        run_offsets=np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(runs)]),
        run_start=join([t.run_start + b for t, b in zip(trees, base, strict=True)], np.int32),
        run_length=join([t.run_length for t in trees], np.int32),
        order=join([t.order + b for t, b in zip(trees, member_base, strict=True)], np.int64),
        lcp=join([t.lcp for t in trees], np.int64),
        novel_start=join([t.novel_start + b for t, b in zip(trees, base, strict=True)], np.int64),
        n_original=sum(tree.n_original for tree in trees),
        n_padding=n_padding,
    )
