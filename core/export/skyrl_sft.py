"""Exports to SkyRL's pretokenized SFT datasets: unpadded ``input_ids`` and a 0/1 ``loss_mask`` of the same length.

The first token of a row is never in the loss, because there is no log-prob for a token without context.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from core.batch.arrays import list_column
from core.batch.plan import Plan
from core.batch.rows import training_rows
from core.export.base import MERGE, Difference, Exporter, ExportSource, Progress, Written, merged
from core.export.lines import longest_row
from core.export.parquet import write_row_groups
from core.export.reading import Row, parquet_rows, tokens
from core.export.recompute import bare_rows, with_context
from core.export.sink import Sink

SCHEMA = pa.schema({"input_ids": pa.list_(pa.int32()), "loss_mask": pa.list_(pa.int8())})


def _groups(plan: Plan, source: ExportSource, merge: bool) -> Iterator[tuple[int, pa.Table, Written]]:
    for rows in map(with_context, training_rows(plan, source, merge=merge)):
        columns = [
            list_column(rows.ids, rows.lengths, pa.int32()),
            list_column(rows.loss.astype(np.int8), rows.lengths, pa.int8()),
        ]
        yield rows.done, pa.table(columns, schema=SCHEMA), Written(len(rows), len(rows.ids), int(rows.loss.sum()))


def write(plan: Plan, source: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Write the file, row group by row group."""
    return write_row_groups(sink, SCHEMA, _groups(plan, source, merged(settings)), len(plan.steps), progress)


def differences(plan: Plan, settings: Mapping[str, str]) -> Sequence[Difference]:
    """Differences in the longest sequence, and for rows without a prompt."""
    return (Difference("SkyRL cuts rows at its max_length", f"max_length: {longest_row(plan)}"), *bare_rows(plan))


def read(data: bytes, settings: Mapping[str, str]) -> Iterator[Row]:
    """The rows as SkyRL reads them."""
    return (Row([tokens(row["input_ids"], row["loss_mask"])]) for row in parquet_rows(data))


def load_command(name: str) -> str:
    """A command that loads the file with ``datasets``, as SkyRL does."""
    return (
        'python -c "from datasets import load_dataset; '
        f"print(load_dataset('parquet', data_files='{name}', split='train'))\""
        "  # then SkyRL's SFT trainer with this file as its pretokenized dataset"
    )


EXPORTER = Exporter(
    name="skyrl_sft",
    title="SkyRL SFT (parquet)",
    description="Unpadded input_ids and loss_mask for SkyRL's pretokenized SFT datasets",
    suffix=".parquet",
    write=write,
    read=read,
    load_command=load_command,
    choices=MERGE,
    differences=differences,
    imitates=True,
    by_group=True,
)
