"""Exports to prime-rl: micro-batches for its file transport, ``{output_dir}/rollouts/step_{n}/rank_0.bin``.

Rows are packed next-fit under the recipe's token budget; a longer row is a separate micro-batch. Each micro-batch is a
msgpack array in the order of prime-rl's ``MicroBatch`` fields. Temperatures are per token, from the captured requests.
prime-rl divides logits by them, so steps sampled at 0 or at an unknown temperature are refused.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.batch.plan import Plan
from core.batch.rows import Rows, training_rows
from core.errors import InvalidInput
from core.export.base import MERGE, Exporter, ExportSource, Progress, Sink, Written, merged
from core.export.lines import UNPREDICTED, advantages_of, logprobs_of, n_unpredicted, temperatures_of
from core.tree.sequences import ragged_index

ENV = "claw-studio"
COPY_BYTES = 1 << 20


class _MicroBatch:
    """Rows packed into one micro-batch."""

    def __init__(self) -> None:
        self.fields: tuple[list[Any], ...] = tuple([] for _ in range(9))

    def __len__(self) -> int:
        return len(self.fields[0])

    def add(self, rows: Rows, at: slice, temperatures: NDArray[np.float64]) -> None:
        n = at.stop - at.start
        columns = (
            rows.ids[at].tolist(),
            _predicted(rows.loss[at]).tolist(),
            advantages_of(rows, at).tolist(),
            logprobs_of(rows, at).tolist(),
            list(range(n)),
            [n],
            temperatures.tolist(),
            [ENV] * n,
            [n],
        )
        for mine, values in zip(self.fields, columns, strict=True):
            mine.extend(values)


def _predicted(loss: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The mask without a row's first token, which no position predicts."""
    mask = loss.copy()
    mask[:1] = False
    return mask


def _checked_temperatures(plan: Plan) -> NDArray[np.float64]:
    """Temperature of each step of the plan, float64 [n]. InvalidInput if one is unknown or 0."""
    values = temperatures_of(plan)
    for wrong, what in ((np.isnan(values), "at an unknown one"), (values <= 0, "greedily, at temperature 0")):
        if wrong.any():
            first = plan.step_uids[int(np.argmax(wrong))]
            raise InvalidInput(
                f"prime-rl divides logits by the temperature; {int(wrong.sum())} steps were sampled {what}: {first}",
                field="recipe.temperature",
                hint="name a temperature in the recipe: others are left out",
            )
    return values


def _token_temperatures(rows: Rows, of_step: NDArray[np.float64]) -> NDArray[np.float64]:
    """Temperature of each token, float64 [m]; context tokens have that of the next sampled token."""
    values = np.full(len(rows.ids), np.nan)
    values[ragged_index(rows.begins, rows.n_response)] = np.repeat(of_step[rows.steps], rows.n_response)
    known = np.flatnonzero(~np.isnan(values))
    following = np.minimum(np.searchsorted(known, np.arange(len(values))), len(known) - 1)
    filled: NDArray[np.float64] = values[known[following]]
    return filled


def write(plan: Plan, source: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Write the micro-batches to a temporary file, then their number and their bytes to the sink."""
    import msgspec

    encode = msgspec.msgpack.encode
    budget, of_step = plan.recipe.token_budget, _checked_temperatures(plan)
    n_rows = n_tokens = n_loss = n_batches = n_first = 0
    with tempfile.TemporaryFile() as spool:
        open_batch = _MicroBatch()
        for rows in training_rows(plan, source, merge=merged(settings)):
            temperatures = _token_temperatures(rows, of_step)
            for at in rows.slices():
                if len(open_batch) and len(open_batch) + (at.stop - at.start) > budget:
                    spool.write(encode(open_batch.fields))
                    n_batches, open_batch = n_batches + 1, _MicroBatch()
                open_batch.add(rows, at, temperatures[at])
            n_rows, n_tokens, n_loss = n_rows + len(rows), n_tokens + len(rows.ids), n_loss + int(rows.loss.sum())
            n_first += n_unpredicted(rows)
            progress(rows.done, len(plan.steps))
        spool.write(encode(open_batch.fields))
        # A msgpack array starts with its length.
        sink.write(struct.pack(">BI", 0xDD, n_batches + 1))
        spool.seek(0)
        while piece := spool.read(COPY_BYTES):
            sink.write(piece)
    return Written(n_rows, n_tokens, n_loss - n_first, (UNPREDICTED,) if n_first else ())


def load_command(name: str) -> str:
    """A command that reads the file with msgspec."""
    return f"python -c \"import msgspec; print(len(msgspec.msgpack.decode(open('{name}', 'rb').read())))\""


EXPORTER = Exporter(
    name="prime_rl",
    title="prime-rl micro-batches (.bin)",
    description="Packed micro-batches for the file transport, rollouts/step_N/rank_0.bin",
    suffix=".bin",
    write=write,
    load_command=load_command,
    choices={"merge": tuple(reversed(MERGE["merge"]))},
)
