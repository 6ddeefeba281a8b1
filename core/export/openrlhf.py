"""Exports to OpenRLHF: results of agent executors, one JSON line per trajectory, and an executor that replays them.

A line has the fields that OpenRLHF's samples generator reads: ``observation_tokens`` (the whole row), ``action_ranges``
(sampled tokens, half open), ``rollout_log_probs`` (0 on context), ``reward``, ``scores``, ``prompt``, ``label``.
OpenRLHF computes advantages from the rewards of an equal number of rows per prompt. Groups of different sizes and
trajectories with several rows are therefore refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from core.batch.plan import Plan
from core.batch.rows import Rows
from core.errors import InvalidInput
from core.export.base import MERGE, Difference, Exporter, ExportSource, Progress, Written, loader
from core.export.codes import json_numbers
from core.export.lines import (
    ZERO,
    JsonList,
    Line,
    finish_reasons,
    logprobs_of,
    longest_row,
    loss_ranges,
    of_last_step,
    temperature_differences,
    write_lines,
)
from core.export.prefixes import EncodedIds
from core.export.reading import Row, json_lines, others, tokens
from core.export.sampled import Coded, Responses
from core.export.sink import Sink

ESTIMATORS = {"grpo": "group_norm", "rloo": "rloo", "dr_grpo": "dr_grpo"}
"""Algorithm -> OpenRLHF's estimator with the same advantages."""


def _refuse_uneven(plan: Plan) -> None:
    sizes = np.bincount(plan.trajectories["group"].to_numpy())
    if sizes.min() != sizes.max():
        raise InvalidInput(
            f"groups of {sizes.min()} to {sizes.max()} trajectories; OpenRLHF takes as many samples of every prompt",
            field="recipe.n_rollouts",
            hint="set n_rollouts in the recipe",
        )


def _refuse_broken(plan: Plan, rows: Rows) -> None:
    several = np.flatnonzero(np.bincount(rows.trajectory) > 1)
    if len(several):
        uid = plan.trajectories["trajectory_uid"][int(several[0])].as_py()
        raise InvalidInput(
            f"trajectory {uid} is several rows, and OpenRLHF compares the rewards of rows",
            field="options.merge",
            hint="merge by trajectory, and leave out what a compaction or fork breaks (a filter on transition)",
        )


def differences(plan: Plan, settings: Mapping[str, str]) -> Sequence[Difference]:
    """Differences in advantages, lengths and temperature."""
    longest = longest_row(plan)
    same = ESTIMATORS.get(plan.recipe.algorithm)
    flag = f"--algo.advantage.estimator {same}" if same else "recipe.algorithm: grpo, rloo or dr_grpo"
    return (
        Difference("OpenRLHF computes advantages itself, from the rewards in the file", flag),
        Difference("The executor refuses rows that are longer than OpenRLHF's longest", f"--data.max_len {longest}"),
        *temperature_differences(plan, "--rollout.temperature {}"),
    )


def write(plan: Plan, source: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Write the file, line by line. InvalidInput if OpenRLHF can't compare the rows."""
    _refuse_uneven(plan)

    def lines(rows: Rows) -> Line:
        _refuse_broken(plan, rows)
        ids, responses = EncodedIds(rows, json_numbers), Responses(rows)
        logprobs = Coded(*json_numbers(logprobs_of(rows, responses)), ZERO)
        ended = finish_reasons(plan, source, rows.last_step)
        prompts, owners, uids, rewards = (
            of_last_step(plan, rows, name) for name in ("prompt_uid", "trajectory_uid", "step_uid", "trajectory_reward")
        )
        slices = list(rows.slices())

        def line(i: int) -> Mapping[str, Any]:
            return {
                "prompt": prompts[i],
                "label": "",
                "observation_tokens": JsonList([ids.part(i)]),
                "action_ranges": loss_ranges(rows.loss[slices[i]]),
                "rollout_log_probs": JsonList(responses.pieces(i, logprobs)),
                "reward": rewards[i],
                "scores": rewards[i],
                "truncated": ended[i] == "length",
                "extra_logs": {},
                "trajectory_uid": owners[i],
                "step_uid": uids[i],
            }

        return line

    return write_lines(plan, source, sink, settings, progress, lines)


def read(data: bytes, settings: Mapping[str, str]) -> Iterator[Row]:
    """The rows as the executor returns them."""
    for row in json_lines(data):
        mask = np.zeros(len(row["observation_tokens"]), dtype=np.bool_)
        for begin, end in row["action_ranges"]:
            mask[begin:end] = True
        sequence = tokens(row["observation_tokens"], mask, logprobs=row["rollout_log_probs"])
        yield Row([sequence], fields=others(row, "observation_tokens", "action_ranges", "rollout_log_probs"))


def load_command(name: str) -> str:
    """A command that writes the file's prompts, and the program that is written with it."""
    return f"python openrlhf_replay.py {name} prompts.jsonl  # needs OpenRLHF; usage: head openrlhf_replay.py"


EXPORTER = Exporter(
    name="openrlhf",
    title="OpenRLHF replay (JSONL)",
    description="Rollouts as OpenRLHF's agent executors return them, and openrlhf_replay.py, the executor that replays",
    suffix=".jsonl",
    write=write,
    read=read,
    load_command=load_command,
    choices={"merge": tuple(reversed(MERGE["merge"]))},
    beside=loader("openrlhf_replay.py"),
    differences=differences,
)
