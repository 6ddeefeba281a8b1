"""A hash of a table's content, independent of any library's memory layout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

ROWS_AT_ONCE = 1 << 16
"""Rows that are converted together: they stay in the processor's cache, and no copy of a column is made."""


def update_hash(digest: Any, table: pa.Table) -> None:
    """Feed a table: names, lengths, validity and values of each column, by name; no library's layout is in it."""
    digest.update(len(table).to_bytes(8, "little"))
    for name in sorted(table.column_names):
        digest.update(name.encode() + b"\0")
        _update_column(digest, table[name].chunks, table[name].type)


def _update_column(digest: Any, chunks: list[pa.Array], kind: pa.DataType) -> None:
    for part in _parts(chunks):
        digest.update(np.ascontiguousarray(part.is_valid().to_numpy(zero_copy_only=False)).view(np.uint8))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        for part in _parts(chunks):
            _update_numbers(digest, pc.fill_null(pc.list_value_length(part), 0), "<i8")
        _update_column(digest, [chunk.flatten() for chunk in chunks], kind.value_type)
    elif pa.types.is_floating(kind):
        for part in _parts(chunks):
            _update_numbers(digest, pc.fill_null(part, 0.0), "<f8")
    elif pa.types.is_boolean(kind):
        for part in _parts(chunks):
            _update_numbers(digest, pc.fill_null(part, False), "u1")
    elif pa.types.is_integer(kind):
        for part in _parts(chunks):
            _update_numbers(digest, pc.fill_null(part, 0), "<i8")
    else:
        for part in _parts(chunks):
            _update_numbers(digest, pc.binary_length(_texts(part)), "<i8")
        for part in _parts(chunks):
            texts = _texts(part)
            _, offsets, data = texts.buffers()
            ends = np.frombuffer(offsets, np.int64, len(texts) + 1 + texts.offset)
            if data is not None:
                digest.update(memoryview(data)[ends[texts.offset] : ends[-1]])


def _parts(chunks: list[pa.Array]) -> Iterator[pa.Array]:
    for chunk in chunks:
        for begin in range(0, len(chunk), ROWS_AT_ONCE):
            yield chunk.slice(begin, ROWS_AT_ONCE)


def _texts(part: pa.Array) -> pa.LargeStringArray:
    return pc.fill_null(part.cast(pa.large_string()), "")


def _update_numbers(digest: Any, values: pa.Array, dtype: str) -> None:
    digest.update(np.ascontiguousarray(values.to_numpy(zero_copy_only=False).astype(dtype, copy=False)))
