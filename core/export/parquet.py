"""Writes Parquet files, one bounded row group at a time."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq

from core.export.base import Difference, Progress, Written
from core.export.sink import Sink


def write_row_groups(
    sink: Sink, schema: pa.Schema, groups: Iterable[tuple[int, pa.Table, Written]], total: int, progress: Progress
) -> Written:
    """Write tables as row groups while they are generated.

    Args:
        sink: the output.
        schema: of every table.
        groups: (number of steps written including this table, table, its counts).
        total: total number of steps, for progress.
        progress: called after each row group.
    """
    n_rows = n_tokens = n_loss = 0
    differences: dict[Difference, None] = {}
    # Plain encoding: zstd finds repeated contexts, which dictionary codes would hide, and it is twice as fast.
    with pq.ParquetWriter(pa.PythonFile(sink, mode="w"), schema, compression="zstd", use_dictionary=False) as writer:
        for done, table, written in groups:
            writer.write_table(table, row_group_size=max(1, len(table)))
            n_rows += written.n_rows
            n_tokens += written.n_tokens
            n_loss += written.n_loss_tokens
            differences |= dict.fromkeys(written.differences)
            progress(done, total)
    return Written(n_rows, n_tokens, n_loss, tuple(differences))
