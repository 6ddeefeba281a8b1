"""AReaL: a list of tensor dicts ``[1, L]``, as its workflows return them.

``input_ids, loss_mask, versions, turn_ids`` int32, ``attention_mask`` bool, ``logprobs`` float32 (0 on context),
``rewards`` float32 ``[1]``. Versions are -1 on context, as AReaL's own workflows write them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from core.batch.plan import Plan
from core.batch.rows import training_rows
from core.errors import InvalidInput
from core.export.base import MERGE, Exporter, ExportSource, Progress, Sink, Written, merged
from core.export.lines import logprobs_of, loss_ranges, of_last_step
from core.export.padded import row_rewards


def write(plan: Plan, pool: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Collect all rows; the format is one pickled list."""
    import torch

    found: list[dict[str, Any]] = []
    n_tokens = n_loss = 0
    for rows in training_rows(plan, pool, merge=merged(settings)):
        rewards = row_rewards(plan, rows.last_step)
        versions = of_last_step(plan, rows, "policy_version")
        if None in versions:
            raise InvalidInput(
                "a step's policy version is unknown, and AReaL needs it", field="recipe.max_staleness",
                hint="set max_staleness: it leaves unknown versions out",
            )  # fmt: skip
        for i, at in enumerate(rows.slices()):
            loss = rows.loss[at]
            turns = np.zeros(len(loss), dtype=np.int32)
            for turn, (begin, end) in enumerate(loss_ranges(loss)):
                turns[begin:end] = turn
            row = {
                "input_ids": rows.ids[at],
                "loss_mask": loss.astype(np.int32),
                "logprobs": logprobs_of(rows, at),
                "versions": np.where(loss, np.int32(versions[i]), np.int32(-1)),
                "turn_ids": turns,
                "attention_mask": np.ones(len(loss), dtype=np.bool_),
            }
            tensors = {name: torch.from_numpy(values.copy()).unsqueeze(0) for name, values in row.items()}
            found.append({**tensors, "rewards": torch.tensor([float(rewards[i])], dtype=torch.float32)})
        n_tokens, n_loss = n_tokens + len(rows.ids), n_loss + int(rows.loss.sum())
        progress(rows.done, len(plan.steps))
    torch.save(found, sink)
    return Written(len(found), n_tokens, n_loss)


def load_command(name: str) -> str:
    """Loads the file with torch, without running anything in it."""
    return f"python -c \"import torch; print(len(torch.load('{name}', weights_only=True)))\""


EXPORTER = Exporter(
    name="areal",
    title="AReaL trajectories (.pt)",
    description="Tensor dicts of shape [1, L] of AReaL's workflows: ids, loss mask, log-probs, versions, turns",
    suffix=".pt",
    write=write,
    load_command=load_command,
    choices={"merge": tuple(reversed(MERGE["merge"]))},
)
