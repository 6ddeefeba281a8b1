"""Records of several writers in the order in which they happened.

A call's prompt goes on from an answer that another gateway process may have recorded. That answer was on disk before
the call began, so taking records by their time, up to one instant for all writers, never meets a child before its
parent.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from operator import itemgetter
from typing import Final

from core.journal import JournalItem, JournalReader, Record

_AT: Final = re.compile(rb'\{"kind":"[a-z]+","v":\d+,"at":(\d[0-9.eE+-]*)')
_SKEW_S: Final = 5.0
"""A record from further in the future was written before the clock was set back; waiting for it would stop ingest."""


def read_in_order(reader: JournalReader, after: Mapping[str, int], *, now: float) -> Iterator[JournalItem]:
    """Every whole record past the given positions, and what is none; of several writers merged by time, up to ``now``.

    Args:
        after: as in ``JournalReader.read``.
        now: UTC seconds, taken before this call; what is younger comes next time.
    """
    writers = [_peeked(items) for items in reader.read(after)]
    unread = [items for items in writers if items is not None]
    if len(unread) <= 1:
        for items in unread:
            yield from items
        return
    for _, one in heapq.merge(*(_timed(items, now) for items in unread), key=itemgetter(0)):
        yield one


def time_of(item: JournalItem) -> float | None:
    """When a record was written, UTC seconds; None where it doesn't say."""
    match = _AT.match(item.payload) if isinstance(item, Record) else None
    return float(match[1]) if match is not None else None


def _peeked(items: Iterator[JournalItem]) -> Iterator[JournalItem] | None:
    """The same; None when there is nothing."""
    first = next(items, None)
    return None if first is None else chain([first], items)


def _timed(items: Iterator[JournalItem], now: float) -> Iterator[tuple[float, JournalItem]]:
    """With each record's time; what has none stands beside what is before it."""
    at = 0.0
    for one in items:
        # A writer's order is never changed, whatever its clock does.
        at = max(at, time_of(one) or 0.0)
        if now < at <= now + _SKEW_S:
            return
        yield at, one
