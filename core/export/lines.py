"""JSON lines made of training rows or of conversations, written as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from core.batch.plan import Plan
from core.batch.rows import Rows, training_rows
from core.errors import InvalidInput
from core.export.base import ExportSource, Progress, Sink, Written, merged

Line = Callable[[Rows, int, slice], Mapping[str, Any]]
"""(rows, number of the row, where it stands in the flat arrays) -> the object."""

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE


def write_lines(
    plan: Plan, pool: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress, line: Line
) -> Written:
    """Stream one line per row; NaN becomes null."""
    n_rows = n_tokens = n_loss = 0
    for rows in training_rows(plan, pool, merge=merged(settings)):
        for i, at in enumerate(rows.slices()):
            sink.write(orjson.dumps(line(rows, i, at), option=_OPTIONS))
        n_rows, n_tokens, n_loss = n_rows + len(rows), n_tokens + len(rows.ids), n_loss + int(rows.loss.sum())
        progress(rows.done, len(plan.steps))
    return Written(n_rows, n_tokens, n_loss)


def write_conversations(
    plan: Plan,
    pool: ExportSource,
    sink: Sink,
    progress: Progress,
    lines: Callable[[list[dict[str, Any]]], Iterable[Mapping[str, Any]]],
) -> Written:
    """Stream the lines that ``lines`` makes of each trajectory's chosen steps, messages included."""
    n_rows = done = 0
    owners = plan.steps["trajectory_uid"].to_pylist()
    for trajectory_uid, part in groupby(zip(owners, plan.step_uids, strict=True), key=lambda pair: pair[0]):
        chosen = {uid for _, uid in part}
        steps = [step for step in pool.trajectory(trajectory_uid)["steps"] if step["step_uid"] in chosen]
        for line in lines(steps):
            sink.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
            n_rows += 1
        done += len(chosen)
        progress(done, len(owners))
    return Written(n_rows, plan.counts["n_tokens"], plan.counts["n_loss_tokens"])


def known(values: NDArray[np.float32], what: str, hint: str) -> NDArray[np.float32]:
    """``values``, all of them known. InvalidInput otherwise: the format has no way to say unknown, and 0 is a lie."""
    if np.isnan(values).any():
        raise InvalidInput(f"{what} of a step are unknown, and the format can't say so", field="recipe", hint=hint)
    return values


def logprobs_of(rows: Rows, at: slice) -> NDArray[np.float32]:
    """float32 [L], log μ where there is loss, 0 elsewhere; all known."""
    scores = np.where(rows.loss[at], rows.logprobs[at], np.float32(0))
    return known(scores, "log-probs", "choose an algorithm that needs them, or a supervised format")


def advantages_of(rows: Rows, at: slice) -> NDArray[np.float32]:
    """float32 [L], advantages where there is loss, 0 elsewhere; all assigned."""
    values = np.where(rows.loss[at], rows.advantages[at], np.float32(0))
    return known(values, "advantages", "choose an algorithm that assigns them")


def of_last_step(plan: Plan, rows: Rows, name: str) -> list[Any]:
    """A column of ``Plan.steps`` at each row's last step: [r]."""
    values: list[Any] = plan.steps[name].take(pa.array(rows.last_step)).to_pylist()
    return values


def loss_ranges(loss: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Where runs of loss begin and end: int64 [k, 2], half open."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], loss, [False]]).astype(np.int8)))
    return edges.reshape(-1, 2).astype(np.int64)
