"""slime: samples for ``--load-debug-rollout-data path_{rollout_id}.pt``, in place of generating.

Rows of one trajectory share ``rollout_id``, so slime's loss reducer counts the trajectory once. Unknown log-probs are
left out for the whole file: slime takes them from all samples or from none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from core.batch.plan import Plan
from core.batch.rows import Rows, training_rows
from core.export.base import MERGE, Exporter, ExportSource, Progress, Sink, Written, merged
from core.export.padded import row_rewards

STATUS = {"length": "truncated"}
"""Finish reason -> slime's status; any other is ``completed``."""


def _samples(plan: Plan, rows: Rows, first_index: int, finish: Mapping[str, str | None]) -> Iterator[dict[str, Any]]:
    versions = plan.steps["policy_version"].to_pylist()
    uids = plan.step_uids
    rewards = row_rewards(plan, rows.last_step).tolist()
    for i, at in enumerate(rows.slices()):
        n_prompt, step = int(rows.n_prompt[i]), int(rows.last_step[i])
        ids, loss = rows.ids[at], rows.loss[at][n_prompt:]
        scores = np.where(loss, rows.logprobs[at][n_prompt:], 0.0)
        version = versions[step]
        yield {
            "group_index": int(rows.group[i]),
            "index": first_index + i,
            "rollout_id": int(rows.trajectory[i]),
            "prompt": "",
            "tokens": ids.tolist(),
            "response": "",
            "response_length": len(loss),
            "label": None,
            "reward": rewards[i],
            "loss_mask": loss.astype(np.int64).tolist(),
            "weight_versions": [] if version is None else [str(version)],
            "rollout_log_probs": None if np.isnan(scores).any() else scores.tolist(),
            "status": STATUS.get(finish.get(uids[step]) or "", "completed"),
            "metadata": {"step_uid": uids[step]},
        }


def write(plan: Plan, pool: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Collect all samples; the format is one pickled list."""
    import torch

    samples: list[dict[str, Any]] = []
    n_tokens = n_loss = 0
    for rows in training_rows(plan, pool, merge=merged(settings)):
        low, high = int(rows.first_step.min()), rows.done
        uids = dict.fromkeys(plan.steps["trajectory_uid"].slice(low, high - low).to_pylist())
        finish = {
            step["step_uid"]: step["finish_reason"]
            for uid in uids
            for step in pool.trajectory(uid, tokens=False)["steps"]
        }
        samples += _samples(plan, rows, len(samples), finish)
        n_tokens, n_loss = n_tokens + len(rows.ids), n_loss + int(rows.loss.sum())
        progress(rows.done, len(plan.steps))
    if any(sample["rollout_log_probs"] is None for sample in samples):
        samples = [{**sample, "rollout_log_probs": None} for sample in samples]
    torch.save({"rollout_id": 0, "samples": samples}, sink)
    return Written(len(samples), n_tokens, n_loss)


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
    choices=MERGE,
)
