"""Events read from bytes cut anywhere, held against a reader that has all bytes at once and follows the book."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from core.errors import EngineError
from core.gateway.transport.sse import MAX_EVENT_BYTES, EventReader

lines = st.one_of(
    st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12).map("data: {}".format),
    st.sampled_from(["", "", "", "data", "data:", "data:x", "data:  two", ": no", "event: name", "id: 3", "junk", ":"]),
)  # fmt: skip
streams = st.lists(st.tuples(lines, st.sampled_from(["\n", "\r\n", "\r"])), max_size=20).map(
    lambda lines: "".join(line + end for line, end in lines)
)


def by_the_book(text: str) -> list[str]:
    events: list[str] = []
    data: list[str] = []
    # What is not ended by a line break is no line yet.
    for line in re.split("\r\n|\n|\r", text.removeprefix("\ufeff"))[:-1]:
        name, _, value = line.partition(":")
        if not line:
            if data:
                events.append("\n".join(data))
            data = []
        elif name == "data":
            data.append(value.removeprefix(" "))
    return events


@given(streams, st.sampled_from(["", "\ufeff"]), st.data())
@example("data: a\r\n\r\ndata: b\r\r", "", None)
def test_cut_anywhere_the_events_are_the_same(text: str, mark: str, data: st.DataObject | None) -> None:
    raw = (mark + text).encode()
    # A CR at the very end may be half of a CR LF: the book knows, a reader does not yet, and it makes no difference.
    places = range(len(raw) + 1)
    cuts = list(places) if data is None else sorted(data.draw(st.sets(st.sampled_from(places), max_size=8)))
    reader, events = EventReader(), []
    for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        events += reader.feed(raw[start:end])
    assert [event.decode() for event in events] == by_the_book(mark + text)


def test_byte_by_byte() -> None:
    reader = EventReader()
    raw = "\ufeffdata: grüße\r\n\r\ndata: a\ndata: b\n\n".encode()
    events = [event for place in range(len(raw)) for event in reader.feed(raw[place : place + 1])]
    assert events == ["grüße".encode(), b"a\nb"]


def test_an_event_without_end_is_refused() -> None:
    reader = EventReader()
    with pytest.raises(EngineError):
        for _ in range(1 + MAX_EVENT_BYTES // (1 << 20)):
            reader.feed(b"x" * (1 << 20))
    lines_reader = EventReader()
    with pytest.raises(EngineError):
        for _ in range(2 + MAX_EVENT_BYTES // (1 << 20)):
            lines_reader.feed(b"data: " + b"x" * (1 << 20) + b"\n")
