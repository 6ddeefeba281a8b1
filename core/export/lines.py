"""Shared code of JSON-lines formats: streams training rows or conversations, and describes common differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from core.batch.plan import Plan
from core.batch.rows import Rows, training_rows
from core.errors import InvalidInput
from core.export.base import Difference, ExportSource, Progress, Written, merged
from core.export.sampled import Responses
from core.export.sink import Piece, Sink


@dataclass(frozen=True, slots=True)
class JsonList:
    """A JSON list in pieces of text, with a comma after each number."""

    pieces: Sequence[Piece]


Line = Callable[[int], Mapping[str, Any]]
"""Number of the row -> its object: JSON values and ``JsonList``."""

Lines = tuple[list[Mapping[str, Any]], dict[str, str]]
"""(JSON objects, step uid -> reason if the step is in no object or in no loss)."""


def write_lines(
    plan: Plan,
    source: ExportSource,
    sink: Sink,
    settings: Mapping[str, str],
    progress: Progress,
    lines: Callable[[Rows], Line],
) -> Written:
    """Stream one line per row."""
    n_rows = n_tokens = n_loss = n_first = 0
    for rows in training_rows(plan, source, merge=merged(settings)):
        line = lines(rows)
        for i in range(len(rows)):
            _write_object(sink, line(i))
        n_rows, n_tokens, n_loss = n_rows + len(rows), n_tokens + len(rows.ids), n_loss + int(rows.loss.sum())
        n_first += n_unpredicted(rows)
        progress(rows.done, len(plan.steps))
    return Written(n_rows, n_tokens, n_loss - n_first, (UNPREDICTED,) if n_first else ())


def _write_object(sink: Sink, values: Mapping[str, Any]) -> None:
    between = b"{"
    for name, value in values.items():
        sink.write(between + orjson.dumps(name) + b":")
        between = b","
        if isinstance(value, JsonList):
            sink.write(b"[")
            for piece in value.pieces[:-1]:
                sink.write(piece)
            # Remove the comma after the last number.
            sink.write(value.pieces[-1][:-1] if value.pieces else b"")
            sink.write(b"]")
        else:
            sink.write(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY))
    sink.write(b"}\n")


ZERO = b"0.0,"
"""The value on context, in JSON."""

UNPREDICTED = Difference(
    "The first sampled token of a row without a prompt is in no loss: nothing predicts it",
    "view where: n_prompt_tokens > 0",
)


def n_unpredicted(rows: Rows) -> int:
    """Number of rows whose first token is in the loss."""
    return int(rows.loss[rows.offsets[:-1]].sum())


def write_conversations(
    plan: Plan,
    source: ExportSource,
    sink: Sink,
    progress: Progress,
    lines: Callable[[list[dict[str, Any]]], Lines],
) -> Written:
    """Write the lines that ``lines`` returns for the planned steps of each trajectory, which include messages.

    The manifest lists the reasons for steps that are in no loss, with their counts.
    """
    n_rows = done = n_silent = 0
    reasons: Counter[str] = Counter()
    owners = plan.steps["trajectory_uid"].to_pylist()
    for trajectory_uid, part in groupby(zip(owners, plan.step_uids, strict=True), key=lambda pair: pair[0]):
        chosen = {uid for _, uid in part}
        steps = [step for step in source.trajectory(trajectory_uid)["steps"] if step["step_uid"] in chosen]
        objects, without = lines(steps)
        for line in objects:
            sink.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        n_rows += len(objects)
        reasons.update(without.values())
        n_silent += sum(step["n_response_tokens"] or 0 for step in steps if step["step_uid"] in without)
        done += len(chosen)
        progress(done, len(owners))
    differences = tuple(Difference.counted(n, f"steps are in no loss: {reason}") for reason, n in reasons.items())
    return Written(n_rows, plan.counts["n_tokens"], plan.counts["n_loss_tokens"] - n_silent, differences)


def not_as_text(step: Mapping[str, Any]) -> str | None:
    """The reason why text formats can't train on a step; None if they can."""
    if step["messages"] is None or step["response_message"] is None:
        return "their texts are unknown"
    if step.get("response_mask") is not None:
        return "tokens of their answers are redacted, and texts can't leave out single tokens"
    return None


def known(values: NDArray[np.float32], what: str, hint: str) -> NDArray[np.float32]:
    """Check that all values are known. InvalidInput if not: the format has no unknown, and 0 would be wrong."""
    if np.isnan(values).any():
        raise InvalidInput(f"{what} of a step are unknown, and the format needs them", field="recipe", hint=hint)
    return values


def logprobs_of(rows: Rows, responses: Responses) -> NDArray[np.float32]:
    """float32 [s], log μ of sampled tokens where there is loss, 0 elsewhere; all known."""
    scores = responses.where_loss(rows, rows.logprobs)
    return known(scores, "log-probs", "choose an algorithm that needs them, or a supervised format")


def advantages_of(rows: Rows, responses: Responses) -> NDArray[np.float32]:
    """float32 [s], advantages of sampled tokens where there is loss, 0 elsewhere; all assigned."""
    values = responses.where_loss(rows, rows.advantages)
    return known(values, "advantages", "choose an algorithm that assigns them")


def finish_reasons(plan: Plan, source: ExportSource, step: NDArray[np.int64]) -> list[str | None]:
    """Why the engine ended the answers of these steps of the plan: [r], None where unknown."""
    uids = plan.steps["step_uid"].take(pa.array(step)).combine_chunks()
    reasons: list[str | None] = source.credit_fields(uids, ["finish_reason"])["finish_reason"].to_pylist()
    return reasons


def repeated(trainer: str, batch_size: str) -> Difference:
    """The difference for trainers that distribute rows with Accelerate, which repeats rows to fill the last batch."""
    return Difference(
        f"In several processes {trainer} trains on rows of the first batch again to fill the last one",
        f"processes × {batch_size} that divide the manifest's n_rows",
    )


def longest_row(plan: Plan) -> int:
    """Tokens of the longest row. A merged row is as long as its last step, so merging does not change it."""
    return int(plan.lengths.max(initial=0))


def temperatures_of(plan: Plan) -> NDArray[np.float64]:
    """The sampling temperature of each step of the plan: float64 [n], NaN where unknown."""
    temperatures = plan.reader.credit_fields(plan.steps["step_uid"].combine_chunks(), ["temperature"])["temperature"]
    values: NDArray[np.float64] = temperatures.cast(pa.float64()).to_numpy()
    return values


def temperature_differences(plan: Plan, flag: str) -> list[Difference]:
    """Differences for trainers with a single temperature, unless all steps were sampled at 1.

    ``flag``: the trainer's setting, with ``{}`` for the value.
    """
    values = temperatures_of(plan)
    known = np.unique(values[~np.isnan(values)])
    if len(known) <= 1:
        usual = not len(known) or known[0] == 1.0
        what = "The steps were sampled at one temperature, and the trainer's must be the same"
        return [] if usual else [Difference(what, flag.format(f"{known[0]:g}"))]
    listed = ", ".join(f"{value:g}" for value in known[:6])
    return [
        Difference(f"The trainer has one temperature, and the steps were sampled at {listed}", "recipe.temperature")
    ]


def of_last_step(plan: Plan, rows: Rows, name: str) -> list[Any]:
    """A column of ``Plan.steps`` at each row's last step: [r]."""
    values: list[Any] = plan.steps[name].take(pa.array(rows.last_step)).to_pylist()
    return values


def loss_ranges(loss: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Start and end of each run of tokens in the loss: int64 [k, 2], half open."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], loss, [False]]).astype(np.int8)))
    return edges.reshape(-1, 2).astype(np.int64)
