"""Exports statistics of each prompt group's prefix tree as Parquet: one row per group, no tokens.

The tree is that of all the group's steps, each a full sequence of prompt and response. ``n_packed_tokens`` and
``n_trees`` are those of the tree cut into parts within the recipe's token budget, as ``group_trees`` writes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from core.batch.plan import Plan
from core.export.base import Exporter, ExportSource, Progress, Written
from core.export.group_trees import groups_of
from core.export.parquet import write_row_groups
from core.export.reading import Row, parquet_rows
from core.export.sink import Sink
from core.tree.build import layout
from core.tree.nodes import tree_nodes
from core.tree.order import sort_with_lcp
from core.tree.packing import group_parts_of
from core.tree.sequences import Int64, Sequences

SCHEMA = pa.schema(
    {
        "prompt_uid": pa.string(),
        "group": pa.int32(),
        "n_trajectories": pa.int64(),
        "n_steps": pa.int64(),
        "n_tokens": pa.int64(),
        "n_response_tokens": pa.int64(),
        "n_unique_tokens": pa.int64(),
        "n_packed_tokens": pa.int64(),
        "n_trees": pa.int64(),
        "token_ratio": pa.float64(),
        "attention_pairs": pa.int64(),
        "attention_pairs_separate": pa.int64(),
        "n_nodes": pa.int64(),
        "n_branches": pa.int64(),
        "n_leaves": pa.int64(),
        "n_shared_by_all": pa.int64(),
        "longest": pa.int64(),
        "deepest": pa.int64(),
    }
)
"""``token_ratio``: ``n_unique_tokens / n_tokens``, null for no tokens. Nodes are the tree's unbranched runs of tokens;
``n_branches`` have two children or more, ``n_leaves`` none. ``n_shared_by_all``: tokens that all sequences begin with.
``longest``: tokens of the longest sequence; ``deepest``: nodes on the longest path. Attention pairs are those of the
tree before it is cut, and those of the separate sequences."""


def _statistics(sequences: Sequences, index: Int64, budget: int) -> dict[str, Any]:
    """The numbers of one group; ``index``: its sequences, ascending."""
    order, lcp = sort_with_lcp(sequences, index)
    tree = layout(sequences, order, lcp)
    nodes = tree_nodes(tree)
    lengths = sequences.lengths[index]
    n_tokens = int(lengths.sum())
    n_children = np.bincount(nodes.parent[nodes.parent >= 0], minlength=len(nodes))
    parts, _ = group_parts_of(sequences, index, 0, budget)
    return {
        "n_steps": len(index),
        "n_tokens": n_tokens,
        "n_response_tokens": int(sequences.n_response[index].sum()),
        "n_unique_tokens": tree.n_packed,
        "n_packed_tokens": sum(part.n_packed for part in parts),
        "n_trees": len(parts),
        "token_ratio": tree.n_packed / n_tokens if n_tokens else None,
        "attention_pairs": tree.attention_pairs,
        "attention_pairs_separate": int((lengths * (lengths + 1) // 2).sum()),
        "n_nodes": len(nodes),
        "n_branches": int((n_children > 1).sum()),
        "n_leaves": int((n_children == 0).sum()),
        # Sorted, so what all share is what no neighbours differ in.
        "n_shared_by_all": int(lcp[1:].min()) if len(lcp) > 1 else int(lengths[0]),
        "longest": int(lengths.max()),
        "deepest": int(nodes.level.max()) + 1 if len(nodes) else 0,
    }


def _tables(plan: Plan, source: ExportSource) -> Iterator[tuple[int, pa.Table, Written]]:
    for low, high, sequences, groups in groups_of(plan, source):
        rows = []
        for index in groups:
            steps = plan.steps.slice(low + int(index[0]), len(index))
            head = {"prompt_uid": steps["prompt_uid"][0].as_py(), "group": steps["group"][0].as_py()}
            n_trajectories = len(np.unique(steps["trajectory"].to_numpy()))
            numbers = _statistics(sequences, index, plan.recipe.token_budget)
            rows.append({**head, "n_trajectories": n_trajectories, **numbers})
        n_tokens = sum(row["n_tokens"] for row in rows)
        yield high, pa.Table.from_pylist(rows, SCHEMA), Written(len(rows), n_tokens, 0)


def write(plan: Plan, source: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Write the file, some groups at a time."""
    return write_row_groups(sink, SCHEMA, _tables(plan, source), len(plan.steps), progress)


def read(data: bytes, settings: Mapping[str, str]) -> Iterator[Row]:
    """The groups, as fields."""
    for row in parquet_rows(data):
        yield Row(fields=row)


def load_command(name: str) -> str:
    """A command that shows the rows with DuckDB."""
    return f"python -c \"import duckdb; print(duckdb.read_parquet('{name}'))\""


EXPORTER = Exporter(
    name="group_statistics",
    title="Tree statistics per group (parquet)",
    description="Each prompt group's prefix tree in numbers: tokens before and after sharing, trees within the token "
    "budget, attention pairs, nodes, branches, leaves, common prefix. No tokens",
    suffix=".parquet",
    write=write,
    read=read,
    load_command=load_command,
    by_group=True,
)
