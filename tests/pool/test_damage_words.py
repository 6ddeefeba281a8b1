"""Errors by which the database tells that its file is damaged, word for word as they were seen."""

from __future__ import annotations

import duckdb
import pytest

from core.pool.store.damage import is_damage

SEEN = "Corrupted fixed-size segment: array count extends past the end of the segment"


@pytest.mark.parametrize(
    ("error", "damaged"),
    [
        (duckdb.Error(SEEN), True),
        (duckdb.Error("Conversion Error: Could not convert 'Corrupted ' to INT32"), False),
        (duckdb.ConversionException("Conversion Error: Could not convert string 'Corrupted x' to INT32"), False),
        (OSError(SEEN), False),
    ],
)
def test_a_corrupted_segment_is_damage_and_not_a_failed_call(error: Exception, damaged: bool) -> None:
    assert is_damage(error) is damaged
