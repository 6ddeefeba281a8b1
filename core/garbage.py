"""Garbage collection in a process that only serves: objects that stay are excluded from it."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Run the block without garbage collection; for imports, whose objects stay and would be walked through repeatedly.

    The block must be short: reference cycles that it leaves are not freed before it ends. Collection stays off
    afterwards if it was off before.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def freeze_objects() -> None:
    """Exclude all present objects from garbage collection until the process ends.

    The interpreter collects once more at its end. Frozen objects would be left out of that, and DuckDB's library, which
    counts its own objects then, would report them as leaked on stderr.
    """
    gc.freeze()
    atexit.register(gc.unfreeze)


def settle_memory() -> None:
    """Exclude start-up objects from garbage collection, and collect less often; for processes that only serve.

    An answer's log-probs are hundreds of short-lived lists, and each full collection would walk through every loaded
    library while calls wait.
    """
    gc.collect()
    freeze_objects()
    gc.set_threshold(20_000, 20, 50)
