"""Starts processes for gateway workers, some of them before the owner can tell them what to do.

This module imports nothing heavy, so that a worker and its owner import what they need at the same time.
"""

from __future__ import annotations

import subprocess
import sys

_waiting: list[subprocess.Popen[bytes]] = []


def start_early(n: int) -> None:
    """Start ``n`` processes that import what they need and wait. They end when this process ends."""
    _waiting.extend(_spawn() for _ in range(n))


def worker_process() -> subprocess.Popen[bytes]:
    """A process that waits for its first message: one that was started early, or a new one. Raises OSError."""
    while _waiting:
        process = _waiting.pop()
        if process.poll() is None:
            return process
    return _spawn()


def _spawn() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "core.workers.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # Ctrl-C in the terminal goes to the owner, which stops its workers in order.
        start_new_session=True,
    )
