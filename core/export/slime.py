"""slime: samples for ``--load-debug-rollout-data path_{rollout_id}.pt``, in place of generating.

Rows of one trajectory share ``rollout_id``, so slime's loss reducer counts the trajectory once. Unknown log-probs are
left out for the whole file: slime takes them from all samples or from none. ``weight_versions`` are those of a row's
steps, in order.

slime normalises rewards over fixed groups, and over the whole batch where groups differ in size. With ``credit=plan``
``reward`` is ``{"advantage": ..., "reward": ...}``, which slime reads under ``--reward-key advantage`` and refuses
without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from core.batch.plan import Plan
from core.batch.rows import Rows, training_rows
from core.export.base import MERGE, Difference, Exporter, ExportSource, Progress, Sink, Written, merged
from core.export.recompute import (
    CREDIT,
    bare_rows,
    counts_of,
    one_temperature,
    rows_rewards,
    unknown_logprobs,
    uses_planned_credit,
    with_context,
)  # fmt: skip

STATUS = {"length": "truncated"}
"""Finish reason -> slime's status; any other is ``completed``."""


PLANNED = "--reward-key advantage --disable-rewards-normalization --advantage-estimator grpo"


def _samples(
    plan: Plan, rows: Rows, first_index: int, finish: Mapping[str, str | None], settings: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    versions = plan.steps["policy_version"].to_pylist()
    uids = plan.step_uids
    values = rows_rewards(plan, rows, settings).tolist()
    scores_of = plan.steps["trajectory_reward"].to_pylist()
    owner = rows.row_of_step
    for i, at in enumerate(rows.slices()):
        n_prompt, step = int(rows.n_prompt[i]), int(rows.last_step[i])
        ids, loss = rows.ids[at], rows.loss[at][n_prompt:]
        scores = np.where(loss, rows.logprobs[at][n_prompt:], 0.0)
        sampled_by = [versions[place] for place in rows.steps[owner == i].tolist()]
        planned = {"advantage": values[i], "reward": scores_of[step]}
        yield {
            "group_index": int(rows.group[i]),
            "index": first_index + i,
            "rollout_id": int(rows.trajectory[i]),
            "prompt": "",
            "tokens": ids.tolist(),
            "response": "",
            "response_length": len(loss),
            "label": None,
            "reward": planned if uses_planned_credit(settings) else values[i],
            "loss_mask": loss.astype(np.int64).tolist(),
            "weight_versions": [str(version) for version in sampled_by if version is not None],
            "rollout_log_probs": None if np.isnan(scores).any() else scores.tolist(),
            "status": STATUS.get(finish.get(uids[step]) or "", "completed"),
            "metadata": {"step_uid": uids[step], "raw_reward": scores_of[step]},
        }


def differences(plan: Plan, settings: Mapping[str, str]) -> list[Difference]:
    """What slime makes of it otherwise than the plan."""
    n = len(plan.trajectories)
    whole = Difference(
        "slime updates once for each global-batch-size of trajectories, and drops those that are over",
        f"--global-batch-size {n} --use-dynamic-batch-size",
    )
    common = [whole, *bare_rows(plan), *one_temperature(plan, "--rollout-temperature")]
    if uses_planned_credit(settings):
        what = (
            "slime refuses the file unless it is told where the plan's advantages stand, and to leave them as they are"
        )
        return [Difference(what, PLANNED), *common]
    sizes = counts_of(plan)
    if not sizes["uniform"]:
        common.append(
            Difference("groups differ in size, so slime normalises rewards over the whole batch", "credit=plan")
        )
    several = "slime counts a row as a sample: a trajectory of several rows votes that often in its group"
    return [*common, Difference(several, "credit=plan, or merge=trajectory where it gives one row each")]


def write(plan: Plan, source: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Collect all samples; the format is one pickled list."""
    import torch

    samples: list[dict[str, Any]] = []
    n_tokens = n_loss = 0
    unknown: list[Rows] = []
    for part in training_rows(plan, source, merge=merged(settings)):
        rows = with_context(part)
        if np.isnan(rows.logprobs[rows.loss]).any():
            unknown.append(rows)
        low, high = int(rows.first_step.min()), rows.done
        uids = dict.fromkeys(plan.steps["trajectory_uid"].slice(low, high - low).to_pylist())
        finish = {
            step["step_uid"]: step["finish_reason"]
            for uid in uids
            for step in source.trajectory(uid, tokens=False)["steps"]
        }
        samples += _samples(plan, rows, len(samples), finish, settings)
        n_tokens, n_loss = n_tokens + len(rows.ids), n_loss + int(rows.loss.sum())
        progress(rows.done, len(plan.steps))
    if any(sample["rollout_log_probs"] is None for sample in samples):
        samples = [{**sample, "rollout_log_probs": None} for sample in samples]
    torch.save({"rollout_id": 0, "samples": samples}, sink)
    why = "slime's off-policy correction has nothing to go by (--use-tis must be off)"
    return Written(len(samples), n_tokens, n_loss, unknown_logprobs(unknown, why))


def load_command(name: str) -> str:
    """Loads the file as slime does."""
    return (
        f"python -c \"import torch; print(len(torch.load('{name}', weights_only=False)['samples']))\""
        "  # then train.py --load-debug-rollout-data PATH_{rollout_id}.pt; a pickle: open only files you made"
    )


EXPORTER = Exporter(
    name="slime",
    title="slime rollout (.pt)",
    description="Samples for --load-debug-rollout-data: tokens, loss masks, rollout log-probs, rewards; rows of one "
    "trajectory share rollout_id. A pickle: open only files that you made",
    suffix=".pt",
    write=write,
    load_command=load_command,
    choices={**MERGE, **CREDIT},
    differences=differences,
)
