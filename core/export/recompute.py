"""Shared code of formats whose trainer computes advantages: writes the plan's advantages or the rewards.

``credit=plan`` writes the plan's advantage in place of the reward, and names the settings with which the trainer uses
it unchanged. ``credit=trainer`` writes rewards, from which the trainer computes advantages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from core.batch.plan import Plan
from core.batch.rows import Rows
from core.errors import InvalidInput
from core.export.base import Difference

CREDIT: Mapping[str, tuple[str, ...]] = {"credit": ("plan", "trainer")}
"""Option of formats with one number per row: the plan's advantage, or the trajectory's reward."""

MERGE_HINT = "merge=step gives each step a separate row"


def uses_planned_credit(settings: Mapping[str, str]) -> bool:
    """Whether the option ``credit`` is ``plan``."""
    return settings["credit"] == "plan"


def row_advantages(rows: Rows) -> NDArray[np.float32]:
    """The advantage of each row, float32 [r].

    Raises:
        InvalidInput: the plan assigns none, or they differ within a row, but the format has one number per row.
    """
    row = np.repeat(np.arange(len(rows)), rows.lengths)[rows.loss]
    values = rows.advantages[rows.loss]
    if np.isnan(values).any():
        raise InvalidInput(
            "the plan assigns no advantages",
            field="options.credit",
            hint="credit=trainer writes rewards; or choose an algorithm that assigns advantages",
        )
    low, high = np.full(len(rows), np.inf, dtype=np.float32), np.full(len(rows), -np.inf, dtype=np.float32)
    np.minimum.at(low, row, values)
    np.maximum.at(high, row, values)
    if (low < high).any():
        raise InvalidInput(
            f"advantages differ within {int((low < high).sum())} rows, and the format has one number per row",
            field="options",
            hint=f"{MERGE_HINT}; if they differ within a step, choose a format with advantages per token",
        )
    return low


def rows_rewards(plan: Plan, rows: Rows, settings: Mapping[str, str]) -> NDArray[np.float32]:
    """The advantage or reward to write for each row, float32 [r]. InvalidInput if one is unknown."""
    return row_advantages(rows) if uses_planned_credit(settings) else trajectory_rewards(plan, rows.last_step)


def trajectory_rewards(plan: Plan, step: NDArray[np.int64]) -> NDArray[np.float32]:
    """The reward of the trajectory of each step, float32 [r].

    Raises:
        InvalidInput: a trajectory is unscored; these formats can't express that, and 0 would be wrong.
    """
    rewards: NDArray[np.float64] = plan.steps["trajectory_reward"].take(pa.array(step)).cast(pa.float64()).to_numpy()
    if np.isnan(rewards).any():
        raise InvalidInput(
            f"{int(np.isnan(rewards).sum())} rows have no reward, and the format needs one",
            field="recipe",
            hint="score them, or choose an algorithm that needs rewards: it excludes unscored trajectories",
        )
    return rewards.astype(np.float32)


def with_context(rows: Rows) -> Rows:
    """Give rows without a prompt a context: their first token becomes context and leaves the loss.

    A model gives no probability for a token without context. Trainers would take it from padding or from the end of
    another row.

    Raises:
        InvalidInput: no token of such a row is left in the loss.
    """
    bare = rows.n_prompt == 0
    if not bare.any():
        return rows
    loss = rows.loss.copy()
    loss[rows.offsets[:-1][bare]] = False
    n_loss = np.add.reduceat(loss, rows.offsets[:-1])
    if (n_loss == 0).any():
        raise InvalidInput(
            f"{int((n_loss == 0).sum())} rows have neither a prompt nor a second token, so no token can be trained on",
            field="view",
            hint="where: n_prompt_tokens > 0",
        )
    return replace(rows, loss=loss, n_prompt=np.maximum(rows.n_prompt, 1))


def bare_rows(plan: Plan) -> list[Difference]:
    """The difference that ``with_context`` causes, if the plan has steps without a prompt."""
    n = int((plan.steps["n_prompt_tokens"].to_numpy() == 0).sum())
    if not n:
        return []
    what = (
        f"{n} steps have no prompt: their first token becomes context and is not trained on. Trainers that whiten "
        "over tokens do not count it, which changes advantages slightly"
    )
    return [Difference(what, "view where: n_prompt_tokens > 0")]


def sampled_at(plan: Plan) -> NDArray[np.float64]:
    """Temperature of each step's request, float64 [n]; NaN: unknown."""
    fields = plan.reader.credit_fields(plan.steps["step_uid"].combine_chunks(), ["temperature"])
    values: NDArray[np.float64] = fields["temperature"].cast(pa.float64()).to_numpy()
    return values


def one_temperature(plan: Plan, setting: str) -> list[Difference]:
    """The difference for trainers with a single temperature, if the steps' temperatures differ or are unknown."""
    temperatures = np.unique(sampled_at(plan))
    if len(temperatures) < 2 and not np.isnan(temperatures).any():
        return []
    listed = ", ".join("unknown" if np.isnan(value) else f"{value:g}" for value in temperatures.tolist())
    return [
        Difference(
            f"steps were sampled at temperatures {listed}; the trainer computes all log-probs at {setting}",
            "recipe temperature: one of them",
        )
    ]


def unknown_logprobs(rows: Sequence[Rows], why: str) -> tuple[Difference, ...]:
    """The difference if some log-probs are unknown: the file then has none."""
    n = sum(int(np.isnan(part.logprobs[part.loss]).any()) for part in rows)
    if not n:
        return ()
    return (
        Difference(f"log-probs of some steps are unknown, so the file has none: {why}", "view where: has_logprobs"),
    )


def counts_of(plan: Plan) -> dict[str, Any]:
    """Number of trajectories of each group, and whether they are equal: ``{"sizes": [...], "uniform": bool}``."""
    sizes = np.bincount(plan.trajectories["group"].to_numpy())
    sizes = sizes[sizes > 0]
    return {"sizes": sizes.tolist(), "uniform": bool((sizes == sizes[:1]).all())}
