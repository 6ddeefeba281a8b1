"""Appends that wait for their sync, from threads and event loops: taken in batches, resolved together."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import Future
from typing import NamedTuple

from core.errors import JournalError

_MAX_BATCH_BYTES = 32 << 20

Position = tuple[str, int]
AsyncWaiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Position]"]


class Pending(NamedTuple):
    """A record to write, the CRC-32 of its payload, and what is resolved when it is on disk."""

    payload: bytes
    crc: int
    waiter: Future[Position] | AsyncWaiter


def take(waiting: list[Pending]) -> tuple[list[Pending], list[Pending]]:
    """Split off one batch: at least one record, and then up to ``_MAX_BATCH_BYTES``."""
    n_bytes = 0
    for index, pending in enumerate(waiting):
        n_bytes += len(pending.payload)
        if index and n_bytes > _MAX_BATCH_BYTES:
            return waiting[:index], waiting[index:]
    return waiting, []


def answer(batch: list[Pending], positions: list[Position] | None, failure: JournalError | None) -> None:
    """Resolve every waiter; the waiters of one event loop are woken together, by one system call."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Position], Position | None]]] = {}
    for index, (_, _, waiter) in enumerate(batch):
        position = positions[index] if positions is not None else None
        if isinstance(waiter, tuple):
            by_loop.setdefault(waiter[0], []).append((waiter[1], position))
        elif position is not None:
            waiter.set_result(position)
        else:
            waiter.set_exception(failure)
    for loop, results in by_loop.items():
        # The loop has ended: no caller is waiting.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_resolve, results, failure)


def _resolve(results: list[tuple[asyncio.Future[Position], Position | None]], failure: JournalError | None) -> None:
    for future, position in results:
        if future.done():
            continue
        if position is not None:
            future.set_result(position)
        elif failure is not None:
            future.set_exception(failure)
