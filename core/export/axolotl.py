"""Axolotl: JSON lines of ``input_ids``, ``attention_mask`` and ``labels``, for a dataset with an empty ``type:``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from core.batch.plan import Plan
from core.batch.rows import Rows
from core.export.base import MERGE, Difference, Exporter, ExportSource, Progress, Sink, Written
from core.export.lines import longest_row, repeated, write_lines

IGNORE = -100


def _line(rows: Rows, i: int, at: slice) -> Mapping[str, Any]:
    ids = rows.ids[at]
    labels = np.where(rows.loss[at], ids, np.int32(IGNORE))
    return {"input_ids": ids, "attention_mask": np.ones(len(ids), dtype=np.int8), "labels": labels}


def write(plan: Plan, source: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Stream the lines."""
    return write_lines(plan, source, sink, settings, progress, _line)


def differences(plan: Plan, settings: Mapping[str, str]) -> Sequence[Difference]:
    """Its longest sequence, its last batch, and its loss over several processes.

    It sets transformers' ``average_tokens_across_devices`` to false, so each process divides by the tokens of its own.
    """
    flag = f"sequence_len: {longest_row(plan)}, excess_length_strategy: raise"
    cut = Difference("Axolotl drops rows that are longer than its sequence_len", flag)
    means = Difference(
        "In several processes Axolotl averages their mean losses: a token counts more where its process has few",
        "one process with gradient_accumulation_steps",
    )
    return (cut, repeated("Axolotl", "micro_batch_size"), means)


def load_command(name: str) -> str:
    """Loads the file with ``datasets``, as Axolotl does."""
    return (
        'python -c "from datasets import load_dataset; '
        f"print(load_dataset('json', data_files='{name}', split='train'))\""
        f"  # in Axolotl's YAML: datasets: [{{path: {name}, ds_type: json, type: }}]"
    )


EXPORTER = Exporter(
    name="axolotl",
    title="Axolotl (JSONL)",
    description="Tokenized lines with input_ids, attention_mask and labels for a dataset with an empty type",
    suffix=".jsonl",
    write=write,
    load_command=load_command,
    choices=MERGE,
    differences=differences,
)
