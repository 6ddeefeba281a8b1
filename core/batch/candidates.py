"""The candidate steps of a plan as numpy arrays in plan order.

Plan order: prompt groups by their first step's time, then uid; trajectories within a group by their first step's
time, then uid; steps by index, then time, then uid. It is taken over all candidates, before anything is
excluded, so a label never reorders a plan. Each trajectory's steps and each group's trajectories are contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from core.credit.base import Bools, Floats, Ints

COLUMNS = (
    "step_uid", "trajectory_uid", "prompt_uid", "step_index", "created_at", "token_source", "call_kind",
    "transition", "n_prompt_tokens", "n_response_tokens", "policy_version", "reward", "quality", "trainable",
    "trajectory_reward", "trajectory_quality", "complete",
)  # fmt: skip
"""What ``Pool.plan_rows`` gives; more columns are ignored."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """n steps of m trajectories of g groups, in plan order.

    Attributes:
        rows: the pool's columns, reordered.
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
    """Sort the pool's rows into plan order and number trajectories and groups."""
    trajectory, trajectory_uids = _codes(rows["trajectory_uid"])
    group, prompt_uids = _codes(rows["prompt_uid"])
    created = rows["created_at"].cast(pa.int64()).to_numpy()
    step_index = rows["step_index"].to_numpy()
    first_of_trajectory = _first(trajectory, created, len(trajectory_uids))
    first_of_group = _first(group, created, len(prompt_uids))
    group_place = _place(first_of_group, prompt_uids)
    trajectory_place = _place(first_of_trajectory, trajectory_uids)
    keys = (created, step_index, trajectory_place[trajectory], group_place[group])
    order = np.lexsort(keys)
    same = np.ones(max(0, len(order) - 1), dtype=np.bool_)
    for key in keys:
        same &= np.diff(key[order]) == 0
    if same.any():  # steps of one trajectory with equal index and time: their uid decides
        uid_place = np.argsort(np.argsort(rows["step_uid"].to_numpy(zero_copy_only=False), kind="stable"))
        order = np.lexsort((uid_place, *keys))

    ordered = trajectory[order]
    starts = np.flatnonzero(np.append(True, np.diff(ordered) != 0)) if len(ordered) else np.zeros(0, np.int64)
    number = np.cumsum(np.bincount(starts, minlength=len(ordered))[: len(ordered)]) - 1
    group_code = group[order][starts]
    group_starts = np.flatnonzero(np.append(True, np.diff(group_code) != 0)) if len(starts) else starts
    group_number = np.cumsum(np.bincount(group_starts, minlength=len(starts))[: len(starts)]) - 1
    return Candidates(
        rows=rows.take(order),
        trajectory=number.astype(np.int64),
        group=group_number.astype(np.int64),
        first=starts.astype(np.int64),
        trajectory_uids=trajectory_uids.take(pa.array(ordered[starts])),
        prompt_uids=prompt_uids.take(pa.array(group_code[group_starts])),
    )


def _codes(column: pa.ChunkedArray) -> tuple[Ints, pa.Array]:
    encoded = pa.chunked_array([column.combine_chunks()]).dictionary_encode().combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.chunk(0) if encoded.num_chunks else pa.array([], pa.string()).dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary


def _first(codes: Ints, created: Ints, n: int) -> Ints:
    first = np.full(n, np.iinfo(np.int64).max, dtype=np.int64)
    np.minimum.at(first, codes, created)
    return first


def _place(first: Ints, uids: pa.Array) -> Ints:
    """Place of each code when sorted by first time, then uid: int64 [n_codes]."""
    by_uid: NDArray[np.int64] = pc.array_sort_indices(uids).to_numpy().astype(np.int64)
    order = by_uid[np.argsort(first[by_uid], kind="stable")]
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return place
