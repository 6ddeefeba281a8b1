"""Exports to Tinker: datums in next-token form, one JSON line each, and a small program that builds them.

For a row of L tokens, ``input_tokens`` are its first L - 1; ``target_tokens``, ``logprobs``, ``advantages`` and
``mask`` its last L - 1, as ``tinker_cookbook`` lays out trajectories.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from core.batch.plan import Plan
from core.batch.rows import Rows
from core.export.base import MERGE, Exporter, ExportSource, Progress, Written, loader
from core.export.codes import json_numbers
from core.export.lines import ZERO, JsonList, Line, advantages_of, logprobs_of, write_lines
from core.export.prefixes import EncodedIds
from core.export.reading import Row, json_lines, tokens
from core.export.sampled import Coded, Responses
from core.export.sink import Sink


def _lines(rows: Rows) -> Line:
    ids, responses = EncodedIds(rows, json_numbers), Responses(rows)
    mask = rows.loss[responses.at].astype(np.float32)
    logprobs, advantages, mask_coded = (
        Coded(*json_numbers(values), ZERO)
        for values in (logprobs_of(rows, responses), advantages_of(rows, responses), mask)
    )
    lengths = rows.lengths.tolist()

    def line(i: int) -> Mapping[str, Any]:
        n = lengths[i]
        return {
            "input_tokens": JsonList([ids.part(i, 0, n - 1)] if n > 1 else []),
            "target_tokens": JsonList([ids.part(i, 1)] if n > 1 else []),
            "logprobs": JsonList(responses.pieces(i, logprobs, 1)),
            "advantages": JsonList(responses.pieces(i, advantages, 1)),
            "mask": JsonList(responses.pieces(i, mask_coded, 1)),
        }

    return line


def write(plan: Plan, source: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Write the file, line by line."""
    return write_lines(plan, source, sink, settings, progress, _lines)


def read(data: bytes, settings: Mapping[str, str]) -> Iterator[Row]:
    """The rows before the shift: the first token is no target."""
    for row in json_lines(data):
        ids = row["input_tokens"][:1] + row["target_tokens"]
        advantages, logprobs = ([0.0, *row[name]][: len(ids)] for name in ("advantages", "logprobs"))
        yield Row([tokens(ids, [0.0, *row["mask"]][: len(ids)], advantages, logprobs)])


def load_command(name: str) -> str:
    """A command that builds the datums with the program that is written with the file."""
    return f"python -c \"import tinker_datums; print(sum(1 for _ in tinker_datums.datums('{name}')))\"  # needs tinker"


EXPORTER = Exporter(
    name="tinker",
    title="Tinker datums (JSONL)",
    description="Input, targets, log-probs, advantages and mask per row, and tinker_datums.py, which builds the datums",
    suffix=".jsonl",
    write=write,
    read=read,
    load_command=load_command,
    choices={"merge": tuple(reversed(MERGE["merge"]))},
    beside=loader("tinker_datums.py"),
    by_group=True,
)
