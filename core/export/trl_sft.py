"""Exports to TRL's SFTTrainer: token ids with labels, -100 on tokens without loss.

It has labels instead of a completion mask, because TRL ignores the mask without ``completion_only_loss=True``. Train
with ``max_length=None``: by default, SFTConfig cuts at 1024 tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from core.batch.arrays import list_column
from core.batch.plan import Plan
from core.batch.rows import training_rows
from core.export.base import MERGE, Difference, Exporter, ExportSource, Progress, Written, merged
from core.export.lines import UNPREDICTED, n_unpredicted, repeated
from core.export.parquet import write_row_groups
from core.export.reading import IGNORE, Row, labelled, parquet_rows
from core.export.sink import Sink

SCHEMA = pa.schema({"input_ids": pa.list_(pa.int32()), "labels": pa.list_(pa.int32())})


def _groups(plan: Plan, source: ExportSource, merge: bool) -> Iterator[tuple[int, pa.Table, Written]]:
    for rows in training_rows(plan, source, merge=merge):
        labels = np.where(rows.loss, rows.ids, np.int32(IGNORE))
        columns = [list_column(values, rows.lengths, pa.int32()) for values in (rows.ids, labels)]
        n_first = n_unpredicted(rows)
        differences = (UNPREDICTED,) if n_first else ()
        n_loss = int(rows.loss.sum()) - n_first
        yield rows.done, pa.table(columns, schema=SCHEMA), Written(len(rows), len(rows.ids), n_loss, differences)


def write(plan: Plan, source: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Write the file, row group by row group."""
    groups = _groups(plan, source, merged(settings))
    return write_row_groups(sink, SCHEMA, groups, len(plan.steps), progress)


def differences(plan: Plan, settings: Mapping[str, str]) -> Sequence[Difference]:
    """Differences in the longest sequence and the last batch."""
    return (
        Difference("TRL cuts rows at 1024 tokens", "SFTConfig(max_length=None)"),
        repeated("TRL", "per_device_train_batch_size"),
    )


def read(data: bytes, settings: Mapping[str, str]) -> Iterator[Row]:
    """The rows as SFTTrainer reads them."""
    return map(labelled, parquet_rows(data))


def load_command(name: str) -> str:
    """A command that loads the file with ``datasets``, for SFTTrainer."""
    return (
        'python -c "from datasets import load_dataset; '
        f"print(load_dataset('parquet', data_files='{name}', split='train'))\""
        "  # then SFTTrainer(args=SFTConfig(max_length=None, ...), train_dataset=...)"
    )


EXPORTER = Exporter(
    name="trl_sft",
    title="TRL SFT",
    description="Parquet with input_ids and labels (-100 outside the sampled tokens) for trl.SFTTrainer; "
    "train with SFTConfig(max_length=None), or TRL cuts rows at 1024 tokens",
    suffix=".parquet",
    write=write,
    read=read,
    load_command=load_command,
    choices=MERGE,
    differences=differences,
    imitates=True,
    by_group=True,
)
