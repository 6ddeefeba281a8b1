"""Encoded columns beside a plain float64 array that gets the same values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.pool.cache import encodedcolumn
from core.pool.cache.encodedcolumn import EncodedColumn

VALUES = st.one_of(st.just(float("nan")), st.integers(-3, 300).map(float), st.floats(allow_nan=False))


def bits(values: np.ndarray) -> list[int]:
    """NaNs as one, and 0 and -0 as equal: what comparing in SQL tells apart."""
    return (values + 0.0).view(np.int64).tolist() if not np.isnan(values).any() else [repr(v + 0.0) for v in values]


@given(st.data(), st.lists(VALUES, max_size=40), st.integers(2, 40))
def test_growing_columns_hold_what_a_plain_array_holds(data: Any, first: list[float], limit: int) -> None:
    """Values are set, replaced and appended, across every change of storage: one byte, two bytes, float64."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encodedcolumn, "MAX_VALUES", limit)
        patch.setattr(encodedcolumn, "SAMPLE", 7)
        plain = np.array(first, np.float64)
        column = EncodedColumn.of(plain.copy())
        for _ in range(3):
            ids = np.array(data.draw(st.lists(st.integers(0, 60), unique=True, max_size=20)), np.int64)
            new = np.array(data.draw(st.lists(VALUES, min_size=ids.size, max_size=ids.size)), np.float64)
            before = column.taken(np.arange(column.size)).copy()
            grown = column.with_values(ids, new)
            assert bits(column.taken(np.arange(column.size))) == bits(before)
            plain = np.concatenate([plain, np.full(max(0, int(ids.max(initial=-1)) + 1 - plain.size), np.nan)])
            plain[ids] = new
            column = grown
            wanted = np.array(sorted(data.draw(st.sets(st.integers(0, max(0, plain.size - 1))))), np.int64)
            if plain.size:
                assert bits(column.taken(wanted)) == bits(plain[wanted])
            assert bits(column.taken(np.arange(plain.size))) == bits(plain)


@pytest.mark.parametrize(("n_values", "n_bytes"), [(200, 1), (255, 1), (256, 2), (60_000, 2), (70_000, 8)])
def test_few_values_take_few_bytes(n_values: int, n_bytes: int) -> None:
    """Beside the known values there is the unknown one."""
    plain = np.random.default_rng(0).permutation(np.repeat(np.arange(n_values) / 7, 3))
    column = EncodedColumn.of(plain.copy())
    assert column.codes.itemsize == n_bytes
    assert np.array_equal(column.taken(np.arange(plain.size)), plain)


def test_a_column_that_runs_out_of_codes_becomes_plain() -> None:
    """65,535 known values fit; one more does not."""
    plain = np.arange(65_535, dtype=np.float64)
    column = EncodedColumn.of(plain.copy())
    assert column.codes.itemsize == 2
    grown = column.with_values(np.array([3, 70_000]), np.array([0.5, 1.0]))
    assert grown.values is None
    plain = np.concatenate([plain, np.full(70_001 - 65_535, np.nan)])
    plain[[3, 70_000]] = 0.5, 1.0
    assert np.array_equal(grown.taken(np.arange(70_001)), plain, equal_nan=True)
