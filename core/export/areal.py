"""AReaL: a list of tensor dicts ``[1, L]``, as its workflows return them.

``input_ids, loss_mask, versions, turn_ids`` int32, ``attention_mask`` bool, ``logprobs`` float32 (0 on context),
``rewards`` float32 ``[1]``. Versions are those of the step that sampled each token, -1 on context, as AReaL's own
workflows write them.

AReaL normalises rewards over groups of a fixed number of rows. With ``credit=plan`` ``rewards`` are the plan's
advantages, which AReaL passes on to each sampled token under the settings that the manifest names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from core.batch.plan import Plan
from core.batch.rows import training_rows
from core.errors import InvalidInput
from core.export.base import MERGE, Difference, Exporter, ExportSource, Progress, Sink, Written, merged
from core.export.lines import logprobs_of, loss_ranges
from core.export.recompute import (
    CREDIT,
    bare_rows,
    counts_of,
    one_temperature,
    rows_rewards,
    uses_planned_credit,
    with_context,
)  # fmt: skip


def write(plan: Plan, source: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Collect all rows; the format is one pickled list."""
    import torch

    samples: list[dict[str, Any]] = []
    n_tokens = n_loss = 0
    for part in training_rows(plan, source, merge=merged(settings)):
        rows = with_context(part)
        rewards = rows_rewards(plan, rows, settings)
        if plan.steps["policy_version"].null_count:
            raise InvalidInput(
                "a step's policy version is unknown, and AReaL needs it", field="recipe.max_staleness",
                hint="set max_staleness: it leaves unknown versions out",
            )  # fmt: skip
        versions = rows.by_token(plan.steps["policy_version"].to_numpy().astype(np.int32), -1)
        for i, at in enumerate(rows.slices()):
            loss = rows.loss[at]
            turns = np.zeros(len(loss), dtype=np.int32)
            for turn, (begin, end) in enumerate(loss_ranges(loss)):
                turns[begin:end] = turn
            row = {
                "input_ids": rows.ids[at],
                "loss_mask": loss.astype(np.int32),
                "logprobs": logprobs_of(rows, at),
                "versions": np.where(loss, versions[at], np.int32(-1)),
                "turn_ids": turns,
                "attention_mask": np.ones(len(loss), dtype=np.bool_),
            }
            tensors = {name: torch.from_numpy(values.copy()).unsqueeze(0) for name, values in row.items()}
            samples.append({**tensors, "rewards": torch.tensor([float(rewards[i])], dtype=torch.float32)})
        n_tokens, n_loss = n_tokens + len(rows.ids), n_loss + int(rows.loss.sum())
        progress(rows.done, len(plan.steps))
    torch.save(samples, sink)
    what = f"AReaL deals {len(samples)} rows to its ranks in equal numbers, and refuses where that leaves a rest"
    differences = (Difference(what, f"as many data-parallel ranks as divide {len(samples)}"),)
    return Written(len(samples), n_tokens, n_loss, differences)


PLANNED = (
    "actor.reward_norm=null actor.adv_norm=null actor.reward_bias=0 actor.reward_scaling=1 actor.reward_clip=1e9 "
    "actor.kl_ctl=0 actor.discount=1 actor.gae_lambda=1 actor.mask_no_eos_with_zero=false "
    "actor.overlong_reward_penalty=false actor.ppo_n_minibatches=1"
)


def differences(plan: Plan, settings: Mapping[str, str]) -> list[Difference]:
    """What AReaL makes of it otherwise than the plan."""
    common = [*bare_rows(plan), *one_temperature(plan, "gconfig.temperature")]
    if uses_planned_credit(settings):
        return [
            Difference(
                "AReaL scales, clips and normalises what it is given, and updates four times, unless it is told not to",
                PLANNED,
            ),
            *common,
        ]
    sizes = counts_of(plan)["sizes"]
    what = f"AReaL's groups are group_size rows, one after another; the plan's have {sorted(set(sizes))} trajectories"
    return [*common, Difference(what, "credit=plan")]


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
    choices={"merge": tuple(reversed(MERGE["merge"])), **CREDIT},
    differences=differences,
)
