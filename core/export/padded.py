"""Rows for padded matrices, the layout of verl and its descendants: prompts padded left, responses right.

Shapes: B rows, P the longest prompt, R the longest response. A row's prompt ends before its first sampled token;
tool results between sampled tokens belong to the response, with mask 0. The values are kept flat, row by row; the
matrices are built when a file is loaded (``core.export.data_proto``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from core.batch.layout import TokenReader
from core.batch.plan import Plan
from core.batch.rows import Rows, training_rows
from core.errors import InvalidInput
from core.export.base import Difference
from core.export.recompute import unknown_logprobs, with_context
from core.tree.sequences import ragged_index

CELLS_MAX = 1_000_000_000
"""Limit of rows times longest row; beyond it the padded matrices would take tens of GB."""


@dataclass(frozen=True, slots=True, eq=False)
class Padded:
    """All rows of a plan. Lists hold an array for each part of the plan, one after another.

    Attributes:
        n_prompt: int64 [B], tokens of each prompt.
        n_response: int64 [B], tokens of each response.
        prompts: int32, tokens of all prompts.
        responses: int32, tokens of all responses.
        loss: uint8, 1 on sampled tokens, of all responses.
        logprobs: float32, log μ in nats of the tokens with loss; None when some are unknown.
        advantages: float32 of the tokens with loss; None when some are unassigned.
        share_at: int64, places in the flat matrix [B × R] where a step ends.
        shares: float32, each step's part of its trajectory's reward; None when some trajectory is unscored.
        last: int64 [B], index of each row's last sampled token in its response.
        step: int64 [B], index in the plan of each row's last step.
        unknown: the differences for the trainer if ``logprobs`` is None.
    """

    n_prompt: NDArray[np.int64]
    n_response: NDArray[np.int64]
    prompts: list[NDArray[np.int32]]
    responses: list[NDArray[np.int32]]
    loss: list[NDArray[np.uint8]]
    logprobs: list[NDArray[np.float32]] | None
    advantages: list[NDArray[np.float32]] | None
    share_at: NDArray[np.int64]
    shares: NDArray[np.float32] | None
    last: NDArray[np.int64]
    step: NDArray[np.int64]
    unknown: tuple[Difference, ...]

    @property
    def widths(self) -> tuple[int, int]:
        """P and R."""
        return int(self.n_prompt.max()), int(self.n_response.max())

    @property
    def last_at(self) -> NDArray[np.int64]:
        """Index of each row's last sampled token in the flat matrix [B × R]: int64 [B]."""
        return np.arange(len(self.last)) * self.widths[1] + self.last


def pad(plan: Plan, reader: TokenReader, *, merge: bool) -> Padded:
    """Read all rows.

    Raises:
        InvalidInput: the padded matrices would be too large; a trainer would have to load them completely, too.
    """
    columns: dict[str, list[NDArray[Any]]] = {}
    unknown: list[Rows] = []
    share_of = plan.steps["reward_share"].cast(pa.float64()).to_numpy().astype(np.float32)
    n_before = 0
    for part in training_rows(plan, reader, merge=merge):
        rows = with_context(part)
        for name, values in _flat(rows, share_of).items():
            columns.setdefault(name, []).append(values + n_before if name == "share_row" else values)
        n_before += len(rows)
        if np.isnan(columns["logprobs"][-1]).any():
            unknown.append(rows)
    joined = {
        name: np.concatenate(columns[name])
        for name in ("n_prompt", "n_response", "share_row", "share_at", "shares", "last", "step")
    }
    p, r = int(joined["n_prompt"].max()), int(joined["n_response"].max())
    if n_before * (p + r) > CELLS_MAX:
        raise InvalidInput(
            f"{n_before} rows padded to {p + r} tokens are too many for this format",
            field="format",
            hint="a smaller batch_size or max_prompt_tokens, or a format without padding",
        )
    assigned = not any(np.isnan(values).any() for values in columns["advantages"])
    return Padded(
        n_prompt=joined["n_prompt"],
        n_response=joined["n_response"],
        prompts=columns["prompts"],
        responses=columns["responses"],
        loss=columns["loss"],
        logprobs=None if unknown else columns["logprobs"],
        advantages=columns["advantages"] if assigned else None,
        share_at=joined["share_row"] * r + joined["share_at"],
        shares=None if np.isnan(joined["shares"]).any() else joined["shares"],
        last=joined["last"],
        step=joined["step"],
        unknown=unknown_logprobs(
            unknown, "verl computes all of them again, without correction for the sampling policy"
        ),
    )


def _flat(rows: Rows, share_of: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
    """Fields of ``Padded`` of some rows; ``share_row`` and ``share_at`` place each step's end by row and response."""
    starts, n_response = rows.offsets[:-1], rows.lengths - rows.n_prompt
    response = ragged_index(starts + rows.n_prompt, n_response)
    owner = rows.row_of_step
    loss_at = np.flatnonzero(rows.loss)
    return {
        "n_prompt": rows.n_prompt,
        "n_response": n_response,
        "prompts": rows.ids[ragged_index(starts, rows.n_prompt)],
        "responses": rows.ids[response],
        "loss": rows.loss[response].astype(np.uint8),
        "logprobs": rows.logprobs[loss_at],
        "advantages": rows.advantages[loss_at],
        "share_row": owner,
        "share_at": rows.begins + rows.n_response - 1 - starts[owner] - rows.n_prompt[owner],
        "shares": share_of[rows.steps],
        "last": loss_at[np.searchsorted(loss_at, rows.offsets[1:]) - 1] - starts - rows.n_prompt,
        "step": rows.last_step,
    }
