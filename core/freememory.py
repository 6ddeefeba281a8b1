"""Gives memory that was freed back to the system, in a process that runs for days (glibc; elsewhere nothing is done).

Each thread allocates from one of several heaps (arenas, up to eight per core), and a heap shrinks only at its end.
Ingest, queries and exports free what other threads allocated, so after some thousand calls of mixed traffic half of the
heaps was free memory that the process still held.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

M_ARENA_MAX = -8
"""``mallopt``'s parameter for the number of heaps (malloc.h of glibc)."""
N_ARENAS = 2
EVERY_S = 60.0


class FreeMemory:
    """Returns free memory to the system at most every ``EVERY_S`` seconds; call it often.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due = clock() + EVERY_S
        library = _glibc()
        self._trim = None if library is None else library.malloc_trim

    def __call__(self) -> bool:
        """Return free memory if it is due; whether it was."""
        if self._trim is None or self._clock() < self._due:
            return False
        # ctypes releases the interpreter's lock meanwhile. It takes a few milliseconds.
        self._trim(0)
        self._due = self._clock() + EVERY_S
        return True


def limit_arenas() -> None:
    """Let threads share ``N_ARENAS`` heaps; heaps that exist already stay."""
    library = _glibc()
    if library is not None:
        library.mallopt(M_ARENA_MAX, N_ARENAS)


def _glibc() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libc.so.6")
        library.malloc_trim.argtypes = [ctypes.c_size_t]
        library.mallopt.argtypes = [ctypes.c_int, ctypes.c_int]
    except (OSError, AttributeError):
        return None
    return library
