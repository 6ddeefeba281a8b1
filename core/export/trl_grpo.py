"""Exports to TRL's GRPOTrainer: captured rollouts with the plan's advantages, and a small program that replays them.

A row has the steps of a trajectory whose tokens form one sequence; ``completion_mask`` is 0 on tool results.
``trl_replay.ReplayTrainer`` passes advantages and old log-probs to TRL's loss. Groups may therefore have any size, a
trajectory may have several rows, and advantages may differ by step or token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from core.batch.arrays import list_column
from core.batch.plan import Plan
from core.batch.rows import Rows, training_rows
from core.errors import InvalidInput
from core.export.base import MERGE, Difference, Exporter, ExportSource, Progress, Written, loader, merged
from core.export.lines import UNPREDICTED, n_unpredicted, temperature_differences
from core.export.parquet import write_row_groups
from core.export.reading import Row, parquet_rows, tokens
from core.export.sink import Sink
from core.tree.sequences import ragged_index

SCHEMA = pa.schema(
    {
        "prompt_uid": pa.string(),
        "trajectory_uid": pa.string(),
        "prompt_ids": pa.list_(pa.int32()),
        "completion_ids": pa.list_(pa.int32()),
        "completion_mask": pa.list_(pa.int8()),
        "logprobs": pa.list_(pa.float32()),
        "advantages": pa.list_(pa.float32()),
        "reward": pa.float64(),
    }
)
"""``logprobs``: log μ in nats, 0 where ``completion_mask`` is 0, null if unknown. In a row without a prompt, the first
sampled token is in ``prompt_ids``, because no position predicts it."""


def row_table(plan: Plan, rows: Rows) -> pa.Table:
    """Convert rows to a table with ``SCHEMA``. InvalidInput if a row has one token, or an advantage is unassigned."""
    starts, n_prompt = rows.offsets[:-1], np.maximum(rows.n_prompt, 1)
    n_completion = rows.lengths - n_prompt
    if not n_completion.all():
        uid = plan.step_uids[int(rows.last_step[int(np.argmin(n_completion))])]
        raise InvalidInput(f"step {uid} is a single token without a prompt: nothing predicts it", field="view")
    prompt, completion = ragged_index(starts, n_prompt), ragged_index(starts + n_prompt, n_completion)
    mask = rows.loss[completion]
    logprobs, advantages = (
        np.where(mask, values[completion], np.float32(0)) for values in (rows.logprobs, rows.advantages)
    )
    if np.isnan(advantages).any():
        raise InvalidInput(
            "advantages of a step are unknown, and GRPO needs them",
            field="recipe.algorithm",
            hint="choose an algorithm that assigns them",
        )
    steps = plan.steps.take(pa.array(rows.last_step))
    columns = [
        steps["prompt_uid"],
        steps["trajectory_uid"],
        list_column(rows.ids[prompt], n_prompt, pa.int32()),
        list_column(rows.ids[completion], n_completion, pa.int32()),
        list_column(mask.astype(np.int8), n_completion, pa.int8()),
        list_column(logprobs, n_completion, pa.float32()),
        list_column(advantages, n_completion, pa.float32()),
        steps["trajectory_reward"],
    ]
    return pa.table(columns, schema=SCHEMA)


def _groups(plan: Plan, source: ExportSource, merge: bool) -> Iterator[tuple[int, pa.Table, Written]]:
    for rows in training_rows(plan, source, merge=merge):
        n_first = n_unpredicted(rows)
        n_unknown = int(np.isnan(rows.logprobs[rows.loss]).sum())
        n_loss = int(rows.loss.sum()) - n_first
        yield (
            rows.done,
            row_table(plan, rows),
            Written(len(rows), len(rows.ids), n_loss, tuple(_row_differences(n_first, n_unknown))),
        )


def _row_differences(n_first: int, n_unknown: int) -> Iterator[Difference]:
    if n_first:
        yield UNPREDICTED
    if n_unknown:
        yield Difference(
            "Log-probs of some tokens are unknown, so TRL takes the policy's own for the whole file: each ratio is 1"
        )


def differences(plan: Plan, settings: Mapping[str, str]) -> Sequence[Difference]:
    """Differences in advantages and temperature, and rows that fill a batch."""
    return (
        Difference("TRL's GRPOTrainer computes advantages from rewards", "trl_replay.ReplayTrainer"),
        Difference(
            "Rows without loss fill up the last generation batch; losses that average over rows count them",
            "GRPOConfig(loss_type='dapo'), TRL's default",
        ),
        *temperature_differences(plan, "GRPOConfig(temperature={})"),
    )


def write(plan: Plan, source: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Write the file, row group by row group."""
    return write_row_groups(sink, SCHEMA, _groups(plan, source, merged(settings)), len(plan.steps), progress)


def read(data: bytes, settings: Mapping[str, str]) -> Iterator[Row]:
    """The rows as the replay program reads them."""
    for row in parquet_rows(data):
        before = [0] * len(row["prompt_ids"])
        sequence = tokens(
            row["prompt_ids"] + row["completion_ids"],
            before + row["completion_mask"],
            before + row["advantages"],
            None if None in row["logprobs"] else before + row["logprobs"],
        )
        yield Row([sequence], fields={name: row[name] for name in ("prompt_uid", "trajectory_uid", "reward")})


def load_command(name: str) -> str:
    """A command that reads the file with the program that is written with it."""
    return f"python -c \"import trl_replay; print(trl_replay.Replay('{name}').prompts())\"  # usage: head trl_replay.py"


EXPORTER = Exporter(
    name="trl_grpo",
    title="TRL GRPO replay",
    description="Captured rollouts with their advantages, and trl_replay.py: its ReplayTrainer is TRL's GRPOTrainer on "
    "them in place of generating, in any number of processes",
    suffix=".parquet",
    write=write,
    read=read,
    load_command=load_command,
    choices={"merge": tuple(reversed(MERGE["merge"]))},
    beside=loader("trl_replay.py"),
    differences=differences,
    by_group=True,
)
