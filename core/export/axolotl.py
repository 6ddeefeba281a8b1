"""Exports to Axolotl: JSON lines with ``input_ids``, ``attention_mask`` and ``labels``; the dataset type is empty."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from core.batch.plan import Plan
from core.batch.rows import Rows
from core.export.base import MERGE, Difference, Exporter, ExportSource, Progress, Written
from core.export.codes import json_numbers
from core.export.lines import JsonList, Line, longest_row, repeated, write_lines
from core.export.prefixes import EncodedIds
from core.export.reading import IGNORE, Row, json_lines, labelled
from core.export.sampled import Coded, Repeated, Responses
from core.export.sink import Sink


def _lines(rows: Rows) -> Line:
    ids, responses = EncodedIds(rows, json_numbers), Responses(rows)
    sampled = np.where(rows.loss[responses.at], rows.ids[responses.at], np.int32(IGNORE))
    labels = Coded(*json_numbers(sampled), b"%d," % IGNORE)
    ones = Repeated(b"1,")
    lengths = rows.lengths.tolist()

    def line(i: int) -> Mapping[str, Any]:
        return {
            "input_ids": JsonList([ids.part(i)]),
            "attention_mask": JsonList([ones.times(lengths[i])]),
            "labels": JsonList(responses.pieces(i, labels)),
        }

    return line


def write(plan: Plan, source: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Write the file, line by line."""
    return write_lines(plan, source, sink, settings, progress, _lines)


def differences(plan: Plan, settings: Mapping[str, str]) -> Sequence[Difference]:
    """Differences in the longest sequence, the last batch, and the loss over several processes.

    Axolotl sets transformers' ``average_tokens_across_devices`` to false: each process divides by its number of tokens.
    """
    flag = f"sequence_len: {longest_row(plan)}, excess_length_strategy: raise"
    cut = Difference("Axolotl drops rows that are longer than its sequence_len", flag)
    means = Difference(
        "In several processes Axolotl averages their mean losses: a token counts more where its process has few",
        "one process with gradient_accumulation_steps",
    )
    return (cut, repeated("Axolotl", "micro_batch_size"), means)


def read(data: bytes, settings: Mapping[str, str]) -> Iterator[Row]:
    """The rows as Axolotl reads them."""
    return map(labelled, json_lines(data))


def load_command(name: str) -> str:
    """A command that loads the file with ``datasets``, as Axolotl does."""
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
    read=read,
    load_command=load_command,
    choices=MERGE,
    differences=differences,
    imitates=True,
    by_group=True,
)
