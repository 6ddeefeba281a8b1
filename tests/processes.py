"""Processes below a service that runs as a process of its own."""

from __future__ import annotations

import contextlib
from pathlib import Path


def children(pid: int) -> list[int]:
    """Processes that this process has started and that have not ended."""
    pids: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            pids += [int(child) for child in task.read_text().split()]
    return pids


def gateway_workers(pid: int) -> list[int]:
    """Gateway processes of a service."""
    return [child for child in children(pid) if "core.workers.worker" in _command(child)]


def query_processes(pid: int) -> list[int]:
    """Processes of a service that run users' SQL."""
    return [child for child in children(pid) if "core.pool.sql.worker" in _command(child)]


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""
