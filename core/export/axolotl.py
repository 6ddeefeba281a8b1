"""Axolotl: JSON lines of ``input_ids``, ``attention_mask`` and ``labels``, for a dataset with an empty ``type:``."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import orjson

from core.batch.plan import Plan
from core.batch.rows import training_rows
from core.export.base import MERGE, Exporter, ExportSource, Progress, Sink, Written, merged

IGNORE = -100


def write(plan: Plan, pool: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Stream the lines."""
    n_rows = n_tokens = n_loss = 0
    for rows in training_rows(plan, pool, merge=merged(settings)):
        labels = np.where(rows.loss, rows.ids, np.int32(IGNORE))
        ones = np.ones(int(rows.lengths.max()), dtype=np.int8)
        for at in rows.slices():
            line = {"input_ids": rows.ids[at], "attention_mask": ones[: at.stop - at.start], "labels": labels[at]}
            sink.write(orjson.dumps(line, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE))
        n_rows, n_tokens, n_loss = n_rows + len(rows), n_tokens + len(rows.ids), n_loss + int(rows.loss.sum())
        progress(rows.done, len(plan.steps))
    return Written(n_rows, n_tokens, n_loss)


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
)
