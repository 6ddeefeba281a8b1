"""A plan's steps as training rows: token ids with a mask, log-probs and advantages of equal length.

``merge=step``: one row per chosen step. ``merge=trajectory``: a step whose prompt begins with the whole row so far,
token for token (transition ``extends``), continues that row, so shared context occurs once and every chosen
response keeps its loss; a step that doesn't continue any row of its trajectory begins a new one::

    steps   [1 2] 3        [1 2 3 4] 5 6
    row      1 2  3  4  5 6
    loss     0 0  1  0  1 1
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from core.batch.ahead import ahead
from core.batch.arrays import trajectory_ranges
from core.batch.layout import TokenReader
from core.batch.result import Plan
from core.credit.types import Bools, Ints
from core.tree.sequences import Float32, Int32, Sequences, ragged_index


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """r training rows of m tokens in all.

    Attributes:
        ids: int32 [m], all rows one after another.
        offsets: int64 [r + 1], row i is ``ids[offsets[i]:offsets[i + 1]]``.
        loss: bool [m], True on the sampled tokens of chosen steps, except redacted ones.
        logprobs: float32 [m], log μ(token) in nats where ``loss``; NaN elsewhere and where unknown.
        advantages: float32 [m], where ``loss``; NaN elsewhere and where unassigned.
        n_prompt: int64 [r], tokens before the first with loss.
        first_step, last_step: int64 [r], places in the plan of the first and last step in the row.
        trajectory, group: int64 [r], numbers in the plan.
        steps: int64 [k], places in the plan of all steps in rows, row by row.
        begins: int64 [k], where in the flat arrays each step's response begins.
        n_response: int64 [k], how many tokens it has.
        parent: int64 [r], an earlier row that begins with the same ``n_shared`` tokens; -1: none is known.
        n_shared: int64 [r], 0 where ``parent`` is -1. The two may share more.
        done: steps of the plan that are in rows, counted from its beginning.
    """

    ids: Int32
    offsets: Ints
    loss: Bools
    logprobs: Float32
    advantages: Float32
    n_prompt: Ints
    first_step: Ints
    last_step: Ints
    trajectory: Ints
    group: Ints
    steps: Ints
    begins: Ints
    n_response: Ints
    parent: Ints
    n_shared: Ints
    done: int

    def __len__(self) -> int:
        return len(self.n_prompt)

    @property
    def lengths(self) -> Ints:
        """Tokens of each row: int64 [r]."""
        return np.diff(self.offsets)

    @property
    def row_of_step(self) -> Ints:
        """Row of each of ``steps``: int64 [k]."""
        row_of_step: Ints = np.searchsorted(self.offsets, self.begins, side="right") - 1
        return row_of_step

    def by_token(self, values: NDArray[Any], context: Any) -> NDArray[Any]:
        """Spread one value per step of the plan to its sampled tokens: [m]; ``context`` elsewhere."""
        out = np.full(len(self.ids), context, dtype=values.dtype)
        out[ragged_index(self.begins, self.n_response)] = np.repeat(values[self.steps], self.n_response)
        return out

    def slices(self) -> Iterator[slice]:
        """Each row's slice of the flat arrays."""
        return (slice(a, b) for a, b in pairwise(self.offsets.tolist()))


def training_rows(plan: Plan, reader: TokenReader, *, merge: bool) -> Iterator[Rows]:
    """The plan's rows in plan order, a bounded number of tokens at a time; trajectories are not split.

    The next are read in a thread while the caller works on those before.
    """
    ranges = list(trajectory_ranges(plan))
    parts = _rows_of(ranges, plan, reader, merge=merge)
    return parts if len(ranges) < 2 else ahead(parts)


def _rows_of(ranges: Sequence[tuple[int, int]], plan: Plan, reader: TokenReader, *, merge: bool) -> Iterator[Rows]:
    token_level = "token_advantages" in plan.steps.column_names
    for low, high in ranges:
        steps = plan.steps.slice(low, high - low)
        sequences = reader.sequences(plan.step_uids[low:high])
        trajectory, group = (steps[name].to_numpy().astype(np.int64) for name in ("trajectory", "group"))
        per_token = _flat(steps["token_advantages"]) if token_level else None
        advantage = steps["advantage"].cast(pa.float64()).to_numpy().astype(np.float32)
        layout = _span_rows(sequences, _merged(sequences, trajectory)) if merge else _step_rows(sequences)
        first, last = layout.first, layout.last
        loss, logprobs, advantages = _scores(sequences, layout, advantage, per_token)
        yield Rows(
            ids=layout.ids,
            offsets=layout.offsets,
            loss=loss,
            logprobs=logprobs,
            advantages=advantages,
            n_prompt=sequences.n_prompt[first],
            first_step=first + low,
            last_step=last + low,
            trajectory=trajectory[last],
            group=group[last],
            steps=layout.steps + low,
            begins=layout.begins,
            n_response=layout.n_response,
            parent=layout.parent,
            n_shared=layout.n_shared,
            done=high,
        )


@dataclass(slots=True)
class _Span:
    """An unfinished row: the sequence that contains all of it, and the steps whose responses it contains."""

    sequence: int
    steps: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class _RowLayout:
    """The layout of rows: fields as in ``Rows``, steps numbered as the sequences."""

    ids: Int32
    offsets: Ints
    first: Ints
    last: Ints
    steps: Ints
    begins: Ints
    n_response: Ints
    parent: Ints
    n_shared: Ints


def _merged(sequences: Sequences, trajectory: Ints) -> list[_Span]:
    borders = np.flatnonzero(np.diff(trajectory, prepend=-1, append=-1)).tolist()
    return [row for low, high in pairwise(borders) for row in _merged_trajectory(sequences, low, high)]


def _merged_trajectory(sequences: Sequences, low: int, high: int) -> list[_Span]:
    """Rows of one trajectory's steps ``[low, high)``. A step that continues several rows extends the longest."""
    rows: list[_Span] = []
    for i in range(low, high):
        ids, n_prompt = sequences.sequence(i), int(sequences.n_prompt[i])
        best: _Span | None = None
        for row in rows:
            before = sequences.sequence(row.sequence)
            longer = best is None or len(before) > len(sequences.sequence(best.sequence))
            if longer and len(before) <= n_prompt and np.array_equal(ids[: len(before)], before):
                best = row
        if best is None:
            best = _Span(i)
            rows.append(best)
        best.sequence = i
        best.steps.append(i)
    return rows


def _step_rows(sequences: Sequences) -> _RowLayout:
    """A row for each sequence, without copying."""
    every = np.arange(len(sequences), dtype=np.int64)
    none = np.full(len(sequences), -1, dtype=np.int64)
    before = none if sequences.parent is None else np.where(sequences.parent < every, sequences.parent, -1)
    n_shared = np.zeros_like(every) if sequences.n_shared is None else np.where(before >= 0, sequences.n_shared, 0)
    return _RowLayout(
        ids=sequences.ids,
        offsets=sequences.offsets,
        first=every,
        last=every,
        steps=every,
        begins=sequences.offsets[:-1] + sequences.n_prompt,
        n_response=sequences.n_response,
        parent=before,
        n_shared=n_shared,
    )


def _span_rows(sequences: Sequences, spans: list[_Span]) -> _RowLayout:
    """A row for each span."""
    chosen = np.array([span.sequence for span in spans], dtype=np.int64)
    lengths = sequences.lengths[chosen]
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
    counts = np.array([len(span.steps) for span in spans], dtype=np.int64)
    steps = np.array([i for span in spans for i in span.steps], dtype=np.int64)
    row = np.repeat(np.arange(len(spans)), counts)
    first, last = (np.array([span.steps[k] for span in spans], dtype=np.int64) for k in (0, -1))
    return _RowLayout(
        ids=sequences.ids[ragged_index(sequences.offsets[:-1][chosen], lengths)],
        offsets=offsets,
        first=first,
        last=last,
        steps=steps,
        begins=offsets[:-1][row] + sequences.n_prompt[steps],
        n_response=sequences.n_response[steps],
        parent=np.full(len(spans), -1, dtype=np.int64),
        n_shared=np.zeros(len(spans), dtype=np.int64),
    )


def _scores(
    sequences: Sequences, layout: _RowLayout, advantage: Float32, per_token: Float32 | None
) -> tuple[Bools, Float32, Float32]:
    """``Rows.loss``, ``Rows.logprobs`` and ``Rows.advantages``."""
    at = ragged_index(layout.begins, layout.n_response)
    source = ragged_index(sequences.offsets[:-1][layout.steps] + sequences.n_prompt[layout.steps], layout.n_response)
    loss = np.zeros(len(layout.ids), dtype=np.bool_)
    loss[at] = True if sequences.masked is None else ~sequences.masked[source]
    logprobs, advantages = (np.full(len(layout.ids), np.nan, dtype=np.float32) for _ in range(2))
    if sequences.logprobs is not None:
        logprobs[at] = sequences.logprobs[source]
    if per_token is None:
        advantages[at] = np.repeat(advantage[layout.steps], layout.n_response)
    else:
        first = np.cumsum(sequences.n_response) - sequences.n_response
        advantages[at] = per_token[ragged_index(first[layout.steps], layout.n_response)]
    if sequences.masked is not None:
        advantages[at[sequences.masked[source]]] = np.nan
    return loss, logprobs, advantages


def _flat(column: pa.ChunkedArray) -> Float32:
    values: Float32 = column.combine_chunks().flatten().to_numpy(zero_copy_only=False).astype(np.float32)
    return values
