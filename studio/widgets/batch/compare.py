"""Two tabs of the Batch page: estimators side by side on one trajectory, and what other settings would give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from core.batch.plan import Plan
from core.batch.recipe import Recipe
from core.batch.whatif import TrajectoryCredit, credit_of, sweep
from core.credit import REGISTRY
from studio import kit, state
from studio.charts.credit import credit_map, outcomes
from studio.kit.html_tables import html_table, mark
from studio.kit.url_choices import pick
from studio.widgets.plans.planning import PARAM, as_of_now, recipe_to_query

USUAL = ("grpo", "turn_discount", "gigpo", "reinforce_plus_plus", "step_gae", "token_gae")
"""From one number per trajectory to one per token."""
TRAJECTORIES = 300
SWEEPS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "max_staleness": ("Max staleness", (0, 1, 2, 3, 4, 6, 8, 12, None)),
    "n_rollouts": ("Rollouts", (2, 3, 4, 5, 6, 8, 12, 16, None)),
    "token_budget": ("Token budget", (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)),
    "max_prompt_tokens": ("Longest prompt", (512, 1024, 2048, 4096, 8192, 16384, 32768, None)),
    "max_response_tokens": ("Longest response", (32, 64, 128, 256, 512, 1024, 4096, None)),
    "require_complete": ("Complete only", (True, False)),
    "drop_flat_groups": ("Skip flat groups", (False, True)),
}
"""Field -> its label and the values that are tried."""
NOUNS = {"n_groups": "groups", "n_trajectories": "trajectories", "n_steps": "steps", "n_tokens": "tokens"}


def side_by_side(made: Plan) -> None:
    """One trajectory's credit under several estimators."""
    uids = made.trajectories["trajectory_uid"].to_pylist()
    if not uids:
        return
    left, right = st.columns([3, 7], gap="medium")
    with left:
        uid = pick_trajectory(uids)
    with right:
        able = [name for name, one in REGISTRY.items() if one.compute is not None]
        usual = [name for name in dict.fromkeys([made.recipe.algorithm, *USUAL]) if name in able]
        names = st.multiselect("Estimators", able, usual, format_func=lambda name: REGISTRY[name].title)
    with st.spinner("Planning with each…", show_time=True):
        pool = state.service().pool
        credits = as_of_now(
            "credit", made.view, made.recipe, [names, uid], lambda: credit_of(pool, made.view, made.recipe, names, uid)
        )
    part = made.part([uids.index(uid)])
    drawn = [one for one in credits if one.error is None and one.tokens is not None]
    kit.section("Credit", "each row in its own scale, from below zero to above; hover for the number")
    if drawn:
        n_response = part.steps["n_response_tokens"].to_pylist()
        titles = [REGISTRY[one.algorithm].title for one in drawn]
        figure = credit_map(titles, [one.tokens for one in drawn if one.tokens is not None], n_response)
        kit.plot(figure, key="credit-map", alt="Advantages of each estimator over the trajectory's tokens")
        step_table(part, drawn)
    missing = [one for one in credits if one.error is not None]
    if missing:
        kit.section("Not assigned", "what these estimators need and the trajectory does not have")
        rows = [(mark(REGISTRY[one.algorithm].title, "warn"), kit.escape(one.error)) for one in missing]
        html_table(["Estimator", "What is missing"], rows)


def pick_trajectory(uids: Sequence[str]) -> str:
    """One of the plan's trajectories, in the URL: the first ones are listed, any other is found by its uid."""
    asked = state.query("credit_of")
    standing = asked if asked is not None and asked in uids else uids[0]
    listed = list(dict.fromkeys([*uids[:TRAJECTORIES], standing]))
    chosen = st.selectbox(
        "Trajectory",
        listed,
        index=listed.index(standing),
        accept_new_options=len(uids) > len(listed),
        help=f"{kit.count(TRAJECTORIES)} of {kit.count(len(uids))} are listed; type any other's id."
        if len(uids) > len(listed)
        else None,
    )
    wanted = (chosen or standing).strip()
    if wanted not in uids:
        st.caption(f":orange[No trajectory {kit.verbatim(wanted)} in this plan.]")
    elif wanted != standing:
        state.set_query(credit_of=wanted)
        st.rerun()
    return standing


def step_table(part: Plan, credits: Sequence[TrajectoryCredit]) -> None:
    """The numbers, a row per step."""
    rewards, indices = part.steps["reward"].to_pylist(), part.steps["step_index"].to_pylist()
    n_response = part.steps["n_response_tokens"].to_pylist()
    rows = []
    for place, index in enumerate(indices):
        advantages = (cell(one, n_response, place) for one in credits)
        rows.append((kit.count(index), kit.count(n_response[place]), kit.number(rewards[place]), *advantages))
    titles = [f"{REGISTRY[one.algorithm].title} ({one.level})" for one in credits]
    html_table(["Step", "Tokens", "Reward", *titles], rows, numeric=range(1, 3 + len(credits)))


def cell(one: TrajectoryCredit, n_response: Sequence[int], place: int) -> str:
    """A step's advantage, or the span of its tokens'."""
    assert one.tokens is not None
    begin = sum(n_response[:place])
    values = one.tokens[begin : begin + n_response[place]]
    low, high = float(values.min()), float(values.max())
    return f"{low:+.3f}" if high - low < 5e-4 else f"{low:+.3f} … {high:+.3f}"


def what_if(made: Plan) -> None:
    """How many groups, trajectories, steps or tokens other values of one field would give."""
    left, right = st.columns([3, 7], gap="medium")
    with left:
        name = pick("Field", {key: label for key, (label, _) in SWEEPS.items()}, "field")
        what = pick("Counted", NOUNS, "counted")
    standing = getattr(made.recipe, name)
    values = list(SWEEPS[name][1])
    if standing not in values:
        values = sorted({*values, standing} - {None}) + ([None] if None in values else [])
    with st.spinner("Planning with each…", show_time=True):
        pool = state.service().pool
        results = as_of_now(
            "sweep", made.view, made.recipe, [name, values], lambda: sweep(pool, made.view, made.recipe, name, values)
        )
    with left:
        best = st.selectbox("Use", values, index=values.index(standing), format_func=text)
        if st.button("Put it into the recipe", disabled=best == standing, width="stretch"):
            adopt(made.recipe, name, best)
    with right:
        kit.section(SWEEPS[name][0], f"{NOUNS[what]} that the same view would give")
        figure = outcomes(
            [text(v) for v in values], [getattr(o, what) for o in results], values.index(standing), noun=NOUNS[what]
        )
        kit.plot(figure, key=f"sweep-{name}-{what}", alt=f"{NOUNS[what]} by {SWEEPS[name][0]}")
        for one in results:
            if one.error is not None:
                st.html(kit.quiet(f"{text(one.value)}: {one.error}"))


def adopt(recipe: Recipe, name: str, value: Any) -> None:
    """Write the value into the URL's recipe."""
    state.set_query(**{PARAM: recipe_to_query(recipe.model_copy(update={name: value}))})
    st.rerun()


def text(value: Any) -> str:
    """A value as people say it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "any" if value is None else f"{value:,}"
