"""A hash of a table's content, independent of any library's memory layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def update_hash(digest: Any, table: pa.Table) -> None:
    """Feed a table: names, lengths, validity and values of each column, by name; no library's layout is in it."""
    digest.update(len(table).to_bytes(8, "little"))
    for name in sorted(table.column_names):
        digest.update(name.encode() + b"\0")
        column = table[name].combine_chunks()
        _update_array(digest, column if isinstance(column, pa.Array) else column.chunk(0))


def _update_array(digest: Any, values: pa.Array) -> None:
    digest.update(values.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8).tobytes())
    kind = values.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        digest.update(
            pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False).astype("<i8").tobytes()
        )
        _update_array(digest, values.flatten())
    elif pa.types.is_floating(kind):
        digest.update(pc.fill_null(values, 0.0).to_numpy(zero_copy_only=False).astype("<f8").tobytes())
    elif pa.types.is_boolean(kind):
        digest.update(pc.fill_null(values, False).to_numpy(zero_copy_only=False).astype(np.uint8).tobytes())
    elif pa.types.is_integer(kind):
        digest.update(pc.fill_null(values, 0).to_numpy(zero_copy_only=False).astype("<i8").tobytes())
    else:
        texts = pc.fill_null(values.cast(pa.large_string()), "")
        digest.update(pc.binary_length(texts).to_numpy(zero_copy_only=False).astype("<i8").tobytes())
        _, offsets, data = texts.buffers()
        ends = np.frombuffer(offsets, np.int64, len(texts) + 1 + texts.offset)
        if data is not None and len(texts):
            digest.update(memoryview(data)[ends[texts.offset] : ends[-1]])
