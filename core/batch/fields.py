"""Producers' credit fields of a plan's steps as arrays, and whether a trajectory's steps form a chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from core.batch.candidates import Candidates
from core.credit.types import Bools, CreditInput, Floats, Ints
from core.types import CallKind


@dataclass(frozen=True, slots=True, eq=False)
class StepFields:
    """Fields of the steps that were read.

    Attributes:
        rows: int64 [k], candidate rows, rising.
        table: [k] rows of ``pool.training.step_fields``.
        names: the requested fields.
    """

    rows: Ints
    table: pa.Table
    names: Sequence[str] = field(default=())

    def _take(self, steps: Ints, name: str) -> pa.Array | None:
        if name not in self.table.column_names:
            return None
        column = self.table[name].combine_chunks().take(pa.array(np.searchsorted(self.rows, steps)))
        return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column

    def numbers(self, steps: Ints, name: str) -> Floats | None:
        """float64 per step, NaN where unknown; None when not requested."""
        column = self._take(steps, name)
        return None if column is None else column.cast(pa.float64()).to_numpy(zero_copy_only=False)

    def tokens(self, steps: Ints, name: str, n_response: Ints) -> Floats | None:
        """float64 per response token; NaN for all of a step whose list is absent or of another length."""
        column = self._take(steps, name)
        if column is None:
            return None
        lengths = column.value_lengths().fill_null(-1).to_numpy(zero_copy_only=False)
        flat = column.flatten().to_numpy(zero_copy_only=False).astype(np.float64)
        fits = lengths == n_response
        starts = np.cumsum(np.maximum(lengths, 0)) - np.maximum(lengths, 0)
        result = np.full(int(n_response.sum()), np.nan)
        source = np.repeat(starts - (np.cumsum(n_response) - n_response), n_response) + np.arange(len(result))
        good = np.repeat(fits, n_response)
        result[good] = flat[source[good]]
        return result

    def texts(self, steps: Ints) -> list[str | None] | None:
        """Anchors; None when not requested."""
        for name in ("anchor", "observation"):
            column = self._take(steps, name)
            if column is not None:
                values: list[str | None] = column.to_pylist()
                return values
        return None

    def greedy(self, steps: Ints) -> Bools | None:
        """bool per step; None when not requested."""
        column = self._take(steps, "greedy")
        return None if column is None else column.fill_null(False).to_numpy(zero_copy_only=False).astype(np.bool_)


def baselines(candidates: Candidates, alive: Ints, fields: StepFields) -> tuple[Floats, Bools]:
    """Greedy baseline float64 [m] and greedy trajectories bool [m], over the candidates' trajectories.

    A trajectory's own ``reward_baseline`` (its first known), else its group's mean greedy reward.
    """
    m, n_groups = len(candidates.group), len(candidates.prompt_uids)
    greedy = np.zeros(m, dtype=np.bool_)
    baseline = np.full(m, np.nan)
    flags, step_baselines = fields.greedy(alive), fields.numbers(alive, "baseline")
    assert flags is not None and step_baselines is not None
    greedy[candidates.trajectory[alive[flags]]] = True
    known = alive[~np.isnan(step_baselines)][::-1]
    baseline[candidates.trajectory[known]] = step_baselines[~np.isnan(step_baselines)][::-1]
    reward = candidates.numbers("trajectory_reward")[candidates.first]
    counted = np.flatnonzero(greedy & ~np.isnan(reward))
    n = np.bincount(candidates.group[counted], minlength=n_groups)
    total = np.bincount(candidates.group[counted], weights=reward[counted], minlength=n_groups)
    mean = np.where(n > 0, total / np.maximum(n, 1), np.nan)[candidates.group]
    return np.where(np.isnan(baseline), mean, baseline), greedy & np.isnan(baseline)


def broken_chains(candidates: Candidates, alive: Bools) -> Bools:
    """Trajectories that lack a main step, counted from index 0: bool [m].

    Auxiliary, retry and sub-agent calls are no part of the chain. A step outside the view counts as missing.
    """
    m = len(candidates.group)
    main = np.ones(candidates.n_steps, dtype=np.bool_)
    if "call_kind" in candidates.rows.column_names:
        main = candidates.is_in("call_kind", frozenset({CallKind.MAIN.value}))
    lost = np.bincount(candidates.trajectory[main & ~alive], minlength=m) > 0
    index = candidates.numbers("step_index")
    last = np.full(m, -1.0)
    np.maximum.at(last, candidates.trajectory, index)
    distinct = np.ones(candidates.n_steps, dtype=np.bool_)
    distinct[1:] = (np.diff(index) != 0) | (np.diff(candidates.trajectory) != 0)
    seen = np.bincount(candidates.trajectory[distinct], minlength=m)
    broken: Bools = lost | (seen != last + 1)
    return broken


def with_fields(batch: CreditInput, steps: Ints, fields: StepFields | None, n_response: Ints) -> dict[str, object]:
    """The optional arrays of a ``CreditInput`` for these candidate rows."""
    if fields is None:
        return {}
    return {
        "value": fields.numbers(steps, "value"),
        "token_value": fields.tokens(steps, "token_values", n_response),
        "token_logprob": fields.tokens(steps, "logprobs", n_response),
        "teacher_logprob": fields.tokens(steps, "teacher_logprobs", n_response),
        "anchor": fields.texts(steps),
    }
