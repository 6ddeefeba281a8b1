"""verl: one update's rollouts as a ``DataProto`` file that its RolloutSkip replays in place of generating.

RolloutSkip looks for ``{dump_dir}/{experiment}_{project}/GBS{g}_N{n}_in{P}_out{R}/{step}/gen_batch.dp`` and a
``meta.json`` beside it (``{"global_steps": step}``). Rewards are verl's ``rm_scores``: the trajectory's, on the last
sampled token.

The file is a pickle that calls ``DataProto.from_dict`` of the verl that opens it, so neither verl nor tensordict is
needed to write it. Like every pickle it runs what it says: open only files that you made.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from core.batch.plan import Plan
from core.export.base import MERGE, Exporter, ExportSource, Progress, Sink, Written, merged
from core.export.padded import Padded, pad, row_rewards

PAD_ID = 0
FROM_DICT = b"cverl.protocol\nDataProto.from_dict\n"
"""Pickle's opcode that looks the function up where the file is read."""


def tensors(padded: Padded, rewards: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
    """The arrays that verl names, [B, ...]."""
    found: dict[str, NDArray[Any]] = {
        "prompts": padded.prompts,
        "responses": padded.responses,
        "response_mask": padded.response_mask,
        "input_ids": padded.input_ids,
        "attention_mask": padded.attention_mask,
        "position_ids": padded.position_ids,
        "rm_scores": padded.at_last(rewards),
    }
    if padded.logprobs is not None:
        found["rollout_log_probs"] = padded.logprobs
    if padded.advantages is not None:
        found["advantages"] = padded.advantages
    return found


def labels(plan: Plan, step: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """What verl and its descendants keep beside tensors, [B]: ``uid`` is the prompt group."""
    rows = plan.steps.take(pa.array(step))

    def texts(name: str) -> NDArray[Any]:
        return np.array(rows[name].to_pylist(), dtype=object)

    n_steps = plan.trajectories["n_steps"].take(rows["trajectory"]).cast(pa.int32()).to_numpy()
    return {
        "uid": texts("prompt_uid"),
        "prompt_uids": texts("prompt_uid"),
        "trajectory_uids": texts("trajectory_uid"),
        "step_indices": rows["step_index"].cast(pa.int32()).to_numpy(),
        "step_uids": texts("step_uid"),
        "__num_turns__": n_steps,
    }


class _Inside:
    """Where a pickle goes whose object is the arguments of a call: its first opcode is written, its last is not."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._last = b""
        self._begun = False

    def write(self, data: bytes | memoryview) -> int:
        """Append all but the newest byte."""
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
    """A pickle of a verl ``DataProto`` with these tensors, arrays and meta information, an array at a time."""
    import torch

    class Pickler(pickle.Pickler):
        """Tensors as arrays: torch's own form names memory addresses, so no two files would be the same."""

        def reducer_override(self, obj: Any) -> Any:
            return (torch.from_numpy, (obj.numpy(),)) if isinstance(obj, torch.Tensor) else NotImplemented

    found = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in arrays.items()}
    Pickler(_Inside(sink), protocol=4).dump((found, dict(beside), dict(meta)))
    sink.write(pickle.REDUCE + pickle.STOP)


def write(plan: Plan, pool: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Pad and write; the whole batch is in memory, as it will be in the trainer's."""
    padded = pad(plan, pool, merge=merged(settings), pad_id=PAD_ID)
    arrays = tensors(padded, row_rewards(plan, padded.step))
    write_data_proto(sink, arrays, labels(plan, padded.step), {"plan": plan.hash})
    progress(len(plan.steps), len(plan.steps))
    return Written(len(padded.step), int(padded.attention_mask.sum()), int(padded.response_mask.sum()))


def load_command(name: str) -> str:
    """Loads the file with verl, in an environment that has it."""
    return (
        'python -c "from verl import DataProto; '
        f"print(DataProto.load_from_disk('{name}').batch)\"  # a pickle: open only files you made"
    )


EXPORTER = Exporter(
    name="verl_rollout",
    title="verl rollout (gen_batch.dp)",
    description="DataProto for verl's RolloutSkip: padded prompts and responses, masks, rollout log-probs, rm_scores "
    "on the last sampled token; also what Agent-R1 and Claw-R1 name (trajectory_uids, step_indices). "
    "A pickle: open only files that you made",
    suffix=".dp",
    write=write,
    load_command=load_command,
    choices=MERGE,
)
