"""TRL's GRPOTrainer: captured rollouts for ``rollout_func``, and the small program that replays them.

TRL computes advantages itself, from the rewards of a group; ours stand in the file beside them. A row is a trajectory
as far as its tokens are one sequence; ``completion_mask`` is 0 on what tools said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from core.batch.arrays import lists
from core.batch.plan import Plan
from core.batch.rows import Rows, training_rows
from core.export.base import MERGE, Exporter, ExportSource, Progress, Sink, Written, loader, merged
from core.export.parquet import write_row_groups
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
"""``logprobs``: log μ in nats, 0 where ``completion_mask`` is 0, null where unknown."""


def row_table(plan: Plan, rows: Rows) -> pa.Table:
    """Rows as ``SCHEMA``."""
    starts, n_completion = rows.offsets[:-1], rows.lengths - rows.n_prompt
    prompt, completion = ragged_index(starts, rows.n_prompt), ragged_index(starts + rows.n_prompt, n_completion)
    mask = rows.loss[completion]
    logprobs, advantages = (
        np.where(mask, values[completion], np.float32(0)) for values in (rows.logprobs, rows.advantages)
    )
    steps = plan.steps.take(pa.array(rows.last_step))
    columns = [
        steps["prompt_uid"],
        steps["trajectory_uid"],
        lists(rows.ids[prompt], rows.n_prompt, pa.int32()),
        lists(rows.ids[completion], n_completion, pa.int32()),
        lists(mask.astype(np.int8), n_completion, pa.int8()),
        lists(logprobs, n_completion, pa.float32()),
        lists(advantages, n_completion, pa.float32()),
        steps["trajectory_reward"],
    ]
    return pa.table(columns, schema=SCHEMA)


def _groups(plan: Plan, pool: ExportSource, merge: bool) -> Iterator[tuple[int, pa.Table, Written]]:
    for rows in training_rows(plan, pool, merge=merge):
        yield rows.done, row_table(plan, rows), Written(len(rows), len(rows.ids), int(rows.loss.sum()))


def write(plan: Plan, pool: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Stream the rows."""
    return write_row_groups(sink, SCHEMA, _groups(plan, pool, merged(settings)), len(plan.steps), progress)


def load_command(name: str) -> str:
    """Reads the file with the program beside it."""
    return f"python -c \"import trl_replay; print(trl_replay.Replay('{name}').prompts())\"  # usage: head trl_replay.py"


EXPORTER = Exporter(
    name="trl_grpo",
    title="TRL GRPO replay",
    description="Captured rollouts, and trl_replay.py that hands them to GRPOTrainer in place of generating",
    suffix=".parquet",
    write=write,
    load_command=load_command,
    choices={"merge": tuple(reversed(MERGE["merge"]))},
    beside=loader("trl_replay.py"),
)
