"""Fields that Agent-R1 and StepPO need to compute credit by step: order, states, and settings.

A row's ``step_indices`` count the rows of its trajectory from 0: rows are chained by it, and a gap would be a step
without reward and value. ``anchor_obs`` tells GiGPO which steps saw the same state. The plan's step groups stand there
by number and not what was observed: groups are the same, with similarity too, and no observed text leaves the pool.
Critic values are in no file: both compute them with their own critic.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from core import credit
from core.batch.plan import Plan
from core.credit.gigpo import step_groups
from core.errors import InvalidInput
from core.export.base import Difference

SETTINGS = {
    "gamma": "algorithm.gamma",
    "lam": "algorithm.lam",
    "w": "++algorithm.gigpo.step_advantage_w",
    "mode": "++algorithm.gigpo.mode",
}
"""Option of an estimator -> where StepPO (and for the first two Agent-R1) has it."""


def in_order(plan: Plan, step: NDArray[np.int64]) -> NDArray[np.int32]:
    """Number of each row within its trajectory, int32 [B]; ``step``: each row's last step, trajectory by trajectory."""
    owner = plan.steps["trajectory"].cast(pa.int64()).to_numpy()[step]
    starts = np.flatnonzero(np.diff(owner, prepend=-1) != 0)
    lengths = np.diff(np.append(starts, len(owner)))
    result: NDArray[np.int32] = (np.arange(len(owner)) - np.repeat(starts, lengths)).astype(np.int32)
    return result


def anchors(plan: Plan, step: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """``anchor_obs``, object [B], where the plan's algorithm compares steps by what they saw; else nothing.

    Raises:
        InvalidInput: a row holds several steps, each with a state of its own.
    """
    settings, fields = _estimator(plan)
    source = next((name for name in ("anchor", "observation") if name in fields), None)
    if source is None:
        return {}
    if len(step) < len(plan.steps):
        raise InvalidInput(
            f"{len(plan.steps)} steps in {len(step)} rows: a row has one anchor_obs, and each step saw another state",
            field="options.merge",
            hint="merge=step",
        )
    reader = plan.reader
    seen = reader.credit_fields(plan.steps["step_uid"].combine_chunks(), [source])[source].to_pylist()
    groups = step_groups(plan.steps["group"].cast(pa.int64()).to_numpy(), seen, settings["similarity"])
    return {"anchor_obs": np.array(groups[step].tolist(), dtype=object)}


def same_settings(plan: Plan) -> list[Difference]:
    """Settings of the plan's estimator that the trainer must be given too."""
    settings, fields = _estimator(plan)
    flags = [f"{flag}={settings[name]}" for name, flag in SETTINGS.items() if name in settings]
    if "anchor" in fields or "observation" in fields:
        flags.append("++algorithm.gigpo.enable_similarity=false")
    if not flags:
        return []
    what = f"the plan's {plan.recipe.algorithm} has settings that Agent-R1 and StepPO must be given"
    return [Difference(what, " ".join(flags))]


def other_sums(plan: Plan) -> list[Difference]:
    """Trajectories whose rows don't add up to their reward: steps that were left out earned some of it, or it forks."""
    shares, owner = plan.steps["reward_share"].cast(pa.float64()).to_numpy(), plan.steps["trajectory"].to_numpy()
    first = np.unique(owner, return_index=True)[1]
    rewards = plan.steps["trajectory_reward"].cast(pa.float64()).to_numpy()[first]
    n = int((~np.isclose(np.add.reduceat(shares, first), rewards, atol=1e-6)).sum())
    if not n:
        return []
    what = (
        f"{n} trajectories earned rewards on steps that are left out, or fork: the rows' sum is taken for their reward"
    )
    return [Difference(what, "rewards=plan")]


def _estimator(plan: Plan) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Settings of the plan's estimator, and the fields that it reads of a step."""
    estimator = credit.get(plan.recipe.algorithm)
    settings = estimator.settings(plan.recipe.options)
    return settings, estimator.needs(settings).fields
