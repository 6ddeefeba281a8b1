"""Exports the packed prefix trees of each prompt group as Parquet: one row per tree, none larger than the token budget.

A row has ``prompt_uid``, ``group`` (its number in the plan), ``tree`` (its number in the group), ``step_uids`` [m], and
the arrays of ``core.tree.build.PackedTree`` and ``core.tree.terms.LossTerms`` as lists; ``step`` and the members of the
tree index ``step_uids``. Unknown log-probs and advantages are null. Unlike the rows of ``packed_tree``, a tree has
steps of one group only, so each group can be packed apart (``core.export.joining``); a trainer puts several trees into
a row with ``core.tree.build.concatenate``.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from core.batch.arrays import group_ranges
from core.batch.plan import Plan
from core.errors import InvalidInput
from core.export.base import Exporter, ExportSource, Progress, Written
from core.export.packed_tree import advantages_of, n_original_of, row_of
from core.export.parquet import write_row_groups
from core.export.reading import Row
from core.export.sink import Sink
from core.tree.build import PackedTree, layout
from core.tree.packing import group_parts_of
from core.tree.sequences import Int64, Sequences
from core.tree.terms import POLICIES, LossTerms, loss_terms

TREE = {
    "tokens": pa.int32(),
    "position_ids": pa.int32(),
    "end": pa.int32(),
    "run_offsets": pa.int64(),
    "run_start": pa.int32(),
    "run_length": pa.int32(),
    "order": pa.int64(),
    "lcp": pa.int64(),
    "novel_start": pa.int64(),
}
TERMS = {
    "packed_pos": pa.int64(),
    "target_pos": pa.int64(),
    "target": pa.int32(),
    "old_logp": pa.float32(),
    "advantage": pa.float32(),
    "weight": pa.float64(),
    "step_weight": pa.float64(),
    "step": pa.int64(),
}
SCHEMA = pa.schema(
    {
        "prompt_uid": pa.string(),
        "group": pa.int32(),
        "tree": pa.int32(),
        "step_uids": pa.list_(pa.string()),
        **{name: pa.list_(kind) for name, kind in (TREE | TERMS).items()},
    }
)


def groups_of(plan: Plan, source: ExportSource) -> Iterator[tuple[int, int, Sequences, list[Int64]]]:
    """Ranges of whole groups: first and last step of the plan, their sequences, and the sequences of each group."""
    for low, high in group_ranges(plan):
        group = plan.steps["group"].slice(low, high - low).to_numpy()
        borders = np.flatnonzero(np.diff(group)) + 1
        index = np.split(np.arange(high - low, dtype=np.int64), borders)
        yield low, high, source.sequences(plan.step_uids[low:high]), index


def _tables(plan: Plan, source: ExportSource, policy: str) -> Iterator[tuple[int, pa.Table, Written]]:
    budget = plan.recipe.token_budget
    for low, high, sequences, groups in groups_of(plan, source):
        advantages = advantages_of(plan, np.arange(low, high, dtype=np.int64))
        rows: list[dict[str, Any]] = []
        n_tokens = n_terms = 0
        for index in groups:
            first = plan.steps.slice(low + int(index[0]), 1)
            number = first["group"][0].as_py()
            parts, over = group_parts_of(sequences, index, number, budget)
            if len(over):
                uid = sequences.step_uids[int(over[0])]
                raise InvalidInput(f"step {uid} alone is longer than a row", field="recipe.token_budget")
            for place, part in enumerate(parts):
                tree = layout(sequences, part.order, part.lcp)
                terms = loss_terms(tree, sequences, policy=policy, **advantages)
                rows.append(
                    {
                        "prompt_uid": first["prompt_uid"][0].as_py(),
                        "group": number,
                        "tree": place,
                        "step_uids": [sequences.step_uids[i] for i in tree.members.tolist()],
                        **{name: getattr(tree, name) for name in TREE},
                        **{name: getattr(terms, name) for name in TERMS},
                        "step": np.searchsorted(tree.members, terms.step),
                    }
                )
                n_tokens, n_terms = n_tokens + tree.n_packed, n_terms + len(terms)
        columns = [_column([row[field.name] for row in rows], field.type) for field in SCHEMA]
        yield high, pa.table(columns, schema=SCHEMA), Written(len(rows), n_tokens, n_terms)


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    """A column; NaN becomes null."""
    if not pa.types.is_list(kind) or pa.types.is_string(kind.value_type):
        return pa.array(values, kind)
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in values])]).astype(np.int32)
    flat = pa.array(np.concatenate(values), kind.value_type, from_pandas=True)
    return pa.ListArray.from_arrays(pa.array(offsets), flat)


def write(plan: Plan, source: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Write the file, some groups at a time. InvalidInput if a step exceeds the token budget."""
    return write_row_groups(sink, SCHEMA, _tables(plan, source, settings["terms"]), len(plan.steps), progress)


def read_trees(file: Path | str | BinaryIO) -> Iterator[tuple[str, PackedTree, LossTerms, list[str]]]:
    """Yield (prompt uid, tree, its loss terms, the step uids that its members and ``terms.step`` index)."""
    for batch in pq.ParquetFile(file).iter_batches(batch_size=64):
        for i in range(len(batch)):
            uids = batch["step_uids"][i].as_py()
            arrays = {name: batch[name][i].values.to_numpy(zero_copy_only=False) for name in (*TREE, *TERMS)}
            tree = PackedTree(
                **{name: arrays[name] for name in TREE},
                members=np.arange(len(uids), dtype=np.int64),
                n_original=n_original_of(arrays),
            )
            yield batch["prompt_uid"][i].as_py(), tree, LossTerms(**{name: arrays[name] for name in TERMS}), uids


def read(data: bytes, settings: Mapping[str, str]) -> Iterator[Row]:
    """The trees, each with the token sequences of its steps."""
    for _, tree, terms, uids in read_trees(io.BytesIO(data)):
        yield row_of(tree, terms, uids)


def load_command(name: str) -> str:
    """A command that reads the trees with this package."""
    return (
        'python -c "from core.export.group_trees import read_trees; '
        f"print(sum(1 for _ in read_trees('{name}')))\"  # trees and loss terms for core.tree; see its docstring"
    )


EXPORTER = Exporter(
    name="group_trees",
    title="Packed trees per group (parquet)",
    description="Each prompt group's packed prefix trees within the token budget, with positions, visibility and loss "
    "terms; read with core.export.group_trees.read_trees. Groups are packed apart, so clusters can write it",
    suffix=".parquet",
    write=write,
    read=read,
    load_command=load_command,
    choices={"terms": tuple(POLICIES)},
    by_group=True,
)
