"""TRL's SFTTrainer: token ids with labels, -100 wherever no loss is wanted.

Labels, not a completion mask: without ``completion_only_loss=True`` TRL ignores the mask and trains on the prompt.
``max_length=None`` is needed when training, since SFTConfig cuts at 1024 tokens by default.

``merge=step``: one row per chosen step. ``merge=trajectory``: a step whose prompt begins with the whole row so far,
token for token (transition ``extends``), continues that row, so shared context stands once; the labels of
every chosen response stay. A step that doesn't continue any row of its trajectory begins a new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from core.batch.arrays import lists, trajectory_ranges
from core.batch.plan import Plan
from core.export.base import Exporter, ExportSource, Progress, Sink, Written
from core.export.parquet import write_row_groups
from core.tree.sequences import Int32, Int64, Sequences, ragged_index

IGNORE = -100
SCHEMA = pa.schema({"input_ids": pa.list_(pa.int32()), "labels": pa.list_(pa.int32())})


@dataclass(slots=True)
class _Row:
    """A row that is being merged: its longest sequence, and where sampled tokens stand in it."""

    sequence: int
    spans: list[tuple[int, int]] = field(default_factory=list)


def _merged(sequences: Sequences, low: int, high: int) -> list[_Row]:
    """Rows of one trajectory's steps ``[low, high)``."""
    rows: list[_Row] = []
    for i in range(low, high):
        ids, n_prompt = sequences.sequence(i), int(sequences.n_prompt[i])
        best: _Row | None = None
        for row in rows:
            before = sequences.sequence(row.sequence)
            longer = best is None or len(before) > len(sequences.sequence(best.sequence))
            if longer and len(before) <= n_prompt and np.array_equal(ids[: len(before)], before):
                best = row
        if best is None:
            best = _Row(i)
            rows.append(best)
        best.sequence = i
        best.spans.append((n_prompt, len(ids)))
    return rows


def _table(sequences: Sequences, chosen: Int64, loss_index: Int64) -> pa.Table:
    """Rows of whole sequences, loss at ``loss_index`` of their joined ids."""
    lengths = sequences.lengths[chosen]
    ids: Int32 = sequences.ids[ragged_index(sequences.offsets[:-1][chosen], lengths)]
    labels = np.full(len(ids), IGNORE, dtype=np.int32)
    labels[loss_index] = ids[loss_index]
    return pa.table([lists(ids, lengths, pa.int32()), lists(labels, lengths, pa.int32())], schema=SCHEMA)


def _groups(plan: Plan, pool: ExportSource, merge: bool) -> Iterator[tuple[int, pa.Table, Written]]:
    trajectory = plan.steps["trajectory"].to_numpy()
    for low, high in trajectory_ranges(plan):
        sequences = pool.sequences(plan.step_uids[low:high])
        chosen = np.arange(high - low, dtype=np.int64)
        loss_index = sequences.response_index()
        if merge:
            borders = np.flatnonzero(np.diff(trajectory[low:high], prepend=-1, append=-1)).tolist()
            rows = [row for a, b in pairwise(borders) for row in _merged(sequences, a, b)]
            chosen = np.array([row.sequence for row in rows], dtype=np.int64)
            lengths = sequences.lengths[chosen]
            base = (np.cumsum(lengths) - lengths).tolist()
            spans = np.array(
                [(at + a, b - a) for at, row in zip(base, rows, strict=True) for a, b in row.spans], dtype=np.int64
            ).reshape(-1, 2)
            loss_index = ragged_index(spans[:, 0], spans[:, 1])
        n_tokens = int(sequences.lengths[chosen].sum())
        yield high, _table(sequences, chosen, loss_index), Written(len(chosen), n_tokens, len(loss_index))


def write(plan: Plan, pool: ExportSource, sink: Sink, settings: Mapping[str, Any], progress: Progress) -> Written:
    """Stream the rows."""
    groups = _groups(plan, pool, settings["merge"] == "trajectory")
    return write_row_groups(sink, SCHEMA, groups, len(plan.steps), progress)


def load_command(name: str) -> str:
    """Loads the file with ``datasets``, as SFTTrainer wants it."""
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
    load_command=load_command,
    choices={"merge": ("step", "trajectory")},
)
