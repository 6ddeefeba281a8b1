"""A column of steps in memory: float64 values, stored as one or two bytes a step where few values occur."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

MAX_VALUES = 1 << 16
"""A column with more different values, the unknown one included, is stored as float64."""
SAMPLE = 1 << 18
"""Values that are looked at first: most columns with many values have too many of them here already."""


@dataclass(frozen=True, slots=True, eq=False)
class EncodedColumn:
    """One value for each ``step_id``, NaN where it is unknown or no such step exists. Immutable.

    Attributes:
        codes: uint8 or uint16 [n], place in ``values``; where ``values`` is None the float64 values themselves.
        values: float64 [k], ascending, no two equal, NaN at the end; None: stored without codes.
    """

    codes: np.ndarray
    values: np.ndarray | None

    @classmethod
    def of(cls, column: np.ndarray) -> EncodedColumn:
        """A column of float64 [n]; the array belongs to the result."""
        size = column.size
        if _distinct(column[:: max(1, size // SAMPLE)], MAX_VALUES) is None:
            return cls(column, None)
        values = _distinct(column, MAX_VALUES)
        if values is None:
            return cls(column, None)
        return cls(_codes(column, values), values)

    @property
    def size(self) -> int:
        """The greatest ``step_id`` plus one."""
        return int(self.codes.size)

    @property
    def n_bytes(self) -> int:
        """Memory, bytes."""
        return int(self.codes.nbytes + (0 if self.values is None else self.values.nbytes))

    def taken(self, step_ids: np.ndarray) -> np.ndarray:
        """float64, the values of these ascending ids. Read-only: it may be a view of the column."""
        codes = self.places(step_ids)
        if self.values is None:
            return codes
        # Clipping changes nothing: all codes are places of the table. It spares NumPy a buffered check.
        decoded: np.ndarray = self.values.take(codes, mode="clip")
        return decoded

    def places(self, step_ids: np.ndarray) -> np.ndarray:
        """``codes`` of these ascending ids. Read-only: it may be a view of the column."""
        is_range = step_ids.size and step_ids[-1] - step_ids[0] + 1 == step_ids.size
        return self.codes[step_ids[0] : step_ids[-1] + 1] if is_range else self.codes[step_ids]

    def with_values(self, step_ids: np.ndarray, new: np.ndarray) -> EncodedColumn:
        """A copy with the values of these ids set; ids beyond the end make it longer.

        Args:
            step_ids: int64 [m], no two equal.
            new: float64 [m].
        """
        more = max((int(step_ids.max()) + 1 if step_ids.size else 0) - self.size, 0)
        codes, values = self.codes, self.values
        if values is not None:
            known = np.isin(new, values) | np.isnan(new)
            together = values if known.all() else np.unique(np.concatenate([values, new]))
            if together.size > MAX_VALUES:
                codes, values = values[codes], None
            elif together.size > values.size:
                codes, values = np.searchsorted(together, values).astype(_narrow(together.size))[codes], together
        if values is None:
            column = np.concatenate([codes, np.full(more, np.nan)])
            column[step_ids] = new
            return EncodedColumn(column, None)
        column = np.concatenate([codes, np.full(more, values.size - 1, codes.dtype)])
        column[step_ids] = _codes(new, values)
        return EncodedColumn(column, values)


def _distinct(column: np.ndarray, limit: int) -> np.ndarray | None:
    """The different values, ascending, with NaN at the end; None if they are more than the limit."""
    values = pa.array(column).unique()
    if len(values) >= limit:
        return None
    return np.unique(np.append(values.to_numpy(), np.nan))


def _narrow(n_values: int) -> type[np.uint8] | type[np.uint16]:
    return np.uint8 if n_values <= 1 << 8 else np.uint16


def _codes(column: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Places of these values, which ``values`` all has; NaN's is the last."""
    codes = np.empty(column.size, _narrow(values.size))
    for begin in range(0, column.size, SAMPLE):
        part = slice(begin, begin + SAMPLE)
        codes[part] = np.searchsorted(values, column[part])
    return codes
