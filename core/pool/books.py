"""What ``Pool`` keeps and answers beside steps and opinions, one part per file."""

from __future__ import annotations

from core.pool.console import Console


class Books(Console):
    """SQL."""
