"""The rows of an export before it is written: the format's own writer fills memory, its own reader reads them back.

There is no second way to make a row. A plan of up to ``MAX_TOKENS`` tokens is written whole, so its rows are those of
the file. Of a larger plan some of the prompt groups are written; numbers of rows and packing are then those of a file
of these groups alone.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from core.batch.plan import Plan
from core.errors import InvalidInput
from core.export.base import Exporter, ExportPool, Written, checked_source
from core.export.reading import Row
from core.export.sink import Sink

MAX_TOKENS = 500_000
"""Tokens that a preview writes. A group is never split, so one large group may exceed it."""


@dataclass(frozen=True, slots=True, eq=False)
class Preview:
    """Rows of an export.

    Attributes:
        rows: in the file's order.
        written: their counts, and the differences that are known only after writing.
        first_group, n_groups: the plan's groups in the preview.
        is_whole: whether these are all groups, and so all rows of the file.
    """

    rows: list[Row]
    written: Written
    first_group: int
    n_groups: int
    is_whole: bool


def preview(
    exporter: Exporter,
    plan: Plan,
    pool: ExportPool,
    options: Mapping[str, Any],
    *,
    first_group: int = 0,
    max_tokens: int = MAX_TOKENS,
) -> Preview:
    """Write groups of a plan to memory and read them back.

    Args:
        exporter: the format.
        plan: the plan.
        pool: source of tokens and messages.
        options: the format's options by name.
        first_group: the group to begin with, from 0, in plan order; for plans with more than ``max_tokens``.
        max_tokens: tokens to write at most, but at least one group.

    Raises:
        InvalidInput: what ``export`` refuses: the plan is empty, an option is invalid, a value is missing; or there is
            no such group.
    """
    settings, source = exporter.settings(options), checked_source(exporter, plan, pool)
    group = plan.trajectories["group"].to_numpy().astype(np.int64)
    n_tokens = plan.trajectories["n_tokens"].to_numpy().astype(np.int64)
    # Groups are contiguous in a plan.
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    if int(n_tokens.sum()) <= max_tokens:
        chosen, first, n_groups = plan, 0, len(starts)
    else:
        if not 0 <= first_group < len(starts):
            raise InvalidInput(f"no group {first_group}", field="first_group", hint=f"0 to {len(starts) - 1}")
        per_group = np.add.reduceat(n_tokens, starts)[first_group:]
        first, n_groups = first_group, max(int(np.searchsorted(np.cumsum(per_group), max_tokens, side="right")), 1)
        ends = [*starts.tolist(), len(group)]
        chosen = _part(plan, ends[first], ends[first + n_groups])
    memory = io.BytesIO()
    with Sink(memory) as sink:
        written = exporter.write(chosen, source, sink, settings, lambda done, total: None)
    rows = list(exporter.read(memory.getvalue(), settings))
    return Preview(rows, written, first, n_groups, n_groups == len(starts))


def _part(plan: Plan, low: int, high: int) -> Plan:
    """The trajectories ``[low, high)`` of a plan, with the pairs among them."""
    part = plan.part(range(low, high))
    if plan.pairs is None:
        return part
    pairs = plan.pairs.filter(pc.and_(pc.greater_equal(plan.pairs["chosen"], low), pc.less(plan.pairs["chosen"], high)))
    for name in ("chosen", "rejected"):
        place = pairs.schema.get_field_index(name)
        pairs = pairs.set_column(place, name, pc.subtract(pairs[name], pa.scalar(low, pairs[name].type)))
    return replace(part, pairs=pairs)
