"""Sorts sequences so that equal prefixes are adjacent, and computes common prefix lengths of neighbours.

Two functions give the same result. ``sort_by_tokens`` uses only the tokens: Arrow sorts their bytes and NumPy compares
neighbours. ``sort_by_deltas`` uses information about which sequence is a prefix of another: it sorts and compares only
sequences that are not a prefix of another, and derives the position of the others from their length. The pool has this
information, since it stores steps as deltas. For other sequences, one pass finds those that extend the one before.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from core.tree.sequences import Int32, Int64, Sequences

_FIRST_CHUNK = 128
_CHUNK = 16384


def sort_with_lcp(sequences: Sequences, index: Int64 | None = None) -> tuple[Int64, Int64]:
    """Sequence indices in bytewise order, and the common prefix length of each with its predecessor.

    Bytewise order of little-endian int32 is not numeric order, but equal prefixes are adjacent and a prefix comes
    before its extensions, which is sufficient for a tree. Equal sequences keep their order.

    Args:
        sequences: the source; its deltas are used where it has them.
        index: int64 [m], the sequences to sort, ascending; default all.

    Returns:
        order int64 [m] (indices into the source), lcp int64 [m] with ``lcp[0] = 0``.
    """
    if index is None:
        index = np.arange(len(sequences), dtype=np.int64)
    if sequences.parent is None:
        sequences = with_neighbours(sequences, index)
    return sort_by_deltas(sequences, index)


def with_neighbours(sequences: Sequences, index: Int64) -> Sequences:
    """The source with ``parent`` set for each sequence of ``index`` that extends the one before it.

    Steps are mostly in the order in which they were sampled, each extending the step before. A sort would read their
    shared tokens at every comparison.
    """
    ids = np.ascontiguousarray(sequences.ids)
    starts, lengths = sequences.offsets[:-1][index].tolist(), sequences.lengths[index].tolist()
    parent = np.full(len(sequences), -1, dtype=np.int64)
    n_shared = np.zeros(len(sequences), dtype=np.int64)
    extends = np.zeros(len(index), dtype=bool)
    shared = 0
    for j in range(1, len(index)):
        if lengths[j - 1] <= lengths[j]:
            shared = _common_prefix(ids, starts[j - 1], starts[j], lengths[j - 1], _like(shared))
            extends[j] = shared == lengths[j - 1]
    parent[index[extends]] = index[np.flatnonzero(extends) - 1]
    n_shared[index[extends]] = sequences.lengths[parent[index[extends]]]
    return replace(sequences, parent=parent, n_shared=n_shared)


def sort_by_tokens(sequences: Sequences, index: Int64) -> tuple[Int64, Int64]:
    """``sort_with_lcp`` by reading every token."""
    if len(index) == 0:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    ids = np.ascontiguousarray(sequences.ids)
    first, last = int(index[0]), int(index[-1]) + 1
    binary = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(),
        last - first,
        [None, pa.py_buffer(sequences.offsets[first : last + 1] * 4), pa.py_buffer(ids)],
    )
    if len(index) < last - first:
        binary = binary.take(pa.array(index - first))
    order = index[pc.array_sort_indices(binary).to_numpy()]
    starts = sequences.offsets[:-1][order].tolist()
    lengths = sequences.lengths[order].tolist()
    lcp = np.zeros(len(order), dtype=np.int64)
    for j in range(1, len(order)):
        limit = min(lengths[j - 1], lengths[j])
        lcp[j] = _common_prefix(ids, starts[j - 1], starts[j], limit, _like(int(lcp[j - 1])))
    return order, lcp


def _like(shared: int) -> int:
    """The number of tokens to compare first, given how many the last two compared sequences shared."""
    return _FIRST_CHUNK if shared < _FIRST_CHUNK else _CHUNK


def _common_prefix(ids: Int32, a: int, b: int, limit: int, chunk: int) -> int:
    """Length of the common prefix of ``ids[a:a+limit]`` and ``ids[b:b+limit]``; ``chunk`` tokens are compared first."""
    done = 0
    while done < limit:
        stop = min(done + chunk, limit)
        differs = ids[a + done : a + stop] != ids[b + done : b + stop]
        first = int(differs.argmax())
        if differs[first]:
            return done + first
        done, chunk = stop, _CHUNK
    return limit


def sort_by_deltas(sequences: Sequences, index: Int64) -> tuple[Int64, Int64]:
    """``sort_with_lcp`` by reading only the sequences that are not a prefix of another in ``index``.

    A sequence that is a prefix of its child is also a prefix of the last sequence of that chain, the *tip*. Tips are
    sorted by their tokens. A prefix with L tokens of the tip at rank j sorts before all tips that start with it: at the
    first rank i <= j whose neighbours up to j share at least L tokens. All sequences placed at one i are prefixes of
    tip i, ordered by length. The common prefix of two neighbours at the same i is the shorter's length; where i
    changes, it is that of the tips.
    """
    tips_of = _tips(sequences, index)
    is_tip = tips_of == np.arange(len(index))
    tips = index[is_tip]
    tip_order, tip_lcp = sort_by_tokens(sequences, tips)
    rank_of_tip = np.empty(len(tips), dtype=np.int64)
    rank_of_tip[np.searchsorted(tips, tip_order)] = np.arange(len(tips))
    number_of_tip = np.cumsum(is_tip) - 1
    rank = rank_of_tip[number_of_tip[tips_of]]
    lengths = sequences.lengths[index]
    place = _first_rank_sharing(tip_lcp, rank, lengths)
    sort = np.lexsort((index, lengths, place))
    place, lengths = place[sort], lengths[sort]
    lcp = np.zeros(len(index), dtype=np.int64)
    lcp[1:] = np.where(place[1:] == place[:-1], lengths[:-1], tip_lcp[place[1:]])
    return index[sort], lcp


def _tips(sequences: Sequences, index: Int64) -> Int64:
    """For each of ``index``, the position in it of its tip (see ``sort_by_deltas``): int64 [m]."""
    assert sequences.parent is not None and sequences.n_shared is not None
    position = np.full(len(sequences), -1, dtype=np.int64)
    position[index] = np.arange(len(index))
    parent = sequences.parent[index]
    extends = (parent >= 0) & (sequences.n_shared[index] == sequences.lengths[parent])
    child = np.flatnonzero(extends)
    above = position[parent[child]]
    heir = np.arange(len(index))
    heir[above[above >= 0]] = child[above >= 0]
    for _ in range(len(index).bit_length()):
        further = heir[heir]
        if np.array_equal(further, heir):
            return heir
        heir = further
    return np.where(
        heir[heir] == heir, heir, np.arange(len(index))
    )  # equal sequences that form a ring are their own tips


def _first_rank_sharing(lcp: Int64, rank: Int64, length: Int64) -> Int64:
    """The least i <= rank with ``min(lcp[i + 1 : rank + 1]) >= length``, for each pair: int64 [n].

    Descends a table of minima over windows of 1, 2, 4, ... ranks, all pairs at once.
    """
    shared = lcp.copy()
    shared[:1] = -1
    windows = [shared]  # windows[k][i] = min(shared[max(0, i - 2**k + 1) : i + 1])
    while 2 ** len(windows) <= len(shared):
        step = 2 ** (len(windows) - 1)
        below = windows[-1].copy()
        below[step:] = np.minimum(windows[-1][step:], windows[-1][:-step])
        below[:step] = -1
        windows.append(below)
    at = rank.copy()
    for k in range(len(windows) - 1, -1, -1):
        at = np.where(windows[k][at] >= length, at - 2**k, at)
    return at
