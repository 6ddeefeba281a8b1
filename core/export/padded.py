"""Training rows as padded matrices, the layout of verl and its derivatives: prompts padded left, responses right.

Shapes: B rows, P the longest prompt, R the longest response. A row's prompt ends before its first sampled token. Tool
results between sampled tokens belong to the response, with mask 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from core.batch.layout import TokenReader
from core.batch.plan import Plan
from core.batch.rows import Rows, training_rows
from core.errors import InvalidInput
from core.export.base import Difference
from core.export.recompute import unknown_logprobs, with_context

CELLS_MAX = 1_000_000_000
"""Limit of rows times longest row; beyond it the padded matrices would take tens of GB."""


@dataclass(frozen=True, slots=True, eq=False)
class Padded:
    """All rows of a plan.

    Attributes:
        prompts: int64 [B, P].
        responses: int64 [B, R].
        prompt_mask: int64 [B, P], 1 on tokens.
        attention: int64 [B, R], 1 on tokens.
        response_mask: int64 [B, R], 1 on sampled tokens.
        logprobs: float32 [B, R], log μ in nats, 0 where ``response_mask`` is 0; None if some are unknown.
        advantages: float32 [B, R], 0 where ``response_mask`` is 0; None if some are unassigned.
        shares: float32 [B, R], each step's part of its trajectory's reward on its last token, 0 elsewhere; None if
            a trajectory is unscored.
        last: int64 [B], index of each row's last sampled token in its response.
        step: int64 [B], index in the plan of each row's last step.
        unknown: the differences for the trainer if ``logprobs`` is None.
    """

    prompts: NDArray[np.int64]
    responses: NDArray[np.int64]
    prompt_mask: NDArray[np.int64]
    attention: NDArray[np.int64]
    response_mask: NDArray[np.int64]
    logprobs: NDArray[np.float32] | None
    advantages: NDArray[np.float32] | None
    shares: NDArray[np.float32] | None
    last: NDArray[np.int64]
    step: NDArray[np.int64]
    unknown: tuple[Difference, ...]

    @property
    def input_ids(self) -> NDArray[np.int64]:
        """int64 [B, P + R]."""
        return np.concatenate([self.prompts, self.responses], axis=1)

    @property
    def attention_mask(self) -> NDArray[np.int64]:
        """int64 [B, P + R]."""
        return np.concatenate([self.prompt_mask, self.attention], axis=1)

    @property
    def position_ids(self) -> NDArray[np.int64]:
        """int64 [B, P + R]: counted over tokens, 0 on the padding before them."""
        mask = self.attention_mask
        positions: NDArray[np.int64] = np.clip(np.cumsum(mask, axis=1) - 1, 0, None)
        return positions

    def at_last(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """float32 [B, R], ``values`` [B] on each row's last sampled token, 0 elsewhere."""
        out = np.zeros(self.responses.shape, dtype=np.float32)
        out[np.arange(len(self.last)), self.last] = values
        return out


def pad(plan: Plan, reader: TokenReader, *, merge: bool, pad_id: int) -> Padded:
    """Read all rows and pad them.

    Raises:
        InvalidInput: the padded matrices would be too large; a trainer would have to load them completely, too.
    """
    parts = [with_context(rows) for rows in training_rows(plan, reader, merge=merge)]
    lengths = np.concatenate([rows.lengths for rows in parts])
    n_prompt = np.concatenate([rows.n_prompt for rows in parts])
    n_rows, p, r = len(lengths), int(n_prompt.max()), int((lengths - n_prompt).max())
    if n_rows * (p + r) > CELLS_MAX:
        raise InvalidInput(
            f"{n_rows} rows padded to {p + r} tokens are too many for this format",
            field="format",
            hint="a smaller batch_size or max_prompt_tokens, or a format without padding",
        )
    prompts, responses = (np.full((n_rows, width), pad_id, dtype=np.int64) for width in (p, r))
    prompt_mask, attention, response_mask = (np.zeros((n_rows, width), dtype=np.int64) for width in (p, r, r))
    logprobs, advantages, shares = (np.zeros((n_rows, r), dtype=np.float32) for _ in range(3))
    share_of = plan.steps["reward_share"].cast(pa.float64()).to_numpy().astype(np.float32)
    known = assigned = True
    last = np.zeros(n_rows, dtype=np.int64)
    i = 0
    for rows in parts:
        known = known and not np.isnan(rows.logprobs[rows.loss]).any()
        assigned = assigned and not np.isnan(rows.advantages[rows.loss]).any()
        owner = rows.row_of_step
        ends = rows.begins + rows.n_response - 1 - rows.offsets[:-1][owner] - rows.n_prompt[owner]
        shares[i + owner, ends] = share_of[rows.steps]
        for at, n in zip(rows.slices(), rows.n_prompt.tolist(), strict=True):
            ids, loss = rows.ids[at], rows.loss[at][n:]
            width = len(loss)
            prompts[i, p - n :], prompt_mask[i, p - n :] = ids[:n], 1
            responses[i, :width], attention[i, :width], response_mask[i, :width] = ids[n:], 1, loss
            logprobs[i, :width] = np.where(loss, rows.logprobs[at][n:], 0)
            advantages[i, :width] = np.where(loss, rows.advantages[at][n:], 0)
            last[i] = np.flatnonzero(loss)[-1]
            i += 1
    return Padded(
        prompts=prompts,
        responses=responses,
        prompt_mask=prompt_mask,
        attention=attention,
        response_mask=response_mask,
        logprobs=logprobs if known else None,
        advantages=advantages if assigned else None,
        shares=None if np.isnan(shares).any() else shares,
        last=last,
        step=_joined(parts),
        unknown=unknown_logprobs(parts, "verl computes them all anew, and corrects nothing for who sampled"),
    )


def _joined(parts: list[Rows]) -> NDArray[np.int64]:
    return np.concatenate([rows.last_step for rows in parts])
