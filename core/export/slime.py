"""Exports to slime: samples for ``--load-debug-rollout-data path_{rollout_id}.pt``, used instead of generating.

Rows of one trajectory have the same ``rollout_id``, so slime's loss reducer counts the trajectory once. If any
log-probs are unknown, the file has none: slime needs them for all samples or for none. ``weight_versions`` are those of
a row's steps, in order.

slime normalises rewards over groups of a fixed size, or over the whole batch if groups differ in size. With
``credit=plan``, ``reward`` is ``{"advantage": ..., "reward": ...}``: slime reads it with ``--reward-key advantage`` and
refuses it otherwise.

With ``index=trajectory``, rows of one trajectory also have the same ``index``. ClawGym's fork of slime compares rewards
by ``(group_index, index)`` with ``--dynamic-history``: a trajectory of several rows counts once in its group, and
groups may differ in size. With ``credit=trainer``, ``reward`` is then ``{"score": ...}``, as its own rollouts write it.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from core.batch.plan import Plan
from core.batch.rows import Rows, training_rows
from core.export.base import MERGE, Difference, Exporter, ExportSource, Progress, Written, merged
from core.export.codes import pickle_floats, pickle_ints
from core.export.lines import finish_reasons, of_last_step
from core.export.prefixes import EncodedIds
from core.export.reading import Row, constant, others, tokens, torch_file
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
from core.export.sampled import Coded, Responses
from core.export.sink import Piece, Sink
from core.export.torch_file import TorchFile, pickled

STATUS = {"length": "truncated"}
"""Finish reason -> slime's status; any other is ``completed``."""


INDEX: Mapping[str, tuple[str, ...]] = {"index": ("row", "trajectory")}
"""Option: ``index`` of a sample is its own, or shared by the rows of a trajectory, for ClawGym's fork."""

DYNAMIC = "--reward-key score --dynamic-history"
PLANNED = "--reward-key advantage --disable-rewards-normalization --advantage-estimator grpo"


@dataclass(frozen=True, slots=True)
class _Sample:
    """A sample with slime's field names; long lists are opcodes."""

    fields: dict[str, Any]
    tokens: list[Piece]
    loss_mask: list[Piece]
    logprobs: list[Piece]


def _shares_index(settings: Mapping[str, str]) -> bool:
    """Whether the option ``index`` is ``trajectory``."""
    return settings["index"] == "trajectory"


def _samples(
    plan: Plan, source: ExportSource, rows: Rows, first_index: int, settings: Mapping[str, str]
) -> Iterator[_Sample]:
    versions = plan.steps["policy_version"].to_pylist()
    values = rows_rewards(plan, rows, settings).tolist()
    finish = finish_reasons(plan, source, rows.last_step)
    step_uids, scores_of = (of_last_step(plan, rows, name) for name in ("step_uid", "trajectory_reward"))
    ids, responses = EncodedIds(rows, pickle_ints), Responses(rows)
    loss = rows.loss[responses.at]
    mask = Coded.fixed(pickle_ints(loss.astype(np.int32))[0], 2, pickled(0))
    logprobs = Coded.fixed(pickle_floats(responses.where_loss(rows, rows.logprobs)), 9, pickled(0.0))
    lengths, n_prompt = rows.lengths.tolist(), rows.n_prompt.tolist()
    group, trajectory = rows.group.tolist(), rows.trajectory.tolist()
    for i, n in enumerate(n_prompt):
        sampled_by = [versions[place] for place in rows.steps[responses.segments(i)].tolist()]
        reward: Any = values[i]
        if uses_planned_credit(settings):
            reward = {"advantage": values[i], "reward": scores_of[i]}
        elif _shares_index(settings):
            reward = {"score": values[i]}
        fields = {
            "group_index": group[i],
            "index": trajectory[i] if _shares_index(settings) else first_index + i,
            "rollout_id": trajectory[i],
            "prompt": "",
            "tokens": None,
            "response": "",
            "response_length": lengths[i] - n,
            "label": None,
            "reward": reward,
            "loss_mask": None,
            "weight_versions": [str(version) for version in sampled_by if version is not None],
            "rollout_log_probs": None,
            "status": STATUS.get(finish[i] or "", "completed"),
            "metadata": {"step_uid": step_uids[i], "raw_reward": scores_of[i]},
        }
        yield _Sample(fields, [ids.part(i)], responses.pieces(i, mask, n), responses.pieces(i, logprobs, n))


def _opcodes(samples: list[_Sample], *, with_logprobs: bool) -> Iterator[Piece]:
    """The pickle of all samples; each list is its own, since a trainer may change one."""
    yield pickle.PROTO + b"\x02" + pickle.EMPTY_DICT + pickle.MARK + pickled("rollout_id") + pickled(0)
    yield pickled("samples") + pickle.EMPTY_LIST + pickle.MARK
    for sample in samples:
        lists = {"tokens": sample.tokens, "loss_mask": sample.loss_mask}
        if with_logprobs:
            lists["rollout_log_probs"] = sample.logprobs
        yield pickle.EMPTY_DICT + pickle.MARK
        for name, value in sample.fields.items():
            if name in lists:
                yield pickled(name) + pickle.EMPTY_LIST + pickle.MARK
                yield from lists[name]
                yield pickle.APPENDS
            else:
                yield pickled(name) + pickled(value)
        yield pickle.SETITEMS
    yield pickle.APPENDS + pickle.SETITEMS + pickle.STOP


def differences(plan: Plan, settings: Mapping[str, str]) -> list[Difference]:
    """Differences between the plan and slime's training."""
    n = len(plan.trajectories)
    steps = Difference(
        "slime updates once for each global-batch-size of trajectories, and drops those that are over",
        f"--global-batch-size {n} --use-dynamic-batch-size",
    )
    common = [steps, *bare_rows(plan), *one_temperature(plan, "--rollout-temperature")]
    if uses_planned_credit(settings):
        what = "slime refuses the file unless its settings name the key of the advantages and turn normalisation off"
        return [Difference(what, PLANNED), *common]
    if _shares_index(settings):
        what = "only ClawGym's fork of slime reads this file: the key of the rewards is score, and its flag counts a "
        flat = "ClawGym's fork drops groups whose rewards are all equal, whose advantages are 0"
        return [
            Difference(f"{what}trajectory once in its group", DYNAMIC),
            Difference(flat, "recipe.drop_flat_groups"),
            Difference(
                "ClawGym's fork counts rows, not trajectories, in global-batch-size and in a mean over samples",
                "--global-batch-size: the manifest's n_rows; --calculate-per-token-loss",
            ),
            *common[1:],
        ]
    sizes = counts_of(plan)
    if not sizes["uniform"]:
        common.append(
            Difference("groups differ in size, so slime normalises rewards over the whole batch", "credit=plan")
        )
    several = "slime counts each row as a sample: a trajectory of several rows counts several times in its group"
    prevents = "credit=plan, or merge=trajectory if it gives one row each; index=trajectory for ClawGym's fork"
    return [*common, Difference(several, prevents)]


def write(plan: Plan, source: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Encode all samples, then write one pickle. If one sample lacks log-probs, all are written without."""
    samples: list[_Sample] = []
    n_tokens = n_loss = 0
    unknown: list[Rows] = []
    for part in training_rows(plan, source, merge=merged(settings)):
        rows = with_context(part)
        if np.isnan(rows.logprobs[rows.loss]).any():
            unknown.append(rows)
        samples += _samples(plan, source, rows, len(samples), settings)
        n_tokens, n_loss = n_tokens + len(rows.ids), n_loss + int(rows.loss.sum())
        progress(rows.done, len(plan.steps))
    file = TorchFile(sink)
    file.record("data.pkl", _opcodes(samples, with_logprobs=not unknown))
    file.finish()
    why = "slime's off-policy correction is not possible (--use-tis must be off)"
    return Written(len(samples), n_tokens, n_loss, unknown_logprobs(unknown, why))


SHOWN = ("tokens", "loss_mask", "rollout_log_probs", "prompt", "response", "response_length", "label", "reward")
"""Fields of a sample that ``read`` gives as tokens, or that are empty or given otherwise."""


def read(data: bytes, settings: Mapping[str, str]) -> Iterator[Row]:
    """The samples as slime reads them."""
    planned = uses_planned_credit(settings)
    for sample in torch_file(data)["samples"]:
        n, scores = len(sample["tokens"]), sample["rollout_log_probs"]
        before = [0] * (n - sample["response_length"])
        advantages = constant(sample["reward"]["advantage"] if planned else None, n)
        logprobs = None if scores is None else before + scores
        fields = {**others(sample, *SHOWN), "reward": sample["reward"]["reward"] if planned else sample["reward"]}
        yield Row([tokens(sample["tokens"], before + sample["loss_mask"], advantages, logprobs)], fields=fields)


def load_command(name: str) -> str:
    """A command that loads the file as slime does."""
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
    read=read,
    load_command=load_command,
    choices={**MERGE, **CREDIT, **INDEX},
    differences=differences,
)
