"""What Prometheus reads is what was meant, whatever agents call themselves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from core.api.metrics import text_of

# The format is lines of UTF-8: what is no text has no place in it.
LABELS = st.text(st.characters(codec="utf-8"), max_size=8)


@given(st.dictionaries(LABELS, st.integers(0, 2**53), max_size=4), st.floats(0, 1e9) | st.none())
def test_labels_and_numbers_are_read_as_they_were_written(counts, lag):
    written = [("", {"agent": agent}, n) for agent, n in counts.items()]
    text = text_of([("calls", "gauge", "By agent", written), ("lag_seconds", "gauge", "Lag", [("", {}, lag)])])
    calls, seconds = text_string_to_metric_families(text)
    assert {sample.labels["agent"]: sample.value for sample in calls.samples} == counts
    assert [sample.value for sample in seconds.samples] == ([] if lag is None else [lag])
