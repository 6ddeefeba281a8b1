"""The routes of bench reports: one run, and two runs compared."""

from __future__ import annotations

import math
from typing import Any

from core.api.handling import Call
from core.api.routing import Router
from core.api.schemas import ANY, INT, NUM, OBJ, STR, array, obj, or_null
from core.errors import InvalidInput
from core.report import Prices, Subject, compare, compare_markdown, report, report_markdown
from core.report.source import REWARDS, subject_of

routes = Router()

PRICE = {**NUM, "minimum": 0, "description": "US dollars for a million tokens; without both prices, cost is unknown"}
PRICES = {"price_prompt": PRICE, "price_response": PRICE}
CHOICES = {
    "rewards": {"enum": list(REWARDS), "description": "; ".join(f"{k}: {v}" for k, v in REWARDS.items())},
    **PRICES,
}
REPORT = obj(
    run=STR, about=OBJ, above=NUM, markdown=STR,
    total=obj(n_tasks=INT, n_attempts=INT, n_scored=INT, outcomes=OBJ, mean=or_null(OBJ), solved=or_null(OBJ),
              mean_missing_as_zero=or_null(OBJ), n_correct=INT, passes=array(OBJ), wall_s=OBJ),
    by=obj(category=array(OBJ), agent=array(OBJ), policy_version=array(OBJ)), tasks=array(OBJ),
)  # fmt: skip
COMPARED = obj(first=OBJ, second=OBJ, paired=ANY, by_category=array(OBJ), tasks=array(OBJ), markdown=STR)


@routes("GET", "/reports/{run}", REPORT, query=CHOICES, statuses=(404,))
def one(call: Call) -> Any:
    """The bench report of a run: means, pass@k and pass^k with intervals by task, time, tokens, cost.

    `rewards` are the current ones by default; `about.rewards` names the adopted reward policies.
    Attempts without a score are counted, and are not 0 in the mean. `markdown` is the same as text.
    """
    run = call.deps.rollouts.runs.get(call.path["run"])
    made = report(_subject(call, call.path["run"]), above=run.settings.solved_above, prices=_prices(call))
    return {**made, "markdown": report_markdown(made)}


@routes("GET", "/reports/{run}/compare", COMPARED, query={"with": STR, **CHOICES}, statuses=(404,))
def two(call: Call) -> Any:
    """Two runs compared on the tasks that have a score in both: paired t-test and sign-flip permutation test."""
    other = call.query.get("with")
    if not other:
        raise InvalidInput("the second run is missing", field="with", hint="?with=RUN")
    first, second = _subject(call, call.path["run"]), _subject(call, other)
    above = call.deps.rollouts.runs.get(call.path["run"]).settings.solved_above
    made = compare(first, second, above=above, prices=_prices(call))
    return {**made, "markdown": compare_markdown(made)}


def _subject(call: Call, run: str) -> Subject:
    deps, which = call.deps, call.query.get("rewards", "current")
    if which not in REWARDS:
        raise InvalidInput(f"{which!r} is no choice of rewards", field="rewards", hint=" or ".join(REWARDS))
    adopted = deps.pool.rewards.all_adopted() if which == "current" else None
    return subject_of(deps.rollouts.runs.get(run), deps.rollouts.packs, deps.pool.trajectories, adopted=adopted)


def _prices(call: Call) -> Prices | None:
    values = {name: _price(call, name) for name in PRICES}
    if values["price_prompt"] is None and values["price_response"] is None:
        return None
    missing = next((name for name, value in values.items() if value is None), None)
    if missing is not None:
        raise InvalidInput(f"{missing} is missing", field=missing, hint="name both prices")
    return Prices(values["price_prompt"] or 0.0, values["price_response"] or 0.0)


def _price(call: Call, name: str) -> float | None:
    text = call.query.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise InvalidInput(f"{text!r} is no price", field=name, hint="US dollars for a million tokens, 0 or more")
    return value
