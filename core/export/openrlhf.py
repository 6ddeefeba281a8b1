"""OpenRLHF: what its agent executors return, one JSON line per row, and the executor that replays them.

Fields of a line are those that its samples generator reads: ``observation_tokens`` (the whole row), ``action_ranges``
(sampled tokens, half open), ``rollout_log_probs`` (0 on context), ``reward``, ``scores``, ``prompt``, ``label``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.batch.plan import Plan
from core.batch.rows import Rows
from core.export.base import MERGE, Exporter, ExportSource, Progress, Sink, Written, loader
from core.export.lines import logprobs_of, loss_ranges, write_lines


def write(plan: Plan, pool: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Stream the lines."""

    def line(rows: Rows, i: int, at: slice) -> Mapping[str, Any]:
        step = plan.steps.slice(int(rows.last_step[i]), 1).to_pylist()[0]
        return {
            "prompt": step["prompt_uid"],
            "label": "",
            "observation_tokens": rows.ids[at],
            "action_ranges": loss_ranges(rows.loss[at]),
            "rollout_log_probs": logprobs_of(rows, at),
            "reward": step["trajectory_reward"],
            "scores": step["trajectory_reward"],
            "truncated": False,
            "extra_logs": {},
            "trajectory_uid": step["trajectory_uid"],
            "step_uid": step["step_uid"],
        }

    return write_lines(plan, pool, sink, settings, progress, line)


def load_command(name: str) -> str:
    """Reads the file with the program beside it."""
    return f"python -c \"import openrlhf_replay; print(len(openrlhf_replay.Replay('{name}')))\""


EXPORTER = Exporter(
    name="openrlhf",
    title="OpenRLHF replay (JSONL)",
    description="Rollouts as OpenRLHF's agent executors return them, and openrlhf_replay.py, the executor that replays",
    suffix=".jsonl",
    write=write,
    load_command=load_command,
    choices={"merge": tuple(reversed(MERGE["merge"]))},
    beside=loader("openrlhf_replay.py"),
)
