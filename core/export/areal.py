"""Exports to AReaL: a list of tensor dicts ``[1, L]``, as its workflows return them.

``input_ids, loss_mask, versions, turn_ids`` int32, ``attention_mask`` bool, ``logprobs`` float32 (0 on context),
``rewards`` float32 ``[1]``. ``versions`` has the policy version of the step that sampled each token, -1 on context, as
in AReaL's workflows.

AReaL normalises rewards over groups of a fixed number of rows. With ``credit=plan``, ``rewards`` are the plan's
advantages. AReaL uses them unchanged for each sampled token with the settings that the manifest lists.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from core.batch.plan import Plan
from core.batch.rows import Rows, training_rows
from core.errors import InvalidInput
from core.export.base import MERGE, Difference, Exporter, ExportSource, Progress, Written, merged
from core.export.lines import logprobs_of
from core.export.reading import Row, constant, tokens, torch_file
from core.export.recompute import (
    CREDIT,
    bare_rows,
    counts_of,
    one_temperature,
    rows_rewards,
    uses_planned_credit,
    with_context,
)  # fmt: skip
from core.export.sampled import Coded, Repeated, Responses
from core.export.sink import Sink
from core.export.torch_file import Tensors, TorchFile, pickled


def write(plan: Plan, source: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Stream the tensors of all rows, then the pickle that lists them."""
    if plan.steps["policy_version"].null_count:
        raise InvalidInput(
            "a step's policy version is unknown, and AReaL needs it", field="recipe.max_staleness",
            hint="set max_staleness: it leaves unknown versions out",
        )  # fmt: skip
    file = TorchFile(sink)
    tensors = Tensors(file)
    samples: list[bytes] = []
    n_tokens = n_loss = 0
    for part in training_rows(plan, source, merge=merged(settings)):
        rows = with_context(part)
        samples += _samples(plan, rows, rows_rewards(plan, rows, settings), tensors)
        n_tokens, n_loss = n_tokens + len(rows.ids), n_loss + int(rows.loss.sum())
        progress(rows.done, len(plan.steps))
    opcodes = [pickle.PROTO + b"\x02" + pickle.EMPTY_LIST + pickle.MARK, *samples, pickle.APPENDS + pickle.STOP]
    file.record("data.pkl", opcodes)
    file.finish()
    what = f"AReaL deals {len(samples)} rows to its ranks in equal numbers, and refuses where that leaves a rest"
    differences = (Difference(what, f"as many data-parallel ranks as divide {len(samples)}"),)
    return Written(len(samples), n_tokens, n_loss, differences)


def _samples(plan: Plan, rows: Rows, rewards: NDArray[np.float32], tensors: Tensors) -> Iterator[bytes]:
    """The opcodes of each row's dict; its tensors are stored as it is made."""
    responses = Responses(rows)
    loss = rows.loss[responses.at]
    version = np.repeat(plan.steps["policy_version"].to_numpy().astype(np.int32)[rows.steps], rows.n_response)
    sampled = {
        "loss_mask": ("Int", loss.astype("<i4"), 0),
        "logprobs": ("Float", logprobs_of(rows, responses).astype("<f4"), 0),
        "versions": ("Int", np.where(loss, version, -1).astype("<i4"), -1),
        "turn_ids": ("Int", _turns(rows, responses).astype("<i4"), 0),
    }
    coded = {
        name: (kind, Coded.fixed(values.view(np.uint8), 4, np.array([context], values.dtype).tobytes()))
        for name, (kind, values, context) in sampled.items()
    }
    ids, ones = rows.ids.astype("<i4", copy=False).view(np.uint8).data, Repeated(b"\x01")
    for i, at in enumerate(rows.slices()):
        n = at.stop - at.start
        fields = {"input_ids": tensors.add("Int", (1, n), [ids[4 * at.start : 4 * at.stop]])}
        fields |= {name: tensors.add(kind, (1, n), responses.pieces(i, one)) for name, (kind, one) in coded.items()}
        fields["attention_mask"] = tensors.add("Bool", (1, n), [ones.times(n)])
        fields["rewards"] = tensors.add("Float", (1,), [rewards[i : i + 1].astype("<f4").tobytes()])
        items = b"".join(pickled(name) + tensor for name, tensor in fields.items())
        yield pickle.EMPTY_DICT + pickle.MARK + items + pickle.SETITEMS


def _turns(rows: Rows, responses: Responses) -> NDArray[np.int64]:
    """The number of each sampled token's run of loss within its row, int64 [s]; 0 without loss."""
    at, loss = responses.at, rows.loss[responses.at]
    row = np.repeat(rows.row_of_step, rows.n_response)
    goes_on = np.zeros(len(at), dtype=np.bool_)
    goes_on[1:] = loss[:-1] & (at[1:] == at[:-1] + 1) & (row[1:] == row[:-1])
    run = np.cumsum(loss & ~goes_on)
    before = np.concatenate([np.zeros(1, dtype=np.int64), run])[np.searchsorted(row, row)]
    return np.where(loss, run - 1 - before, 0)


PLANNED = (
    "actor.reward_norm=null actor.adv_norm=null actor.reward_bias=0 actor.reward_scaling=1 actor.reward_clip=1e9 "
    "actor.kl_ctl=0 actor.discount=1 actor.gae_lambda=1 actor.mask_no_eos_with_zero=false "
    "actor.overlong_reward_penalty=false actor.ppo_n_minibatches=1"
)


def differences(plan: Plan, settings: Mapping[str, str]) -> list[Difference]:
    """Differences between the plan and AReaL's training."""
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


def read(data: bytes, settings: Mapping[str, str]) -> Iterator[Row]:
    """The rows as AReaL's trainer gets them."""
    planned = uses_planned_credit(settings)
    for row in torch_file(data):
        ids, mask, scores = (row[name][0] for name in ("input_ids", "loss_mask", "logprobs"))
        reward = float(row["rewards"][0])
        fields = {} if planned else {"reward": reward}
        yield Row([tokens(ids, mask, constant(reward if planned else None, len(ids)), scores)], fields=fields)


def load_command(name: str) -> str:
    """A command that loads the file with torch, without running code in it."""
    return f"python -c \"import torch; print(len(torch.load('{name}', weights_only=True)))\""


EXPORTER = Exporter(
    name="areal",
    title="AReaL trajectories (.pt)",
    description="Tensor dicts of shape [1, L] of AReaL's workflows: ids, loss mask, log-probs, versions, turns",
    suffix=".pt",
    write=write,
    read=read,
    load_command=load_command,
    choices={"merge": tuple(reversed(MERGE["merge"])), **CREDIT},
    differences=differences,
)
