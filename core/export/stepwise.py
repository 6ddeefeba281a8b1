"""Fields with which Agent-R1 and StepPO compute credit by step: order, states, and settings.

``step_indices`` number the rows of a trajectory from 0, without gaps: both trainers chain rows by it. ``anchor_obs``
tells GiGPO which steps have the same state. It contains the plan's step group numbers instead of observations. The
groups are therefore the same, also with similarity, and no observed text is exported. Critic values are not exported:
both trainers compute them.
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
"""Option of an estimator -> StepPO's setting (for the first two also Agent-R1's)."""


def in_order(plan: Plan, step: NDArray[np.int64]) -> NDArray[np.int32]:
    """Number of each row within its trajectory, int32 [B]. ``step``: each row's last step, ordered by trajectory."""
    owner = plan.steps["trajectory"].cast(pa.int64()).to_numpy()[step]
    starts = np.flatnonzero(np.diff(owner, prepend=-1) != 0)
    lengths = np.diff(np.append(starts, len(owner)))
    result: NDArray[np.int32] = (np.arange(len(owner)) - np.repeat(starts, lengths)).astype(np.int32)
    return result


def anchors(plan: Plan, step: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """``anchor_obs``, object [B], if the plan's algorithm compares steps by state; else empty.

    Raises:
        InvalidInput: a row contains several steps, which have different states.
    """
    settings, fields = _estimator(plan)
    source = next((name for name in ("anchor", "observation") if name in fields), None)
    if source is None:
        return {}
    if len(step) < len(plan.steps):
        raise InvalidInput(
            f"{len(plan.steps)} steps in {len(step)} rows: a row has one anchor_obs, but its steps have several states",
            field="options.merge",
            hint="merge=step",
        )
    reader = plan.reader
    seen = reader.credit_fields(plan.steps["step_uid"].combine_chunks(), [source])[source].to_pylist()
    groups = step_groups(plan.steps["group"].cast(pa.int64()).to_numpy(), seen, settings["similarity"])
    return {"anchor_obs": np.array(groups[step].tolist(), dtype=object)}


def same_settings(plan: Plan) -> list[Difference]:
    """The difference with the settings of the plan's estimator, which must also be set in the trainer."""
    settings, fields = _estimator(plan)
    flags = [f"{flag}={settings[name]}" for name, flag in SETTINGS.items() if name in settings]
    if "anchor" in fields or "observation" in fields:
        flags.append("++algorithm.gigpo.enable_similarity=false")
    if not flags:
        return []
    what = f"the plan's {plan.recipe.algorithm} has settings that Agent-R1 and StepPO must be given"
    return [Difference(what, " ".join(flags))]


def other_sums(plan: Plan) -> list[Difference]:
    """The difference for trajectories whose rows don't add up to their reward: steps were left out, or it forks."""
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
    """Settings of the plan's estimator, and the step fields that it needs."""
    estimator = credit.get(plan.recipe.algorithm)
    settings = estimator.settings(plan.recipe.options)
    return settings, estimator.needs(settings).fields
