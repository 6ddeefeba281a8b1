"""The private memory of a process, and the database's share of it by its own count."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def own_memory(pid: int | None = None) -> int:
    """Bytes of memory that are a process's own, files it has mapped left out; 0 where the system does not tell.

    Args:
        pid: of the process; None is this one.
    """
    try:
        for line in Path(f"/proc/{pid or os.getpid()}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) << 10
    except OSError:
        return 0
    return 0


def database_memory(cursor: Any) -> int:
    """Bytes that DuckDB counts: what it keeps of the file, sorts and joins. ``memory_limit`` holds for these alone."""
    row = cursor.execute("SELECT coalesce(sum(memory_usage_bytes), 0) FROM duckdb_memory()").fetchone()
    return int(row[0])
