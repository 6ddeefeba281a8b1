"""Encodes per-token numbers of training rows; only those of sampled tokens are encoded one by one.

Log-probs, advantages and labels have one constant on context, which is most of an agent's row. Its bytes are written
repeatedly from one buffer::

    row       c c c s s c     c: context, s: sampled
    log-probs 0 0 0 a b 0
    pieces    "0.0,0.0,0.0,"  "-1.5,-0.25,"  "0.0,"
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core.batch.rows import Rows
from core.credit.types import Ints
from core.export.codes import Bytes, Ends
from core.export.sink import Piece
from core.tree.sequences import ragged_index


class Repeated:
    """The bytes of a constant, repeated."""

    def __init__(self, code: bytes) -> None:
        self._code, self._bytes = code, memoryview(code * 4096)

    def times(self, n: int) -> memoryview:
        """The bytes ``n`` times."""
        size = n * len(self._code)
        if size > len(self._bytes):
            self._bytes = memoryview(self._code * 2 * n)
        return self._bytes[:size]


class Coded:
    """Encoded numbers of all sampled tokens of some rows, and the encoded constant for context."""

    def __init__(self, data: Bytes, ends: Ends, context: bytes) -> None:
        self.data, self.context = np.ascontiguousarray(data).data, Repeated(context)
        self.ends = np.concatenate([np.zeros(1, dtype=np.int64), ends])

    @classmethod
    def fixed(cls, data: Bytes, width: int, context: bytes) -> Coded:
        """Numbers of ``width`` bytes each."""
        return cls(data, np.arange(width, len(data) + 1, width, dtype=np.int64), context)


class Responses:
    """The positions of responses in some rows.

    Attributes:
        at: int64 [s], places of all sampled tokens in the rows' flat arrays, in the order of ``Coded``.
    """

    def __init__(self, rows: Rows) -> None:
        self.at: Ints = ragged_index(rows.begins, rows.n_response)
        owner = rows.row_of_step
        self._lengths = rows.lengths.tolist()
        self._begins = (rows.begins - rows.offsets[owner]).tolist()
        self._n = rows.n_response.tolist()
        self._first = (np.cumsum(rows.n_response) - rows.n_response).tolist()
        self._borders = np.searchsorted(owner, np.arange(len(rows) + 1)).tolist()

    def where_loss(self, rows: Rows, values: NDArray[np.float32], otherwise: float = 0.0) -> NDArray[np.float32]:
        """``values`` [m] of the sampled tokens, float32 [s]; ``otherwise`` on those without loss."""
        return np.where(rows.loss[self.at], values[self.at], np.float32(otherwise))

    def segments(self, i: int) -> slice:
        """Places of row ``i``'s steps in ``Rows.steps``."""
        return slice(self._borders[i], self._borders[i + 1])

    def pieces(self, i: int, coded: Coded, begin: int = 0) -> list[Piece]:
        """Bytes of row ``i`` from its token ``begin`` on."""
        out: list[Piece] = []
        at, n_row, ends = begin, self._lengths[i], coded.ends
        for k in range(self._borders[i], self._borders[i + 1]):
            start, stop = self._begins[k], self._begins[k] + self._n[k]
            if start > at:
                out.append(coded.context.times(start - at))
                at = start
            if stop > at:
                first = self._first[k]
                out.append(coded.data[ends[first + at - start] : ends[first + stop - start]])
                at = stop
        if n_row > at:
            out.append(coded.context.times(n_row - at))
        return out
