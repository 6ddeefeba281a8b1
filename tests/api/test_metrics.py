"""What Prometheus reads is what was meant, whatever agents call themselves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from core.api.metrics import labelled

# The format is lines of UTF-8: what is no text has no place in it.
LABELS = st.text(st.characters(codec="utf-8"), max_size=8)


class Families(Collector):
    def __init__(self, families):
        self.families = families

    def collect(self):
        return self.families


@given(st.dictionaries(LABELS, st.integers(0, 2**53), max_size=4), st.floats(0, 1e9) | st.none())
def test_labels_and_numbers_are_read_as_they_were_written(counts, lag):
    of_agents = labelled(GaugeMetricFamily("calls", "By agent", labels=["agent"]), {**counts, "unknown agent": None})
    text = generate_latest(Families([of_agents, GaugeMetricFamily("lag_seconds", "Lag", lag)])).decode()
    calls, seconds = text_string_to_metric_families(text)
    assert {sample.labels["agent"]: sample.value for sample in calls.samples} == counts
    assert [sample.value for sample in seconds.samples] == ([] if lag is None else [lag])
