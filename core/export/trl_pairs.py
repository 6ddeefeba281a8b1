"""TRL's DPOTrainer and KTOTrainer: exact token ids, so nothing is encoded again.

Both trainers tokenise texts in ``_prepare_dataset``; with ids at hand it has nothing to do, so replace it::

    class Exact(DPOTrainer):
        def _prepare_dataset(self, dataset, *_):
            return dataset

A row holds the first row of each trajectory (``core.batch.rows``): everything after the task prompt is the answer, what
tools said included, and both trainers count all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from core.batch.plan import Plan
from core.batch.rows import training_rows
from core.errors import InvalidInput
from core.export.base import Exporter, ExportSource, Progress, Sink, Written
from core.export.parquet import write_row_groups
from core.tree.sequences import Int32

IDS = pa.list_(pa.int32())
DPO_SCHEMA = pa.schema({"prompt_ids": IDS, "chosen_ids": IDS, "rejected_ids": IDS, "margin": pa.float64()})
KTO_SCHEMA = pa.schema({"prompt_ids": IDS, "completion_ids": IDS, "label": pa.bool_()})
PAIRS_PER_CHUNK = 256


def _answers(plan: Plan, pool: ExportSource, wanted: Sequence[int]) -> dict[int, tuple[Int32, Int32]]:
    """Trajectory number -> (prompt, answer) of its first row."""
    numbers = sorted(set(wanted))
    found: dict[int, tuple[Int32, Int32]] = {}
    for rows in training_rows(plan.part(numbers), pool, merge=True):
        for i, at in enumerate(rows.slices()):
            number, n = numbers[int(rows.trajectory[i])], int(rows.n_prompt[i])
            found.setdefault(number, (rows.ids[at][:n], rows.ids[at][n:]))
    return found


def _pairs(plan: Plan, pool: ExportSource) -> Iterator[tuple[int, pa.Table, Written]]:
    if plan.pairs is None:
        raise InvalidInput("the plan holds no pairs", field="recipe.algorithm", hint="plan with the algorithm dpo")
    for low in range(0, len(plan.pairs), PAIRS_PER_CHUNK):
        chunk: list[dict[str, Any]] = plan.pairs.slice(low, PAIRS_PER_CHUNK).to_pylist()
        answers = _answers(plan, pool, [pair[side] for pair in chunk for side in ("chosen", "rejected")])
        lines = []
        for pair in chunk:
            (prompt, chosen), (other, rejected) = answers[pair["chosen"]], answers[pair["rejected"]]
            if not np.array_equal(prompt, other):
                raise InvalidInput(
                    f"the prompts of {pair['chosen_uid']} and {pair['rejected_uid']} differ in tokens",
                    field="recipe",
                    hint="a pair needs one prompt: were both captured with the same tools and system prompt?",
                )
            lines.append((prompt, chosen, rejected, pair["margin"]))
        columns = [
            pa.array(values, field.type) for values, field in zip(zip(*lines, strict=True), DPO_SCHEMA, strict=True)
        ]
        n_loss = sum(len(chosen) + len(rejected) for _, chosen, rejected, _ in lines)
        n_tokens = n_loss + sum(2 * len(prompt) for prompt, *_ in lines)
        done = len(plan.steps) * (low + len(chunk)) // len(plan.pairs)
        yield done, pa.table(columns, schema=DPO_SCHEMA), Written(len(lines), n_tokens, n_loss)


def _columns(lines: Sequence[tuple[Any, ...]], schema: pa.Schema) -> list[pa.Array]:
    return [pa.array(values, field.type) for values, field in zip(zip(*lines, strict=True), schema, strict=True)]


def _labelled(plan: Plan, pool: ExportSource) -> Iterator[tuple[int, pa.Table, Written]]:
    if plan.trajectories["desirable"].null_count:
        raise InvalidInput(
            "the plan says of no trajectory whether it is desirable", field="recipe.algorithm", hint="kto"
        )
    labels = plan.trajectories["desirable"].to_pylist()
    for rows in training_rows(plan, pool, merge=True):
        lines: dict[int, tuple[Int32, Int32, bool]] = {}
        for i, at in enumerate(rows.slices()):
            number, n = int(rows.trajectory[i]), int(rows.n_prompt[i])
            lines.setdefault(number, (rows.ids[at][:n], rows.ids[at][n:], labels[number]))
        columns = _columns(list(lines.values()), KTO_SCHEMA)
        n_loss = sum(len(answer) for _, answer, _ in lines.values())
        n_tokens = n_loss + sum(len(prompt) for prompt, *_ in lines.values())
        yield rows.done, pa.table(columns, schema=KTO_SCHEMA), Written(len(lines), n_tokens, n_loss)


def write_dpo(plan: Plan, pool: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Stream the pairs."""
    return write_row_groups(sink, DPO_SCHEMA, _pairs(plan, pool), len(plan.steps), progress)


def write_kto(plan: Plan, pool: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Stream the trajectories."""
    return write_row_groups(sink, KTO_SCHEMA, _labelled(plan, pool), len(plan.steps), progress)


def load_command(name: str) -> str:
    """Loads the file with ``datasets``."""
    return (
        'python -c "from datasets import load_dataset; '
        f"print(load_dataset('parquet', data_files='{name}', split='train'))\""
        "  # then a DPOTrainer or KTOTrainer whose _prepare_dataset returns the data set as it is"
    )


DPO = Exporter(
    name="trl_dpo",
    title="TRL DPO",
    description="Pairs as prompt_ids, chosen_ids, rejected_ids: exact ids for a DPOTrainer that prepares nothing",
    suffix=".parquet",
    write=write_dpo,
    load_command=load_command,
    masks_tokens=False,
)
KTO = Exporter(
    name="trl_kto",
    title="TRL KTO",
    description="Trajectories as prompt_ids, completion_ids, label: exact ids for a KTOTrainer that prepares nothing",
    suffix=".parquet",
    write=write_kto,
    load_command=load_command,
    masks_tokens=False,
)
