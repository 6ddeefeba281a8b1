"""Tinker: datums shifted to next-token form, one JSON line each, and the small program that builds them.

For a row of L tokens, ``input_tokens`` are its first L - 1; ``target_tokens``, ``logprobs``, ``advantages`` and
``mask`` its last L - 1, as ``tinker_cookbook`` lays out trajectories.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from core.batch.plan import Plan
from core.batch.rows import Rows
from core.export.base import MERGE, Exporter, ExportSource, Progress, Sink, Written, loader
from core.export.lines import advantages_of, logprobs_of, write_lines


def _line(rows: Rows, i: int, at: slice) -> Mapping[str, Any]:
    ids = rows.ids[at]
    return {
        "input_tokens": ids[:-1],
        "target_tokens": ids[1:],
        "logprobs": logprobs_of(rows, at)[1:],
        "advantages": advantages_of(rows, at)[1:],
        "mask": rows.loss[at][1:].astype(np.float32),
    }


def write(plan: Plan, source: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Stream the lines."""
    return write_lines(plan, source, sink, settings, progress, _line)


def load_command(name: str) -> str:
    """Builds the datums with the program beside the file."""
    return f"python -c \"import tinker_datums; print(sum(1 for _ in tinker_datums.datums('{name}')))\"  # needs tinker"


EXPORTER = Exporter(
    name="tinker",
    title="Tinker datums (JSONL)",
    description="Input, targets, log-probs, advantages and mask per row, and tinker_datums.py, which builds the datums",
    suffix=".jsonl",
    write=write,
    load_command=load_command,
    choices={"merge": tuple(reversed(MERGE["merge"]))},
    beside=loader("tinker_datums.py"),
)
