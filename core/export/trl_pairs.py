"""Exports to TRL's DPOTrainer and KTOTrainer: exact token ids, and masks of sampled tokens.

Both trainers tokenize texts and train on all tokens after the prompt; ``trl_exact.py`` beside the file has subclasses
that do neither. A pair consists of the first row of each trajectory (``core.batch.rows``). Tokens after a compaction or
fork are in other rows and not in the pair; the manifest has their number. KTO uses all rows, each with its trajectory's
label.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from core.batch.plan import Plan
from core.batch.rows import training_rows
from core.errors import InvalidInput
from core.export.base import Difference, Exporter, ExportSource, Progress, Written, loader
from core.export.parquet import write_row_groups
from core.export.reading import Row, parquet_rows, tokens
from core.export.sink import Sink
from core.tree.sequences import Int32

IDS = pa.list_(pa.int32())
MASK = pa.list_(pa.int8())
DPO_SCHEMA = pa.schema(
    {
        "prompt_ids": IDS,
        "chosen_ids": IDS,
        "chosen_mask": MASK,
        "rejected_ids": IDS,
        "rejected_mask": MASK,
        "margin": pa.float64(),
    }
)
KTO_SCHEMA = pa.schema({"prompt_ids": IDS, "completion_ids": IDS, "completion_mask": MASK, "label": pa.bool_()})
"""Masks are 1 on sampled tokens."""
PAIRS_PER_CHUNK = 256


@dataclass(slots=True)
class _Answer:
    """The first row of a trajectory, and the number of sampled tokens in its other rows."""

    prompt: Int32
    ids: Int32
    mask: NDArray[np.int8]
    n_behind: int = 0


def _answers(plan: Plan, source: ExportSource, wanted: Sequence[int]) -> dict[int, _Answer]:
    """Trajectory number -> its answer."""
    numbers = sorted(set(wanted))
    answers: dict[int, _Answer] = {}
    for rows in training_rows(plan.part(numbers), source, merge=True):
        for i, at in enumerate(rows.slices()):
            number, n = numbers[int(rows.trajectory[i])], int(rows.n_prompt[i])
            loss = rows.loss[at]
            if number in answers:
                answers[number].n_behind += int(loss.sum())
            else:
                answers[number] = _Answer(rows.ids[at][:n], rows.ids[at][n:], loss[n:].astype(np.int8))
    return answers


def _pairs(plan: Plan, source: ExportSource) -> Iterator[tuple[int, pa.Table, Written]]:
    if plan.pairs is None:
        raise InvalidInput("the plan has no pairs", field="recipe.algorithm", hint="plan with the algorithm dpo")
    for low in range(0, len(plan.pairs), PAIRS_PER_CHUNK):
        chunk: list[dict[str, Any]] = plan.pairs.slice(low, PAIRS_PER_CHUNK).to_pylist()
        answers = _answers(plan, source, [pair[side] for pair in chunk for side in ("chosen", "rejected")])
        lines = []
        for pair in chunk:
            chosen, rejected = answers[pair["chosen"]], answers[pair["rejected"]]
            if not np.array_equal(chosen.prompt, rejected.prompt):
                raise InvalidInput(
                    f"the prompts of {pair['chosen_uid']} and {pair['rejected_uid']} differ in tokens",
                    field="recipe",
                    hint="a pair needs the same prompt: check that both have the same tools and system prompt",
                )
            lines.append((chosen.prompt, chosen.ids, chosen.mask, rejected.ids, rejected.mask, pair["margin"]))
        n_loss = sum(int(line[2].sum() + line[4].sum()) for line in lines)
        n_tokens = sum(2 * len(line[0]) + len(line[1]) + len(line[3]) for line in lines)
        done = len(plan.steps) * (low + len(chunk)) // len(plan.pairs)
        written = Written(len(lines), n_tokens, n_loss, _left_behind(answers))
        yield done, pa.table(_columns(lines, DPO_SCHEMA), schema=DPO_SCHEMA), written


def _left_behind(answers: Mapping[int, _Answer]) -> tuple[Difference, ...]:
    broken = [answer.n_behind for answer in answers.values() if answer.n_behind]
    if not broken:
        return ()
    what = f"{sum(broken)} sampled tokens of {len(broken)} trajectories are after a compaction or fork and in no pair"
    return (Difference(what),)


def _columns(lines: Sequence[tuple[Any, ...]], schema: pa.Schema) -> list[pa.Array]:
    return [pa.array(values, field.type) for values, field in zip(zip(*lines, strict=True), schema, strict=True)]


def _labelled(plan: Plan, source: ExportSource) -> Iterator[tuple[int, pa.Table, Written]]:
    if plan.trajectories["desirable"].null_count:
        raise InvalidInput(
            "the plan has no labels (desirable or not)", field="recipe.algorithm", hint="plan with the algorithm kto"
        )
    labels = plan.trajectories["desirable"].to_pylist()
    for rows in training_rows(plan, source, merge=True):
        lines = []
        for i, at in enumerate(rows.slices()):
            n, ids, mask = int(rows.n_prompt[i]), rows.ids[at], rows.loss[at].astype(np.int8)
            lines.append((ids[:n], ids[n:], mask[n:], labels[int(rows.trajectory[i])]))
        several = len(lines) - len(np.unique(rows.trajectory))
        what = "Trajectories with a compaction or fork become several examples, each with the trajectory's label"
        written = Written(len(lines), len(rows.ids), int(rows.loss.sum()), (Difference(what),) if several else ())
        yield rows.done, pa.table(_columns(lines, KTO_SCHEMA), schema=KTO_SCHEMA), written


def write_dpo(plan: Plan, source: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Write the pairs, row group by row group."""
    return write_row_groups(sink, DPO_SCHEMA, _pairs(plan, source), len(plan.steps), progress)


def write_kto(plan: Plan, source: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Write the labelled rows, row group by row group."""
    return write_row_groups(sink, KTO_SCHEMA, _labelled(plan, source), len(plan.steps), progress)


def differences(plan: Plan, settings: Mapping[str, str]) -> Sequence[Difference]:
    """Differences between the plan and TRL's trainers: tokens in the loss, and longest sequence."""
    plain = "TRL's trainers train on every token after the prompt, including tool results"
    cut = "TRL cuts rows at 1024 tokens"
    return Difference(plain, "trl_exact.py"), Difference(cut, "max_length=None")


def read_dpo(data: bytes, settings: Mapping[str, str]) -> Iterator[Row]:
    """The pairs as ExactDPOTrainer reads them."""
    for row in parquet_rows(data):
        before = [0] * len(row["prompt_ids"])
        sides = [
            tokens(row["prompt_ids"] + row[f"{side}_ids"], before + row[f"{side}_mask"], name=side)
            for side in ("chosen", "rejected")
        ]
        yield Row(sides, fields={"margin": row["margin"]})


def read_kto(data: bytes, settings: Mapping[str, str]) -> Iterator[Row]:
    """The rows as ExactKTOTrainer reads them."""
    for row in parquet_rows(data):
        mask = [0] * len(row["prompt_ids"]) + row["completion_mask"]
        yield Row([tokens(row["prompt_ids"] + row["completion_ids"], mask)], fields={"label": row["label"]})


def load_command(name: str) -> str:
    """A command that loads the file with ``datasets``."""
    return (
        'python -c "from datasets import load_dataset; '
        f"print(load_dataset('parquet', data_files='{name}', split='train'))\""
        "  # then ExactDPOTrainer or ExactKTOTrainer; usage: head trl_exact.py"
    )


DPO = Exporter(
    name="trl_dpo",
    title="TRL DPO",
    description="Pairs as prompt_ids, chosen_ids, rejected_ids and masks, and trl_exact.py: DPOTrainer on exact ids",
    suffix=".parquet",
    write=write_dpo,
    read=read_dpo,
    load_command=load_command,
    beside=loader("trl_exact.py"),
    differences=differences,
)
KTO = Exporter(
    name="trl_kto",
    title="TRL KTO",
    description="Rows as prompt_ids, completion_ids, mask and label, and trl_exact.py: KTOTrainer on exact ids",
    suffix=".parquet",
    write=write_kto,
    read=read_kto,
    load_command=load_command,
    beside=loader("trl_exact.py"),
    differences=differences,
    by_group=True,
)
