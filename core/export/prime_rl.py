"""prime-rl: micro-batches for its file transport, ``{output_dir}/rollouts/step_{n}/rank_0.bin``.

Rows are packed next-fit under the recipe's token budget; a row that is longer stands alone. Each micro-batch is a
msgpack array in the order of prime-rl's ``MicroBatch`` fields. Temperatures are those of the captured requests.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Mapping
from typing import Any

from core.batch.plan import Plan
from core.batch.rows import Rows, training_rows
from core.export.base import MERGE, Exporter, ExportSource, Progress, Sink, Written, merged
from core.export.lines import advantages_of, logprobs_of

DEFAULT_TEMPERATURE = 1.0
"""What OpenAI's API samples with where a request says nothing."""
ENV = "claw-studio"
COPY_BYTES = 1 << 20


class _MicroBatch:
    """Rows packed into one micro-batch."""

    def __init__(self) -> None:
        self.fields: tuple[list[Any], ...] = tuple([] for _ in range(9))

    def __len__(self) -> int:
        return len(self.fields[0])

    def add(self, rows: Rows, at: slice, temperature: float) -> None:
        n = at.stop - at.start
        columns = (
            rows.ids[at].tolist(),
            rows.loss[at].tolist(),
            advantages_of(rows, at).tolist(),
            logprobs_of(rows, at).tolist(),
            list(range(n)),
            [n],
            [temperature] * n,
            [ENV] * n,
            [n],
        )
        for mine, values in zip(self.fields, columns, strict=True):
            mine.extend(values)


def _temperatures(plan: Plan, pool: ExportSource, rows: Rows) -> list[float]:
    uids = [plan.step_uids[i] for i in rows.last_step.tolist()]
    first = int(rows.first_step.min())
    owners = dict.fromkeys(plan.steps["trajectory_uid"].slice(first, rows.done - first).to_pylist())
    told: dict[str, Any] = {}
    for owner in owners:
        for step in pool.trajectory(owner)["steps"]:
            told[step["step_uid"]] = (step["sampling"] or {}).get("temperature")
    return [DEFAULT_TEMPERATURE if told[uid] is None else float(told[uid]) for uid in uids]


def write(plan: Plan, pool: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Spool the micro-batches, then write their number and them."""
    import msgspec

    encode = msgspec.msgpack.encode
    budget = plan.recipe.token_budget
    n_rows = n_tokens = n_loss = n_batches = 0
    with tempfile.TemporaryFile() as spool:
        open_batch = _MicroBatch()
        for rows in training_rows(plan, pool, merge=merged(settings)):
            temperatures = _temperatures(plan, pool, rows)
            for i, at in enumerate(rows.slices()):
                if len(open_batch) and len(open_batch) + (at.stop - at.start) > budget:
                    spool.write(encode(open_batch.fields))
                    n_batches, open_batch = n_batches + 1, _MicroBatch()
                open_batch.add(rows, at, temperatures[i])
            n_rows, n_tokens, n_loss = n_rows + len(rows), n_tokens + len(rows.ids), n_loss + int(rows.loss.sum())
            progress(rows.done, len(plan.steps))
        spool.write(encode(open_batch.fields))
        # A msgpack array tells its length first.
        sink.write(struct.pack(">BI", 0xDD, n_batches + 1))
        spool.seek(0)
        while piece := spool.read(COPY_BYTES):
            sink.write(piece)
    return Written(n_rows, n_tokens, n_loss)


def load_command(name: str) -> str:
    """Reads the file with msgspec."""
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
