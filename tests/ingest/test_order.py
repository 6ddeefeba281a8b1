"""Records of several writers come in the order in which they happened, whatever is read when."""

from __future__ import annotations

from itertools import islice

import orjson
from hypothesis import given
from hypothesis import strategies as st

from core.ingest.order import read_in_order
from core.journal import Journal, JournalReader
from tests.effort import settings


def payload(at: float, name: str) -> bytes:
    return orjson.dumps({"kind": "call", "v": 1, "at": at, "name": name})


def name_of(record):
    return orjson.loads(record.payload)["name"]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0.001, 10), st.booleans()), max_size=25), st.integers(1, 7))
def test_a_chain_of_calls_over_several_writers_is_read_parent_first(tmp_path_factory, chain, n_at_a_time):
    """Call k goes on from call k - 1, which another process may have recorded; the reader may read in between."""
    directory = tmp_path_factory.mktemp("journal")
    journals = [Journal(directory, writer=f"g{number}") for number in range(3)]
    now = 1_700_000_000.0
    positions: dict[str, int] = {}
    read = []

    def take():
        for count, record in enumerate(read_in_order(JournalReader(directory), positions, now=now), 1):
            positions[record.segment] = record.next_offset
            read.append(name_of(record))
            if count == n_at_a_time:
                return True
        return False

    for number, (writer, pause, reads) in enumerate(chain):
        now += pause
        journals[writer].append(payload(now, str(number))).result(20)
        if reads:
            take()
    while take():
        pass
    take()
    for journal in journals:
        journal.close()
    assert read == [str(number) for number in range(len(chain))]


def test_what_is_younger_than_the_reading_waits_for_the_next_time(tmp_path):
    """Its parent may have been written behind the reader's back, into a segment that was read already."""
    first, second = Journal(tmp_path, writer="g1"), Journal(tmp_path, writer="g2")
    first.append(payload(10.0, "old")).result(20)
    second.append(payload(10.5, "young")).result(20)
    assert [name_of(record) for record in read_in_order(JournalReader(tmp_path), {}, now=10.2)] == ["old"]
    assert [name_of(record) for record in read_in_order(JournalReader(tmp_path), {}, now=10.6)] == ["old", "young"]
    first.close()
    second.close()


def test_a_clock_that_was_set_back_stops_nothing(tmp_path):
    journals = [Journal(tmp_path, writer=writer) for writer in ("g1", "g2")]
    for journal in journals:
        journal.append(payload(5000.0, journal.writer)).result(20)
        journal.close()
    assert {name_of(record) for record in read_in_order(JournalReader(tmp_path), {}, now=1000.0)} == {"g1", "g2"}


def test_one_busy_writer_does_not_keep_others_waiting(tmp_path):
    journals = [Journal(tmp_path, writer=writer) for writer in ("g1", "g2")]
    for number in range(50):
        for journal in journals:
            journal.append(payload(float(number), journal.writer)).result(20)
    first = [name_of(record) for record in islice(read_in_order(JournalReader(tmp_path), {}, now=1e9), 20)]
    assert first.count("g1") == first.count("g2") == 10
    for journal in journals:
        journal.close()
