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

The file is a pickle that pads the tokens and calls ``DataProto.from_dict`` of the verl that opens it
(``core.export.data_proto``). Loading a pickle runs code: open only files that you made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from core.batch.plan import Plan
from core.errors import InvalidInput
from core.export.base import MERGE, Difference, Exporter, ExportSource, Progress, Written, loader, merged
from core.export.data_proto import Scores, write_data_proto
from core.export.padded import Padded, pad
from core.export.reading import Row, plain_pickle, tokens
from core.export.recompute import bare_rows, counts_of, one_temperature, trajectory_rewards
from core.export.sink import Sink
from core.export.stepwise import anchors, in_order, other_sums, same_settings

REWARDS = {"rewards": ("plan", "trajectory", "step")}
"""Option: the content of ``rm_scores``."""
PLANNED = (
    "VERL_USE_EXTERNAL_MODULES=verl_advantages algorithm.adv_estimator=planned algorithm.use_kl_in_reward=false "
    "data.train_batch_size={} actor_rollout_ref.rollout.n=1"
)


def scores(plan: Plan, padded: Padded, settings: Mapping[str, str]) -> Scores | None:
    """``rm_scores``; None: the advantages.

    Raises:
        InvalidInput: the plan lacks the values for the option, or verl would group its rows differently.
    """
    if settings["rewards"] == "plan":
        if padded.advantages is None:
            raise InvalidInput(
                "the plan assigns no advantages", field="options.rewards", hint="trajectory or step write rewards"
            )
        return None
    if settings["rewards"] == "step":
        trajectory_rewards(plan, padded.step)
        assert padded.shares is not None, "every trajectory is scored"
        return padded.share_at, padded.shares
    if len(padded.step) > len(plan.trajectories) or not counts_of(plan)["uniform"]:
        raise InvalidInput(
            f"{len(padded.step)} rows of {len(plan.trajectories)} trajectories in groups of "
            f"{sorted(set(counts_of(plan)['sizes']))}: verl takes a row for a sample and n rows for a group",
            field="options.rewards",
            hint="rewards=plan; or merge=trajectory and a recipe with n_rollouts, where each trajectory makes one row",
        )
    return padded.last_at, trajectory_rewards(plan, padded.step)


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


def write(plan: Plan, source: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Collect all rows, then write, because the width of the matrices is known at the end."""
    padded = pad(plan, source, merge=merged(settings))
    beside = labels(plan, padded.step, stepwise=settings["rewards"] == "step")
    write_data_proto(sink, padded, scores(plan, padded, settings), beside, {"plan": plan.hash, "timing": {}})
    progress(len(plan.steps), len(plan.steps))
    differences = padded.unknown
    if settings["rewards"] == "plan":
        what = "verl computes advantages unless its settings select the file's, and replays all rows as one batch"
        differences = (Difference(what, PLANNED.format(len(padded.step))), *differences)
    n_tokens = int(padded.n_prompt.sum() + padded.n_response.sum())
    return Written(len(padded.step), n_tokens, sum(int(part.sum()) for part in padded.loss), differences)


def read(data: bytes, settings: Mapping[str, str]) -> Iterator[Row]:
    """The rows without their padding."""
    tensors, beside, _ = plain_pickle(data)
    planned = settings["rewards"] == "plan"
    n_prompt = tensors["prompts"].shape[1]
    advantages, logprobs = tensors.get("advantages") if planned else None, tensors.get("rollout_log_probs")
    for i, present in enumerate(tensors["attention_mask"].astype(np.bool_)):

        def row_of(responses: NDArray[Any] | None, i: int = i, present: NDArray[np.bool_] = present) -> Any:
            if responses is None:
                return None
            return np.concatenate([np.zeros(n_prompt, responses.dtype), responses[i]])[present]

        fields = {name: values[i] for name, values in beside.items() if name != "multi_modal_inputs"}
        if not planned:
            fields["rm_scores"] = tensors["rm_scores"][i].sum()
        ids, mask = tensors["input_ids"][i][present], row_of(tensors["response_mask"])
        yield Row([tokens(ids, mask, row_of(advantages), row_of(logprobs))], fields=fields)


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
    read=read,
    load_command=load_command,
    choices={**MERGE, **REWARDS},
    beside=loader("verl_advantages.py"),
    differences=differences,
)
