"""A prompt group's advantages as the Batch page's plan gives them: the same function, on this group alone."""

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
from studio.widgets.plans.planning import current_plan, standing_recipe


@dataclass(frozen=True, slots=True, eq=False)
class StepCredit:
    """What a plan makes of one step.

    Attributes:
        advantages: float32 [R], one per response token; None when the step is not in the plan or gets none.
        in_loss: whether its response counts in the loss.
        why: one line: whose advantages, or why there are none.
    """

    advantages: NDArray[np.float32] | None
    in_loss: bool
    why: str


def group_recipe(channel: str) -> tuple[Recipe, str]:
    """The URL's recipe, else the channel's active one, else the defaults; and where it is from."""
    recipe, origin = standing_recipe(channel)
    # A batch size would leave the group out where others come first; here it is looked at by itself.
    return recipe.model_copy(update={"channel": channel, "batch_size": None}), origin


def group_plan(prompt_uid: str, channel: str) -> tuple[Plan, str]:
    """The plan of one prompt group, and what it was made by, in words."""
    recipe, origin = group_recipe(channel)
    made = current_plan(View({"prompt_uid": prompt_uid, "channel": channel}), recipe)
    return made, f"{recipe.estimator.title} ({origin})"


def step_credit(step: Mapping[str, Any]) -> StepCredit:
    """What the plan of the step's group makes of the step; a recipe that can't be used is said, not raised."""
    try:
        made, name = group_plan(str(step["prompt_uid"]), str(step["channel"]))
    except StudioError as error:
        return StepCredit(None, False, f"not planned: {error.message}")
    uids = made.step_uids
    if step["step_uid"] not in uids:
        return StepCredit(None, False, f"not trained by {name}: {reason(made, str(step['step_uid']))}")
    row = made.steps.slice(uids.index(step["step_uid"]), 1)
    n_response = int(row["n_response_tokens"][0].as_py() or 0)
    if "token_advantages" in made.steps.column_names and row["token_advantages"][0].is_valid:
        tokens = np.asarray(row["token_advantages"][0].as_py(), dtype=np.float32)
    else:
        value = row["advantage"][0].as_py()
        if value is None:
            return StepCredit(None, True, f"in the loss of {name}, no advantage")
        tokens = np.full(n_response, value, dtype=np.float32)
    low, high = (float(tokens.min()), float(tokens.max())) if len(tokens) else (0.0, 0.0)
    span = f"{low:+.3f}" if high - low < 5e-4 else f"{low:+.3f} to {high:+.3f}"
    return StepCredit(tokens, True, f"advantage {span} by {name}")


def reason(made: Plan, step_uid: str) -> str:
    """Why a step is not in a plan, in the plan's own words."""
    pool = state.service().pool
    for item in made.excluded:
        rows = View({**item.view.filters, "step_uid": step_uid}, item.view.where)
        if pool.steps.count(rows):
            return item.label[0].lower() + item.label[1:]
    return made.lacks[0] if made.lacks else "it is not among the candidates"
