"""Exports to verl: the rollouts of one update as a ``DataProto`` file, which RolloutSkip loads instead of generating.

RolloutSkip looks for ``{dump_dir}/{experiment}_{project}/GBS{g}_N{n}_in{P}_out{R}/{step}/gen_batch.dp`` and a
``meta.json`` beside it (``{"global_steps": step}``). verl computes advantages from ``rm_scores``. The option
``rewards`` selects their content:

- ``plan``: the plan's advantages per token. ``verl_advantages.py`` beside the file makes verl use them unchanged.
- ``trajectory``: each trajectory's reward on its last sampled token, for verl's estimators. verl takes each row for a
  sample and n rows for a group, so groups must have the same size and each trajectory one row.
- ``step``: each step's part of its trajectory's reward on its last token, for Agent-R1 and StepPO, which add up the
  rows of a trajectory; ``uid`` is the prompt group, ``anchor_obs`` is for GiGPO (``core.export.stepwise``). verl's
  trainer sets ``uid`` and refuses files that have one.

The file is a pickle that calls ``DataProto.from_dict`` when it is loaded, so writing it needs neither verl nor
tensordict. Loading a pickle runs code: open only files that you created.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from core.batch.plan import Plan
from core.errors import InvalidInput
from core.export.base import MERGE, Difference, Exporter, ExportSource, Progress, Sink, Written, loader, merged
from core.export.padded import Padded, pad
from core.export.recompute import bare_rows, counts_of, one_temperature, trajectory_rewards
from core.export.stepwise import anchors, in_order, other_sums, same_settings

PAD_ID = 0
FROM_DICT = b"cverl.protocol\nDataProto.from_dict\n"
"""Pickle opcode that imports the function when the file is loaded."""


REWARDS = {"rewards": ("plan", "trajectory", "step")}
"""Option: the content of ``rm_scores``."""
PLANNED = (
    "VERL_USE_EXTERNAL_MODULES=verl_advantages algorithm.adv_estimator=planned algorithm.use_kl_in_reward=false "
    "data.train_batch_size={} actor_rollout_ref.rollout.n=1"
)


def scores(plan: Plan, padded: Padded, settings: Mapping[str, str]) -> NDArray[np.float32]:
    """``rm_scores``, float32 [B, R].

    Raises:
        InvalidInput: the plan lacks the values for the option, or verl would group its rows differently.
    """
    if settings["rewards"] == "plan":
        if padded.advantages is None:
            raise InvalidInput(
                "the plan assigns no advantages", field="options.rewards", hint="trajectory or step write rewards"
            )
        return padded.advantages
    if settings["rewards"] == "step":
        trajectory_rewards(plan, padded.step)
        assert padded.shares is not None, "every trajectory is scored"
        return padded.shares
    if len(padded.step) > len(plan.trajectories) or not counts_of(plan)["uniform"]:
        raise InvalidInput(
            f"{len(padded.step)} rows of {len(plan.trajectories)} trajectories in groups of "
            f"{sorted(set(counts_of(plan)['sizes']))}: verl takes a row for a sample and n rows for a group",
            field="options.rewards",
            hint="rewards=plan; or merge=trajectory and a recipe with n_rollouts, where each trajectory makes one row",
        )
    return padded.at_last(trajectory_rewards(plan, padded.step))


def tensors(padded: Padded, rm_scores: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
    """The tensors of verl's batch by name, [B, ...]."""
    tensors: dict[str, NDArray[Any]] = {
        "prompts": padded.prompts,
        "responses": padded.responses,
        "response_mask": padded.response_mask,
        "input_ids": padded.input_ids,
        "attention_mask": padded.attention_mask,
        "position_ids": padded.position_ids,
        "rm_scores": rm_scores,
    }
    if padded.logprobs is not None:
        tensors["rollout_log_probs"] = padded.logprobs
    if padded.advantages is not None:
        tensors["advantages"] = padded.advantages
    return tensors


def labels(plan: Plan, step: NDArray[np.int64], *, stepwise: bool) -> dict[str, NDArray[Any]]:
    """The non-tensor arrays of verl's batch, [B]; ``stepwise``: with those for Agent-R1 and StepPO."""
    rows = plan.steps.take(pa.array(step))

    def texts(name: str) -> NDArray[Any]:
        return np.array(rows[name].to_pylist(), dtype=object)

    n_steps = plan.trajectories["n_steps"].take(rows["trajectory"]).cast(pa.int32()).to_numpy()
    # verl's trainer expects this field for each row, even without images.
    pictures = np.array([{} for _ in range(len(step))], dtype=object)
    return {
        **({"uid": texts("prompt_uid"), **anchors(plan, step)} if stepwise else {}),
        "prompt_uids": texts("prompt_uid"),
        "trajectory_uids": texts("trajectory_uid"),
        "step_indices": in_order(plan, step),
        "step_uids": texts("step_uid"),
        "__num_turns__": n_steps,
        "multi_modal_inputs": pictures,
    }


def differences(plan: Plan, settings: Mapping[str, str]) -> list[Difference]:
    """Differences between the plan and the training in verl, Agent-R1 and StepPO."""
    common = [*bare_rows(plan), *one_temperature(plan, "actor_rollout_ref.rollout.temperature")]
    if settings["rewards"] == "plan":
        return common
    if settings["rewards"] == "trajectory":
        return [Difference("verl's estimator decides, not the plan's: its groups are n rows, one after another",
                           "rewards=plan"), *common]  # fmt: skip
    what = "Agent-R1's and StepPO's estimator decides, not the plan's: it chains rows by step_indices, forks too"
    return [Difference(what, "rewards=plan"), *same_settings(plan), *other_sums(plan), *common]


class _Inside:
    """A sink for a pickle that becomes the arguments of a call: inserts the function, and leaves out the last byte."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._last = b""
        self._begun = False

    def write(self, data: bytes | memoryview) -> int:
        """Append all bytes so far except the last."""
        n = len(data)
        if not self._begun:
            self._begun = True
            self._sink.write(bytes(data[:2]) + FROM_DICT)
            data = data[2:]
        if len(data):
            self._sink.write(self._last)
            self._sink.write(data[:-1])
            self._last = bytes(data[-1:])
        return n


def write_data_proto(
    sink: Sink, arrays: Mapping[str, NDArray[Any]], beside: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]
) -> None:
    """Write a pickle of a verl ``DataProto`` with these tensors, arrays and metadata, one array at a time."""
    import torch

    class Pickler(pickle.Pickler):
        """Writes tensors as arrays: torch's format has memory addresses, so that files would differ each time."""

        def reducer_override(self, obj: Any) -> Any:
            return (torch.from_numpy, (obj.numpy(),)) if isinstance(obj, torch.Tensor) else NotImplemented

    tensors = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in arrays.items()}
    Pickler(_Inside(sink), protocol=4).dump((tensors, dict(beside), dict(meta)))
    sink.write(pickle.REDUCE + pickle.STOP)


def write(plan: Plan, source: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Write the file. The whole padded batch is in memory, as it is in the trainer."""
    padded = pad(plan, source, merge=merged(settings), pad_id=PAD_ID)
    arrays = tensors(padded, scores(plan, padded, settings))
    beside = labels(plan, padded.step, stepwise=settings["rewards"] == "step")
    write_data_proto(sink, arrays, beside, {"plan": plan.hash, "timing": {}})
    progress(len(plan.steps), len(plan.steps))
    differences = padded.unknown
    if settings["rewards"] == "plan":
        what = "verl computes advantages unless its settings select the file's, and replays all rows as one batch"
        differences = (Difference(what, PLANNED.format(len(padded.step))), *differences)
    return Written(len(padded.step), int(padded.attention_mask.sum()), int(padded.response_mask.sum()), differences)


def load_command(name: str) -> str:
    """A command that loads the file with verl, which must be installed."""
    return (
        'python -c "from verl import DataProto; '
        f"print(DataProto.load_from_disk('{name}').batch)\"  # a pickle: open only files you made"
    )


EXPORTER = Exporter(
    name="verl_rollout",
    title="verl rollout (gen_batch.dp)",
    description="DataProto for verl's RolloutSkip: padded prompts and responses, masks, rollout log-probs, "
    "and as rm_scores the plan's advantages (with verl_advantages.py) or rewards; also what Agent-R1 and Claw-R1 name "
    "(trajectory_uids, step_indices). A pickle: open only files that you made",
    suffix=".dp",
    write=write,
    load_command=load_command,
    choices={**MERGE, **REWARDS},
    beside=loader("verl_advantages.py"),
    differences=differences,
)
