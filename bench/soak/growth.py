"""Detects growth: a robust slope over the samples of a run, compared with its limit.

The slope is Theil and Sen's: the median of the slopes between all pairs of looks. A few looks that fall on a backup or
on a busy machine don't move it, which the difference of the first and the last look would. The first part of the run
fills caches that are bounded and is not judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

WARM_UP = 0.4
"""Part of the run that is not judged."""
MAX_BYTES = 3000.0
"""Of memory that a call may add for good; 4 KB a call was the leak that this is here for."""
MAX_GROWTH = {"threads": 30.0, "descriptors": 40.0, "processes": 4.0}
"""How many more there may be at the end of what is judged. A pool of threads fills as calls happen to coincide."""
MAX_DISK_KB = {"journal_mb": 40.0, "pool_mb": 80.0, "opinions_mb": 20.0}
"""Disk that a call may add. It is small, because conversations end after a dozen turns."""
WAL_MB = 128.0
"""What the pool's write-ahead log may hold between two checkpoints: a short run may see it rise and not fall."""
MAX_CPU_RATIO = 2.5
"""Processor time of a call in the second half of what is judged, beside the first."""


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Theil and Sen's slope of ``y [n]`` over ``x [n]``; 0.0 where fewer than two values of ``x`` differ."""
    x_n, y_n = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    before, after = np.triu_indices(x_n.size, k=1)
    run = x_n[after] - x_n[before]
    there = run != 0
    return float(np.median((y_n[after] - y_n[before])[there] / run[there])) if there.any() else 0.0


def judged(looks: Sequence[dict[str, Any]], *, room_mb: float, slack: float = 1.0) -> list[dict[str, Any]]:
    """What was found of each measure: ``{what, found, most, grown}``.

    Args:
        looks: in order of time; numbers by name, ``calls`` among them. Names that end in ``_mb`` are MiB,
            ``cpu_s`` is processor time so far, seconds.
        room_mb: what bounded caches may still fill, of all processes together, beside ``MAX_BYTES`` a call.
        slack: factor on how many more threads and descriptors there may be, and on processor time: a run of a few
            minutes shows little more than how busy the machine was.
    """
    part = looks[int(len(looks) * WARM_UP) :]
    calls = [look["calls"] for look in part]
    n_calls = calls[-1] - calls[0]
    rows: list[dict[str, Any]] = []

    def add_row(what: str, value: float, most: float) -> None:
        rows.append({"what": what, "found": round(value, 2), "most": round(most, 2), "grown": value > most})

    a_call = {name: slope(calls, [look[name] for look in part]) for name in ("memory_mb", *MAX_GROWTH, *MAX_DISK_KB)}
    most = MAX_BYTES + room_mb * (1 << 20) / max(n_calls, 1)
    add_row("memory, bytes a call", a_call["memory_mb"] * (1 << 20), most)
    for name, more in MAX_GROWTH.items():
        add_row(f"{name}, more at the end", a_call[name] * n_calls, more * slack)
    for name, kb in MAX_DISK_KB.items():
        log_kb = WAL_MB * (1 << 10) / max(n_calls, 1) if name == "pool_mb" else 0.0
        add_row(f"{name.removesuffix('_mb')} on disk, KB a call", a_call[name] * (1 << 10), kb + log_kb)
    middle = len(part) // 2
    first, second = (
        slope([look["calls"] for look in half], [look["cpu_s"] for look in half])
        for half in (part[: middle + 1], part[middle:])
    )
    add_row("processor time of a call, times", second / first if first > 0 else 0.0, MAX_CPU_RATIO * slack)
    return rows
