"""Tests of histograms against plain counting: every value is in one bar, counted values have integer ticks."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from studio.charts import theme
from studio.charts.distributions import stacked
from studio.charts.plan import value_histogram
from tests.effort import settings


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(0, 12)), min_size=1, max_size=40))
def test_counted_values_have_a_bar_each(values):
    """Versions behind: a bar at 0, 1, 2, …, and unknown is in none of them."""
    bars = value_histogram(values, noun="trajectories", counted=True).data
    known = Counter(value for value in values if value is not None)
    drawn = {float(x): int(y) for bar in bars for x, y in zip(bar.x, bar.y, strict=True) if y}
    assert drawn == {float(value): n for value, n in known.items()}
    assert not bars or all(step == 0 for x in bars[0].x for step in [x % 1])


@settings(deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=40))
def test_every_measured_value_is_in_a_bar(values):
    (bar,) = value_histogram(values, noun="trajectories").data
    assert int(sum(bar.y)) == len(values)


def test_all_steps_together_are_no_unknown():
    """A single part named None is all rows; beside named parts it is the unknown rows, drawn muted."""
    row = {"low": 0.0, "high": 1.0, "n_steps": 3}
    (alone,) = stacked([{**row, "part": None}], noun="steps", parts=[None]).data
    assert alone.marker.color == theme.SERIES[0]
    rows = [{**row, "part": None}, {**row, "part": "coder"}]
    unknown, named = stacked(rows, noun="steps", parts=[None, "coder"]).data
    assert (unknown.marker.color, named.marker.color) == (theme.MUTED, theme.SERIES[1])
