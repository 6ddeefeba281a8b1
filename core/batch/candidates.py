"""The candidate steps of a plan as numpy arrays in plan order.

Plan order is the pool's (``pool.training.plan_rows``): prompt groups by the start of their first trajectory, then uid;
trajectories within a group by start, then uid; steps by index, then arrival. A label never reorders a plan.
Each trajectory's steps and each group's trajectories are contiguous, so comparing neighbours numbers them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from core.credit.types import Bools, Floats, Ints

COLUMNS = (
    "step_id", "step_uid", "trajectory_uid", "prompt_uid", "step_index", "token_source", "n_prompt_tokens",
    "n_response_tokens", "policy_version", "reward", "quality", "trainable", "trajectory_reward",
    "trajectory_quality", "complete",
)  # fmt: skip
"""Columns of ``pool.training.plan_rows`` that a plan reads."""
SPARSE = 16
"""If the range of step ids has so many per candidate, rows are found by a search and not in an array."""
OPTIONAL = ("call_kind", "is_last", "uncertain")
"""Read where present; more columns are ignored."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """n steps of m trajectories of g groups, in plan order.

    Attributes:
        rows: the pool's columns, ``COLUMNS``.
        trajectory: int64 [n], trajectory of each step, 0..m-1, rising.
        group: int64 [m], group of each trajectory, 0..g-1, rising.
        first: int64 [m], row of each trajectory's first step.
        trajectory_uids: [m].
        prompt_uids: [g].
    """

    rows: pa.Table
    trajectory: Ints
    group: Ints
    first: Ints
    trajectory_uids: pa.StringArray
    prompt_uids: pa.StringArray

    @property
    def n_steps(self) -> int:
        """Candidate steps."""
        return len(self.trajectory)

    @property
    def step_ids(self) -> Ints:
        """The pool's number of each step: int64 [n]."""
        column: Ints = self.rows["step_id"].to_numpy()
        return column

    def rows_of(self, step_ids: pa.ChunkedArray) -> Ints:
        """The row of each of these steps (int64 [k]), -1 for null and for steps that are no candidates: int64 [k]."""
        own, wanted = self.step_ids, pc.fill_null(step_ids, -1).to_numpy()
        if not len(own):
            return np.full(len(wanted), -1, dtype=np.int64)
        low, high = int(own.min()), int(own.max())
        if high - low >= SPARSE * len(own):
            order = np.argsort(own)
            at = order[np.minimum(np.searchsorted(own, wanted, sorter=order), len(own) - 1)]
            return np.where(own[at] == wanted, at, -1)
        row_of = np.full(high - low + 1, -1, dtype=np.int64)
        row_of[own - low] = np.arange(len(own))
        known = (wanted >= low) & (wanted <= high)
        return np.where(known, row_of[np.where(known, wanted - low, 0)], -1)

    def numbers(self, name: str) -> Floats:
        """A numeric column, float64 [n], NaN where unknown."""
        column: Floats = self.rows[name].cast(pa.float64()).to_numpy()
        return column

    def flags(self, name: str) -> Bools:
        """A boolean column, [n]; unknown is False."""
        column: Bools = pc.fill_null(self.rows[name], False).to_numpy().astype(np.bool_)
        return column

    def is_in(self, name: str, values: frozenset[str]) -> Bools:
        """Where a text column has one of these values, [n]; unknown is False."""
        column: Bools = pc.is_in(self.rows[name], pa.array(sorted(values), pa.string())).to_numpy()
        return column.astype(np.bool_)


def candidates(rows: pa.Table) -> Candidates:
    """Number the trajectories and groups of the pool's rows, which come in plan order."""
    present = [name for name in OPTIONAL if name in rows.column_names]
    rows = rows.select([*COLUMNS, *present]).combine_chunks()
    trajectory_starts, group_starts = (_starts(rows[name]) for name in ("trajectory_uid", "prompt_uid"))
    begins = trajectory_starts | group_starts
    first = np.flatnonzero(begins)
    group_begins = group_starts[first]
    return Candidates(
        rows=rows,
        trajectory=np.cumsum(begins, dtype=np.int64) - 1,
        group=np.cumsum(group_begins, dtype=np.int64) - 1,
        first=first,
        trajectory_uids=as_text(_flat(rows["trajectory_uid"]).take(pa.array(first))),
        prompt_uids=as_text(_flat(rows["prompt_uid"]).take(pa.array(first[group_begins]))),
    )


def as_text(column: pa.Array) -> pa.StringArray:
    """A text column without a dictionary."""
    return column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column


def _flat(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays([pa.array([], column.type), *column.chunks])


def _starts(column: pa.ChunkedArray) -> Bools:
    """Where a value differs from the one before it: bool [n], the first is True."""
    flat = _flat(column)
    if pa.types.is_dictionary(flat.type):
        flat = flat.indices
    starts = np.ones(len(flat), dtype=np.bool_)
    if len(flat) > 1:
        starts[1:] = pc.not_equal(flat[1:], flat[:-1]).to_numpy(zero_copy_only=False)
    return starts
