"""Removes records from a segment. The other records keep the offsets that their writer gave them.

Gaps mark removed records (``core.journal.layout``), so that they don't count as missing, and a reader's position in the
original segment is valid in the thinned one.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from core.journal import layout
from core.journal.reader import Record, read_all
from core.journal.salvage import Damage

THIN: Final = ".thin"
"""Suffix of a thinned copy that has not replaced its segment yet."""


def thin(path: Path, gone: Callable[[Record], bool]) -> Path | None:
    """Write a synced copy of a segment beside it, without the records for which ``gone`` is true; returns its path.

    Returns None if no record is removed, or if the segment is damaged or of version 1. Raises OSError if the copy can't
    be written; no file is left then.
    """
    with path.open("rb") as file:
        packed = file.read(layout.head_bytes(path.name))
    head = layout.unpack_head(packed)
    if head is None or head.name != path.name:
        return None
    copy = path.with_name(path.name + THIN)
    try:
        handle = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as out:
            out.write(packed)
            n = _write(path, out.write, head, gone)
            out.flush()
            os.fsync(out.fileno())
    except BaseException:
        copy.unlink(missing_ok=True)
        raise
    if not n:
        copy.unlink()
        return None
    return copy


def _write(path: Path, write: Callable[[bytes], object], head: layout.Head, gone: Callable[[Record], bool]) -> int:
    """The number of removed records; 0 if the segment is damaged."""
    key, n = layout.key_of(path.name), 0
    first = last = 0
    for item in read_all(path, 0, sealed=True):
        if isinstance(item, Damage):
            return 0
        kept = isinstance(item, Record) and not gone(item)
        if not kept:
            n += isinstance(item, Record)
            first, last = (first if last else item.offset), item.next_offset
            continue
        if last:
            write(layout.pack_gap(head.salt, key, first, last))
            first = last = 0
        assert isinstance(item, Record)
        write(layout.pack_frame(head.salt, key, item.offset, len(item.payload), zlib.crc32(item.payload)))
        write(item.payload)
        write(layout.pack_end(item.next_offset, key))
    if last:
        write(layout.pack_gap(head.salt, key, first, last))
    return n
