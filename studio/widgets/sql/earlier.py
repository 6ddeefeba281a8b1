"""Earlier queries of this author, newest first: stored beside the display preferences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from studio import kit, preferences

NAME = "sql_history"
MOST = 50
MAX_CHARS = 20_000
"""Longer queries are not kept."""


def remember(text: str, at: float, *, n_rows: int | None = None, elapsed_s: float | None = None) -> None:
    """Put a query first.

    Args:
        text: the query; an equal one before it is replaced.
        at: when it ran, seconds since 1970.
        n_rows, elapsed_s: of its result; None: it failed.
    """
    if len(text) > MAX_CHARS:
        return
    entry = {"text": text, "at": at, "n_rows": n_rows, "elapsed_s": elapsed_s}
    preferences.write(NAME, [entry, *(one for one in _entries() if one["text"] != text)][:MOST])


def history(now: float) -> list[dict[str, Any]]:
    """As ``schema_list`` draws it: ``{text, note, at, failed}``."""
    return [
        {
            "text": one["text"],
            "note": "failed"
            if one["n_rows"] is None
            else f"{kit.counted(one['n_rows'], 'row')} in {kit.seconds(one['elapsed_s'])}",
            "at": kit.ago(one["at"], now),
            "failed": one["n_rows"] is None,
        }
        for one in _entries()
    ]


def _entries() -> Sequence[Mapping[str, Any]]:
    stored = preferences.read(NAME, [])
    # People may edit the file.
    return [one for one in stored if isinstance(one, dict) and {"text", "at", "n_rows", "elapsed_s"} <= one.keys()]
