"""Computes the next item of an iterator in a thread while the caller works on the one before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
_END = object()


def ahead(items: Iterable[T]) -> Iterator[T]:
    """The items in order, each computed while the caller has the one before; so two are in memory.

    An error of ``items`` is raised where its item would be. The thread ends with the iterator: closing it waits for the
    item that is being computed.
    """
    source = iter(items)
    with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as thread:
        coming = thread.submit(next, source, _END)
        while (item := coming.result()) is not _END:
            coming = thread.submit(next, source, _END)
            yield item  # type: ignore[misc]
