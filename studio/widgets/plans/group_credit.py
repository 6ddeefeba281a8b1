"""Advantages of one prompt group: the Batch page's plan function, applied to this group alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.batch.plan import Plan
from core.batch.recipe import Recipe
from core.errors import StudioError
from core.types import View
from studio import state
from studio.widgets.plans.current_plan import current_plan
from studio.widgets.plans.recipe_query import effective_recipe


@dataclass(frozen=True, slots=True, eq=False)
class StepCredit:
    """How a plan uses one step.

    Attributes:
        advantages: float32 [R], one per response token; None when the step is not in the plan or gets none.
        in_loss: whether its response counts in the loss.
        why: one line: the estimator, or why there are no advantages.
    """

    advantages: NDArray[np.float32] | None
    in_loss: bool
    why: str


def group_recipe(channel: str) -> tuple[Recipe, str]:
    """The URL's recipe, else the channel's active one, else the defaults, for one group; and its origin as text."""
    recipe, origin = effective_recipe(channel)
    # A batch size could exclude the group when others come first; here it is planned alone.
    return recipe.model_copy(update={"channel": channel, "batch_size": None}), origin


def group_plan(prompt_uid: str, channel: str) -> tuple[Plan, str]:
    """The plan of one prompt group, and its estimator and recipe as text."""
    recipe, origin = group_recipe(channel)
    plan = current_plan(View({"prompt_uid": prompt_uid, "channel": channel}), recipe)
    return plan, f"{recipe.estimator.title} ({origin})"


def step_credit(step: Mapping[str, Any]) -> StepCredit:
    """How the plan of the step's group uses the step. An invalid recipe is reported in ``why``, not raised."""
    try:
        plan, name = group_plan(str(step["prompt_uid"]), str(step["channel"]))
    except StudioError as error:
        return StepCredit(None, False, f"not planned: {error.message}")
    uids = plan.step_uids
    if step["step_uid"] not in uids:
        return StepCredit(None, False, f"not trained by {name}: {exclusion_reason(plan, str(step['step_uid']))}")
    row = plan.steps.slice(uids.index(step["step_uid"]), 1)
    n_response = int(row["n_response_tokens"][0].as_py() or 0)
    if "token_advantages" in plan.steps.column_names and row["token_advantages"][0].is_valid:
        tokens = np.asarray(row["token_advantages"][0].as_py(), dtype=np.float32)
    else:
        value = row["advantage"][0].as_py()
        if value is None:
            return StepCredit(None, True, f"in the loss of {name}, no advantage")
        tokens = np.full(n_response, value, dtype=np.float32)
    low, high = (float(tokens.min()), float(tokens.max())) if len(tokens) else (0.0, 0.0)
    span = f"{low:+.3f}" if high - low < 5e-4 else f"{low:+.3f} to {high:+.3f}"
    return StepCredit(tokens, True, f"advantage {span} by {name}")


def exclusion_reason(plan: Plan, step_uid: str) -> str:
    """The reason for which the plan excludes a step, as text."""
    pool = state.service().pool
    for item in plan.excluded:
        rows = View({**item.view.filters, "step_uid": step_uid}, item.view.where)
        if pool.steps.count(rows):
            return item.label[0].lower() + item.label[1:]
    return plan.lacks[0] if plan.lacks else "it is not among the candidates"
