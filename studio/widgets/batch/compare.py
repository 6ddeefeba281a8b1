"""Two tabs of the Batch page: estimators side by side on one trajectory, and counts under other settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from core.batch.plan import Plan
from core.batch.recipe import Recipe
from core.batch.whatif import TrajectoryCredit, credit_of, sweep
from core.credit import REGISTRY
from core.credit.fields import missing_fields
from studio import kit, state
from studio.charts.credit import credit_map, sweep_bars
from studio.kit.html_tables import dot_label, html_table
from studio.kit.url_choices import list_choice
from studio.widgets.plans.current_plan import cached_answer
from studio.widgets.plans.recipe_editor import algorithm_title, missing_by_algorithm
from studio.widgets.plans.recipe_query import PARAM, recipe_to_query

DEFAULT_ESTIMATORS = ("grpo", "turn_discount", "gigpo", "reinforce_plus_plus", "step_gae", "token_gae")
"""Ordered from one advantage per trajectory to one per token."""
LISTED_TRAJECTORIES = 300
SWEEPS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "max_staleness": ("Max staleness", (0, 1, 2, 3, 4, 6, 8, 12, None)),
    "n_rollouts": ("Rollouts per group", (2, 3, 4, 5, 6, 8, 12, 16, None)),
    "token_budget": ("Tokens per packed row", (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)),
    "max_prompt_tokens": ("Max prompt tokens", (512, 1024, 2048, 4096, 8192, 16384, 32768, None)),
    "max_response_tokens": ("Max response tokens", (32, 64, 128, 256, 512, 1024, 4096, None)),
    "require_complete": ("Complete only", (True, False)),
    "drop_flat_groups": ("Skip groups without reward variance", (False, True)),
}
"""Recipe field -> its label and the values that are tried."""
NOUNS = {"n_groups": "groups", "n_trajectories": "trajectories", "n_steps": "steps", "n_tokens": "tokens"}


def side_by_side(plan: Plan) -> None:
    """Advantages of one trajectory under several estimators."""
    uids = plan.trajectories["trajectory_uid"].to_pylist()
    if not uids:
        return
    left, right = st.columns([3, 7], gap="medium")
    with left:
        uid = pick_trajectory(uids)
    with right:
        names = pick_estimators(plan.recipe)
    with st.spinner("Planning each variant…", show_time=True):
        pool = state.service().pool
        credits = cached_answer(
            "credit", plan.view, plan.recipe, [names, uid], lambda: credit_of(pool, plan.view, plan.recipe, names, uid)
        )
    part = plan.part([uids.index(uid)])
    drawn = [one for one in credits if one.error is None and one.tokens is not None]
    kit.section("Credit", "each row is scaled by its largest absolute advantage; hover for the value")
    if drawn:
        n_response = part.steps["n_response_tokens"].to_pylist()
        titles = [REGISTRY[one.algorithm].title for one in drawn]
        figure = credit_map(titles, [one.tokens for one in drawn if one.tokens is not None], n_response)
        kit.plot(figure, key="credit-map", alt="Advantages of each estimator over the trajectory's tokens")
        step_table(part, drawn)
    not_assigned(credits)


def pick_estimators(recipe: Recipe) -> list[str]:
    """The choice of estimators. At first: the recipe's own, and the usual ones that the channel's steps can feed."""
    able = [name for name, one in REGISTRY.items() if one.compute is not None]
    lacking = missing_by_algorithm(recipe)
    usual = [name for name in DEFAULT_ESTIMATORS if name not in lacking]
    chosen: list[str] = st.multiselect(
        "Estimators",
        able,
        [name for name in dict.fromkeys([recipe.algorithm, *usual]) if name in able],
        # Without a key the labels, which follow the data, are part of the widget's identity: new data would reset it.
        key=f"estimators-{recipe.algorithm}",
        format_func=lambda name: algorithm_title(name, lacking),
        help="An estimator that names a need can't run on these steps: none of the newest has what it needs.",
    )
    return chosen


def not_assigned(credits: Sequence[TrajectoryCredit]) -> None:
    """What the chosen estimators lack: each input once, with the estimators that need it and how to give it."""
    lacking: dict[str, tuple[str, str, list[str]]] = {}
    for one in credits:
        if one.error is None:
            continue
        fields, _ = missing_fields([one.error])
        what, how = (fields[0].description, fields[0].how) if fields else (one.error, kit.DASH)
        lacking.setdefault(what, (what, how, []))[2].append(REGISTRY[one.algorithm].title)
    if not lacking:
        return
    kit.section("Not assigned", "the trajectory lacks inputs of these estimators")
    html_table(
        ["Estimators", "What is missing", "How to give it"],
        [
            (dot_label(", ".join(titles), "warn"), kit.escape(what), kit.escape(how))
            for what, how, titles in lacking.values()
        ],
    )


def pick_trajectory(uids: Sequence[str]) -> str:
    """The choice of a trajectory, kept in the URL: the first ones are listed, others are entered by uid."""
    requested = state.query("credit_of")
    current = requested if requested is not None and requested in uids else uids[0]
    listed = list(dict.fromkeys([*uids[:LISTED_TRAJECTORIES], current]))
    chosen = st.selectbox(
        "Trajectory",
        listed,
        index=listed.index(current),
        accept_new_options=len(uids) > len(listed),
        help=f"{kit.count(LISTED_TRAJECTORIES)} of {kit.count(len(uids))} are listed; type any other's id."
        if len(uids) > len(listed)
        else None,
    )
    wanted = (chosen or current).strip()
    if wanted not in uids:
        st.caption(f":orange[No trajectory {kit.escape_markdown(wanted)} in this plan.]")
    elif wanted != current:
        state.set_query(credit_of=wanted)
        st.rerun()
    return current


def step_table(part: Plan, credits: Sequence[TrajectoryCredit]) -> None:
    """Advantages as a table, a row per step."""
    rewards, indices = part.steps["reward"].to_pylist(), part.steps["step_index"].to_pylist()
    n_response = part.steps["n_response_tokens"].to_pylist()
    rows = []
    for place, index in enumerate(indices):
        advantages = (advantage_text(one, n_response, place) for one in credits)
        rows.append((kit.count(index), kit.count(n_response[place]), kit.number(rewards[place]), *advantages))
    titles = [f"{REGISTRY[one.algorithm].title} ({one.level})" for one in credits]
    html_table(["Step", "Tokens", "Reward", *titles], rows, numeric=range(1, 3 + len(credits)))


def advantage_text(one: TrajectoryCredit, n_response: Sequence[int], place: int) -> str:
    """A step's advantage, or the range of its tokens' advantages."""
    assert one.tokens is not None
    begin = sum(n_response[:place])
    values = one.tokens[begin : begin + n_response[place]]
    low, high = float(values.min()), float(values.max())
    return f"{low:+.3f}" if high - low < 5e-4 else f"{low:+.3f} … {high:+.3f}"


def what_if(plan: Plan) -> None:
    """Number of groups, trajectories, steps or tokens for other values of one recipe field."""
    left, right = st.columns([3, 7], gap="medium")
    with left:
        name = list_choice("Field", {key: label for key, (label, _) in SWEEPS.items()}, "field")
        what = list_choice("Counted", NOUNS, "counted")
    current = getattr(plan.recipe, name)
    values = list(SWEEPS[name][1])
    if current not in values:
        values = sorted({*values, current} - {None}) + ([None] if None in values else [])
    with st.spinner("Planning each variant…", show_time=True):
        pool = state.service().pool
        results = cached_answer(
            "sweep", plan.view, plan.recipe, [name, values], lambda: sweep(pool, plan.view, plan.recipe, name, values)
        )
    with left:
        best = st.selectbox("Use", values, index=values.index(current), format_func=value_text)
        if st.button("Use this value in the recipe", disabled=best == current, width="stretch"):
            put_into_recipe(plan.recipe, name, best)
    with right:
        kit.section(SWEEPS[name][0], f"{NOUNS[what]} in the plan of the same view")
        figure = sweep_bars(
            [value_text(v) for v in values],
            [getattr(o, what) for o in results],
            values.index(current),
            noun=NOUNS[what],
        )
        kit.plot(figure, key=f"sweep-{name}-{what}", alt=f"{NOUNS[what]} by {SWEEPS[name][0]}")
        for one in results:
            if one.error is not None:
                st.html(kit.caption_html(f"{value_text(one.value)}: {one.error}"))


def put_into_recipe(recipe: Recipe, name: str, value: Any) -> None:
    """Write the value into the URL's recipe."""
    state.set_query(**{PARAM: recipe_to_query(recipe.model_copy(update={name: value}))})
    st.rerun()


def value_text(value: Any) -> str:
    """A value of a recipe field as text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "any" if value is None else f"{value:,}"
