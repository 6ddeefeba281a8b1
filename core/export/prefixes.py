"""Encodes token ids of training rows. Tokens that a row shares with an earlier row are encoded once and copied.

A step's prompt contains the steps before it, so a row shares nearly all tokens with the row before it::

    rows      [5 6 7]   [5 6 7 8 9]        the second shares 3 tokens with the first
    encoded    5 6 7           8 9
    bytes     "5,6,7,"  "5,6,7," + "8,9,"
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from core.batch.rows import Rows
from core.export.codes import Encoder
from core.tree.sequences import ragged_index


class EncodedIds:
    """The ids of some rows, encoded."""

    def __init__(self, rows: Rows, encode: Encoder) -> None:
        self._parent, self._n_shared = rows.parent.tolist(), rows.n_shared.tolist()
        self._lengths = rows.lengths.tolist()
        n_own = rows.lengths - rows.n_shared
        suffixes, ends = encode(rows.ids[ragged_index(rows.offsets[:-1] + rows.n_shared, n_own)])
        self._ends = np.concatenate([np.zeros(1, dtype=np.int64), ends])
        self._first_own = (np.cumsum(n_own) - n_own).tolist()
        self._copy_rows(suffixes)

    def _copy_rows(self, suffixes: np.ndarray) -> None:
        """Build each row's bytes: those shared with its parent row, then its new ones."""
        borders = self._ends[np.append(self._first_own, len(self._ends) - 1)].tolist()
        self._shared: list[int] = []
        self._begins = [0]
        for i, (begin, end) in enumerate(pairwise(borders)):
            self._shared.append(self.n_bytes(self._parent[i], self._n_shared[i]) if self._n_shared[i] else 0)
            self._begins.append(self._begins[-1] + self._shared[i] + end - begin)
        out = np.empty(self._begins[-1], dtype=np.uint8)
        for i, (begin, end) in enumerate(pairwise(borders)):
            at, n_shared = self._begins[i], self._shared[i]
            if n_shared:
                above = self._begins[self._parent[i]]
                out[at : at + n_shared] = out[above : above + n_shared]
            out[at + n_shared : self._begins[i + 1]] = suffixes[begin:end]
        self._bytes = out.data

    def n_bytes(self, i: int, n: int) -> int:
        """Number of bytes of the first ``n`` tokens of row ``i``."""
        while n < self._n_shared[i]:
            i = self._parent[i]
        first_own = self._first_own[i]
        return int(self._shared[i] + self._ends[first_own + n - self._n_shared[i]] - self._ends[first_own])

    def part(self, i: int, begin: int = 0, end: int | None = None) -> memoryview:
        """Bytes of tokens ``[begin, end)`` of row ``i``, by default to its end."""
        first = self._begins[i]
        low = first + self.n_bytes(i, begin) if begin else first
        high = self._begins[i + 1] if end is None or end == self._lengths[i] else first + self.n_bytes(i, end)
        return self._bytes[low:high]
