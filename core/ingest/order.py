"""Merges the records of several journal writers in order of time.

A call's prompt may continue an answer that another gateway process recorded. That answer was on disk before the call
began. So reading records by time, up to the same instant for all writers, never returns a child before its parent.
Writers of this machine are visible up to now, those of others up to their watermarks (``core.ingest.writers``).
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from operator import itemgetter
from typing import Final

from core.ingest.held import HeldRecord
from core.journal import JournalItem, JournalReader, Record

_AT: Final = re.compile(rb'\{"kind":"[a-z]+","v":\d+,"at":(\d[0-9.eE+-]*)')
_SKEW_S: Final = 5.0
"""A record from further in the future was written before the clock was set back; waiting for it would stop ingest."""


def read_in_order(
    reader: JournalReader,
    after: Mapping[str, int],
    *,
    now: float,
    elsewhere: bool = False,
    held: Iterable[HeldRecord] = (),
) -> Iterator[JournalItem | HeldRecord]:
    """Records, damages and gaps past the given positions, of several writers merged by time, up to ``now``.

    Args:
        after: as in ``JournalReader.read``.
        now: UTC seconds, taken before this call; younger records are read by the next call.
        elsewhere: whether other machines write too. Their records up to ``now`` are visible, later ones may be missing.
        held: records that were read before and wait, in order of time; they are merged with the others.
    """
    writers = [_unless_empty(items) for items in reader.read(after)]
    unread = [items for items in writers if items is not None]
    waiting = [(one.written_at, one) for one in held]
    if len(unread) <= 1 and not waiting and not elsewhere:
        for items in unread:
            yield from items
        return
    for _, one in heapq.merge(waiting, *(_timed(items, now) for items in unread), key=itemgetter(0)):
        yield one


def time_of(item: JournalItem) -> float | None:
    """When a record was written, UTC seconds; None if it has no time."""
    match = _AT.match(item.payload) if isinstance(item, Record) else None
    return float(match[1]) if match is not None else None


def _unless_empty(items: Iterator[JournalItem]) -> Iterator[JournalItem] | None:
    """The same items; None when there are none."""
    first = next(items, None)
    return None if first is None else chain([first], items)


def _timed(items: Iterator[JournalItem], now: float) -> Iterator[tuple[float, JournalItem]]:
    """Items with their times; an item without a time gets that of the item before it."""
    at = 0.0
    for one in items:
        # A writer's order is never changed, even if its clock jumps.
        at = max(at, time_of(one) or 0.0)
        if now < at <= now + _SKEW_S:
            return
        yield at, one
