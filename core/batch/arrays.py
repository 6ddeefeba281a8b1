"""A plan's steps as Arrow tables for trainers: one row per step, a bounded number of tokens per table.

Unknown is null, never 0: a step without log-probs has a null list, a token without one a null element.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from core.batch.layout import TokenReader, chunks
from core.batch.result import Plan
from core.credit.types import Ints
from core.tree.sequences import ragged_index

CHUNK_TOKENS = 4_000_000
"""Tokens per table; building one takes some tens of MB."""

SCHEMA = pa.schema(
    {
        "step_uid": pa.string(),
        "trajectory_uid": pa.string(),
        "prompt_uid": pa.string(),
        "group": pa.int32(),
        "trajectory": pa.int32(),
        "step_index": pa.int32(),
        "prompt_ids": pa.list_(pa.int32()),
        "response_ids": pa.list_(pa.int32()),
        "response_logprobs": pa.list_(pa.float32()),
        "response_mask": pa.list_(pa.int8()),
        "reward": pa.float64(),
        "trajectory_reward": pa.float64(),
        "advantage": pa.float64(),
        "return": pa.float64(),
        "token_advantages": pa.list_(pa.float32()),
        "token_returns": pa.list_(pa.float32()),
        "policy_version": pa.int64(),
        "token_source": pa.string(),
    }
)
"""``group`` and ``trajectory`` count from 0 within the plan. ``advantage`` is null where it differs by token:
``token_advantages`` then has one value per response token, and is null otherwise. ``response_mask`` is 0 on sampled
tokens that no loss may count, such as redacted ones; null: all may be in the loss."""

TOKEN_COLUMNS = ("prompt_ids", "response_ids", "response_logprobs", "response_mask")


def trajectory_ranges(plan: Plan) -> Iterator[tuple[int, int]]:
    """Ranges of plan steps of whole trajectories, about ``CHUNK_TOKENS`` tokens each.

    A range that holds the end of a prompt group ends with a group. So a part of the plan that begins where a range
    begins has the ranges of the plan, and its rows are written to the same bytes (``core.export.dataset``).
    """
    ends = np.cumsum(plan.trajectories["n_steps"].to_numpy().astype(np.int64))
    yield from chunks(plan.lengths, ends, CHUNK_TOKENS, stops=ends[group_ends(plan) - 1])


def group_ranges(plan: Plan) -> Iterator[tuple[int, int]]:
    """``trajectory_ranges`` put together to ranges of whole prompt groups; those of a part are those of the plan."""
    ends = np.cumsum(plan.trajectories["n_steps"].to_numpy().astype(np.int64))
    borders = set(ends[group_ends(plan) - 1].tolist())
    begin = 0
    for _, high in trajectory_ranges(plan):
        if high in borders:
            yield begin, high
            begin = high


def group_ends(plan: Plan) -> Ints:
    """Number of trajectories up to the end of each prompt group, in plan order: int64 [g]."""
    group = plan.trajectories["group"].to_numpy()
    ends: Ints = np.append(np.flatnonzero(np.diff(group)) + 1, len(group)).astype(np.int64)
    return ends[ends > 0]


def step_tables(plan: Plan, reader: TokenReader) -> Iterator[pa.Table]:
    """The plan's steps in plan order, tables of ``SCHEMA``."""
    for low, high in trajectory_ranges(plan):
        yield step_table(plan, reader, low, high)


def step_table(plan: Plan, reader: TokenReader, low: int, high: int) -> pa.Table:
    """Steps ``[low, high)`` of the plan, ``SCHEMA``."""
    rows = plan.steps.slice(low, high - low)
    sequences = reader.sequences(plan.step_uids[low:high])
    n_prompt, n_response = sequences.n_prompt, sequences.n_response
    response = sequences.response_index()
    scores = (
        np.full(len(response), np.nan, dtype=np.float32) if sequences.logprobs is None else sequences.logprobs[response]
    )
    known = np.bincount(np.repeat(np.arange(high - low), n_response), ~np.isnan(scores), minlength=high - low) > 0
    prompt = sequences.ids[ragged_index(sequences.offsets[:-1], n_prompt)]
    counted = np.ones(len(response), np.int8) if sequences.masked is None else ~sequences.masked[response]
    dropped = np.bincount(np.repeat(np.arange(high - low), n_response), counted == 0, minlength=high - low) > 0
    columns: dict[str, Any] = {
        "prompt_ids": list_column(prompt, n_prompt, pa.int32(), known=n_response > 0),
        "response_ids": list_column(sequences.ids[response], n_response, pa.int32(), known=n_response > 0),
        "response_logprobs": list_column(scores, n_response, pa.float32(), known=known),
        "response_mask": list_column(counted.astype(np.int8), n_response, pa.int8(), known=dropped),
    }
    for field in SCHEMA:
        if field.name not in columns:
            present = field.name in rows.column_names
            columns[field.name] = rows[field.name].cast(field.type) if present else pa.nulls(len(rows), field.type)
    columns["trajectory"] = pc.add(columns["trajectory"], pa.scalar(plan.first_trajectory, pa.int32()))
    return pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def list_column(
    values: NDArray[Any], lengths: Ints, kind: pa.DataType, *, known: NDArray[np.bool_] | None = None
) -> Any:
    """A flat array cut into a list column; NaN becomes null, and lists that aren't ``known`` become null.

    Args:
        values: [sum(lengths)].
        lengths: int64 [n].
        kind: Arrow type of the elements.
        known: bool [n]; None: all are known.
    """
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)]).astype(np.int32)
    floats = np.issubdtype(values.dtype, np.floating)
    flat = pa.array(values, kind, mask=np.isnan(values) if floats else None)
    mask = None if known is None else pa.array(~known)
    return pa.ListArray.from_arrays(pa.array(offsets), flat, mask=mask)
