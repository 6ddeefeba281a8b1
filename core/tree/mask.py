"""The attention mask of a packed row: key k is visible to query q iff ``k <= q < end[k]``.

This comparison defines the complete attention mask, for one tree or several in a row. A dense T × T matrix is
built only for small rows; ``mask_blocks`` gives images of rows of any size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.errors import InvalidInput
from core.tree.sequences import Float32, Int32, Int64

DENSE_MAX = 8192


def visible(end: Int32, q: Any, k: Any) -> NDArray[np.bool_]:
    """Whether query positions see key positions; ``q`` and ``k`` broadcast against each other."""
    q, k = np.asarray(q), np.asarray(k)
    seen: NDArray[np.bool_] = (k <= q) & (q < end[k])
    return seen


def dense_mask(end: Int32) -> NDArray[np.bool_]:
    """bool [T, T], row = query: for scaled dot-product attention on small rows.

    Raises:
        InvalidInput: more than ``DENSE_MAX`` tokens (64 MiB of mask).
    """
    if len(end) > DENSE_MAX:
        raise InvalidInput(
            f"a dense mask of {len(end)} tokens is too large", hint="use mask_blocks, or a mask_mod over end[]"
        )
    positions = np.arange(len(end))
    return visible(end, positions[:, None], positions[None, :])


@dataclass(frozen=True, slots=True, eq=False)
class MaskImage:
    """Share of visible pairs per cell.

    Attributes:
        coverage: float32 [rows, columns] in [0, 1], row = queries, column = keys.
        q_edges: int64 [rows + 1], packed positions between rows.
        k_edges: int64 [columns + 1].
    """

    coverage: Float32
    q_edges: Int64
    k_edges: Int64


def mask_blocks(end: Int32, q0: int, q1: int, k0: int, k1: int, resolution: int | tuple[int, int] = 256) -> MaskImage:
    """The mask's part ``[q0, q1) × [k0, k1)`` as an image, exact at every zoom level and without T × T memory.

    Adjacent keys with the same ``end`` form a piece. The number of visible pairs of a piece with ``q < b`` has a closed
    form, so the cost of an image row depends on the number of pieces and not of tokens.

    Args:
        end: int32 [T].
        q0, q1, k0, k1: ranges of packed positions; cut to the row.
        resolution: most cells per side, or (rows, columns). A cell is never smaller than one token.

    Raises:
        InvalidInput: an empty range or a resolution below 1.
    """
    rows, columns = (resolution, resolution) if isinstance(resolution, int) else resolution
    q0, k0 = max(0, q0), max(0, k0)
    q1, k1 = min(len(end), q1), min(len(end), k1)
    if q0 >= q1 or k0 >= k1:
        raise InvalidInput("the range is empty", field="range", hint=f"the row has {len(end)} tokens")
    if rows < 1 or columns < 1:
        raise InvalidInput("resolution must be at least 1", field="resolution")
    q_edges = _edges(q0, q1, rows)
    k_edges = _edges(k0, k1, columns)

    window = end[k0:k1]
    turns = np.flatnonzero(np.diff(window)) + k0 + 1
    starts = np.union1d(turns, k_edges[:-1]).astype(np.int64)
    stops = np.append(starts[1:], k1)
    piece_end = end[starts].astype(np.int64)
    first_piece = np.searchsorted(starts, k_edges[:-1])

    pairs_below = np.empty((len(q_edges), len(k_edges) - 1), dtype=np.int64)
    for row, bound in enumerate(q_edges.tolist()):
        pairs_below[row] = np.add.reduceat(_pairs_below(starts, stops, piece_end, bound), first_piece)
    area = np.diff(q_edges)[:, None] * np.diff(k_edges)[None, :]
    coverage = (np.diff(pairs_below, axis=0) / area).astype(np.float32)
    return MaskImage(coverage, q_edges, k_edges)


def _edges(low: int, high: int, cells: int) -> Int64:
    """At most ``cells`` whole-token cells between low and high: int64 [cells + 1]."""
    cells = min(cells, high - low)
    return low + (np.arange(cells + 1, dtype=np.int64) * (high - low)) // cells


def _pairs_below(starts: Int64, stops: Int64, ends: Int64, bound: int) -> Int64:
    """Visible pairs with query < bound, per piece of keys ``[start, stop)`` that end together.

    Key k is seen by queries k .. min(bound, end) - 1, so with m = min(bound, end) the piece has
    Σ (m − k) over its keys below m: an arithmetic series.
    """
    limit = np.minimum(ends, bound)
    last = np.clip(limit, starts, stops)
    n = last - starts
    total: Int64 = n * limit - (starts + last - 1) * n // 2
    return total
