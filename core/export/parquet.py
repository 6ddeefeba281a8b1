"""Parquet, one bounded row group at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from core.batch.layout import chunks
from core.batch.plan import Plan
from core.export.base import Progress, Sink, Written
from core.tree.sequences import Int64

ROW_GROUP_TOKENS = 4_000_000
"""Tokens per row group: some tens of MB while it is made."""


def write_row_groups(
    sink: Sink, schema: pa.Schema, groups: Iterable[tuple[int, pa.Table, Written]], total: int, progress: Progress
) -> Written:
    """Write tables as they come.

    Args:
        sink: where to.
        schema: of every table.
        groups: (steps written when this one is in, table, what it holds).
        total: steps in all, for progress.
        progress: told after each group.
    """
    n_rows = n_tokens = n_loss = 0
    # Plain encoding: zstd finds repeated contexts that dictionary codes hide, and it is twice as fast.
    with pq.ParquetWriter(pa.PythonFile(sink, mode="w"), schema, compression="zstd", use_dictionary=False) as writer:
        for done, table, written in groups:
            writer.write_table(table, row_group_size=max(1, len(table)))
            n_rows += written.n_rows
            n_tokens += written.n_tokens
            n_loss += written.n_loss_tokens
            progress(done, total)
    return Written(n_rows, n_tokens, n_loss)


def trajectory_ranges(plan: Plan) -> Iterator[tuple[int, int]]:
    """Ranges of plan steps of whole trajectories, about ``ROW_GROUP_TOKENS`` tokens each."""
    n_steps = plan.trajectories["n_steps"].to_numpy().astype(np.int64)
    yield from chunks(plan.lengths, np.cumsum(n_steps), ROW_GROUP_TOKENS)


def lists(values: NDArray[Any], lengths: Int64, kind: pa.DataType, *, known: NDArray[np.bool_] | None = None) -> Any:
    """A flat array cut into a list column; NaN becomes null, and lists that aren't ``known`` become null.

    Args:
        values: [sum(lengths)].
        lengths: int64 [n].
        kind: Arrow type of the elements.
        known: bool [n]; None knows all.
    """
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)]).astype(np.int32)
    floats = np.issubdtype(values.dtype, np.floating)
    flat = pa.array(values, kind, mask=np.isnan(values) if floats else None)
    mask = None if known is None else pa.array(~known)
    return pa.ListArray.from_arrays(pa.array(offsets), flat, mask=mask)
