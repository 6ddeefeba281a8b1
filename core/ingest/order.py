"""Records of several writers in the order in which they happened.

A call's prompt goes on from an answer that another gateway process may have recorded. That answer was on disk before
the call began, so taking records by their time, up to one instant for all writers, never meets a child before its
parent.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Final

from core.journal import Record, read_writers

_AT: Final = re.compile(rb'\{"kind":"[a-z]+","v":\d+,"at":(\d[0-9.eE+-]*)')
_SKEW_S: Final = 5.0
"""A record from further in the future was written before the clock was set back; waiting for it would stop ingest."""


def read_in_order(directory: Path, after: Mapping[str, int], *, now: float) -> Iterator[Record]:
    """Every whole record past the given positions; of several writers merged by time, those before ``now``.

    Args:
        after: as in ``core.journal.read_records``.
        now: UTC seconds, taken before this call; what is younger comes next time.
    """
    writers = [_peeked(records) for records in read_writers(directory, after)]
    unread = [records for records in writers if records is not None]
    if len(unread) <= 1:
        for records in unread:
            yield from records
        return
    for _, record in heapq.merge(*(_timed(records, now) for records in unread), key=itemgetter(0)):
        yield record


def _peeked(records: Iterator[Record]) -> Iterator[Record] | None:
    """The same records; None when there is none."""
    first = next(records, None)
    return None if first is None else _chained(first, records)


def _chained(first: Record, rest: Iterator[Record]) -> Iterator[Record]:
    yield first
    yield from rest


def _timed(records: Iterator[Record], now: float) -> Iterator[tuple[float, Record]]:
    """With each record's time; one that has none stands beside the one before it."""
    at = 0.0
    for record in records:
        found = _AT.match(record.payload)
        if found is not None:
            # A writer's order is never changed, whatever its clock does.
            at = max(at, float(found[1]))
        if now < at <= now + _SKEW_S:
            return
        yield at, record
