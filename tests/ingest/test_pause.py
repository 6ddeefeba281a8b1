"""The pause of the ingest thread after a batch: a multiple of its processor time, between two bounds."""

from __future__ import annotations

import pytest

from core.ingest.thread import pause_s


@pytest.mark.parametrize(("batch_cpu_s", "expected"), [(0.0, 0.15), (0.06, 0.15), (0.1, 0.2), (0.15, 0.3), (9.0, 0.3)])
def test_a_dearer_batch_is_followed_by_a_longer_pause_within_bounds(batch_cpu_s: float, expected: float) -> None:
    assert pause_s(batch_cpu_s) == pytest.approx(expected)
