"""The form that edits a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, get_args

import streamlit as st

from core.batch.recipe import Recipe, parse_recipe
from core.credit import FIELDS, REGISTRY, Option
from core.types import TokenSource, View
from studio import state
from studio.kit.format import escape
from studio.widgets.plans.current_plan import cached_answer
from studio.widgets.plans.recipe_query import PARAM, recipe_to_query

TOGGLES = {"require_complete": "Complete trajectories only", "drop_flat_groups": "Skip groups without reward variance"}

BRANCHES = {
    "drop_dead_leaves": "Skip answers that were sampled again",
    "drop_compacted": "Skip steps after a compaction",
}

CHOICES = {
    "fifo": "Oldest first",
    "newest": "Newest first",
    "difficulty": "Closest to a mean reward",
    "variance": "Widest reward spread first",
    "first": "Keep the first",
    "spread": "Keep the best and the worst",
    "all": "All steps",
    "last_step": "Last step only",
}
"""Values of the recipe's choices -> their text."""

REWARD_SOURCES = ("human", "verifier", "judge", "service", "complete", "steps")


def recipe_editor(recipe: Recipe, channels: Sequence[str], base: Recipe | None = None) -> None:
    """The fields of a recipe. A change is written to the URL, as the difference from ``base``, and reruns the page."""
    edited: dict[str, Any] = {}
    names = list(REGISTRY)
    lacking = missing_by_algorithm(recipe)
    edited["algorithm"] = st.selectbox(
        "Algorithm",
        names,
        index=names.index(recipe.algorithm),
        # Without a key the labels, which follow the data, are part of the widget's identity: new data would close it.
        key=f"algorithm-{recipe.algorithm}",
        format_func=lambda name: algorithm_title(name, lacking),
        help="An algorithm that names a need can't run on these steps: none of the newest has what it needs.",
    )
    estimator = REGISTRY[edited["algorithm"]]
    st.html(f'<div class="cs-formula">{escape(estimator.formula)}</div>')
    options = recipe.options if edited["algorithm"] == recipe.algorithm else {}
    with st.expander(f"{estimator.title} options") if estimator.options else nullcontext():
        edited["options"] = _options(estimator.options, options)
    known = list(dict.fromkeys([recipe.channel, *channels]))
    edited["channel"] = st.selectbox("Channel", known, index=known.index(recipe.channel), help=_doc("channel"))
    left, right = st.columns(2)
    edited["n_rollouts"] = _integer_input(left, "Rollouts per group", "n_rollouts", recipe.n_rollouts, "all")
    edited["batch_size"] = _integer_input(right, "Batch size (groups)", "batch_size", recipe.batch_size, "all")
    with st.expander(f"More settings{_changed_text(recipe)}", key="recipe-more"):
        edited |= _more(recipe)
    wanted = parse_recipe(edited)
    if wanted.to_json() != recipe.to_json():
        state.set_query(**{PARAM: recipe_to_query(wanted, base)})
        st.rerun()


SHOWN = frozenset({"algorithm", "options", "channel", "n_rollouts", "batch_size"})
"""Fields that stand above the others."""


def _changed_text(recipe: Recipe) -> str:
    """How many of the other fields differ from their defaults: `` · 2 changed``, or nothing."""
    default = Recipe(algorithm=recipe.algorithm).to_json()
    n = sum(value != default.get(name) for name, value in recipe.to_json().items() if name not in SHOWN)
    return f" · {n} changed" if n else ""


def _more(recipe: Recipe) -> dict[str, Any]:
    """The fields that most recipes leave at their defaults."""
    edited: dict[str, Any] = dict(_data_source(recipe))
    left, right = st.columns(2)
    edited["max_staleness"] = _integer_input(
        left, "Max staleness", "max_staleness", recipe.max_staleness, "any", least=0
    )
    edited["policy_version"] = _integer_input(
        right, "Current policy version", "policy_version", recipe.policy_version, "newest", least=0
    )
    edited["token_budget"] = int(
        st.number_input("Tokens per packed row", 1, value=recipe.token_budget, step=1024, help=_doc("token_budget"))
    )
    edited["n_ranks"] = int(st.number_input("Ranks", 1, 65536, recipe.n_ranks, help=_doc("n_ranks")))
    sources = list(recipe.token_sources or ())
    chosen = st.multiselect(
        "Token sources",
        [str(source) for source in TokenSource],
        default=[str(source) for source in sources],
        placeholder="set by the algorithm",
        help=_doc("token_sources"),
    )
    edited["token_sources"] = chosen or None
    for name, label in TOGGLES.items():
        edited[name] = st.toggle(label, getattr(recipe, name), help=_doc(name))
    return edited | _order_and_limits(recipe)


def algorithm_title(name: str, lacking: Mapping[str, str]) -> str:
    """An algorithm's title, with the field that it needs and ``missing_by_algorithm`` names."""
    return REGISTRY[name].title + (f" · needs {lacking[name]}" if name in lacking else "")


def missing_by_algorithm(recipe: Recipe) -> dict[str, str]:
    """Algorithm -> the field that it needs with its default options and that no new step of the channel has."""
    pool = state.service().pool
    needed = {name: list(one.needs(one.settings({})).fields) for name, one in REGISTRY.items()}
    fields = sorted({field for names in needed.values() for field in names})
    of_channel = Recipe(channel=recipe.channel)
    present = cached_answer(
        "fields", View(), of_channel, fields, lambda: pool.training.fields_present(recipe.channel, fields)
    )
    return {
        name: FIELDS[lacks[0]].partition(":")[0]
        for name, fields in needed.items()
        if (lacks := [field for field in fields if field not in present])
    }


def _data_source(recipe: Recipe) -> dict[str, str | None]:
    """The choice of training data: the current pool, a saved view, or a frozen version."""
    pool = state.service().pool
    versions = list(dict.fromkeys([recipe.dataset, *(head["name"] for head in pool.versions.all())]))
    views = list(dict.fromkeys([recipe.view, *(row["name"] for row in pool.views.all())]))
    titles: dict[tuple[str, str] | None, str] = {None: "Current pool"}
    titles |= {("dataset", name): f"Version {name}" for name in versions if name is not None}
    titles |= {("view", name): f"Saved view {name}" for name in views if name is not None}
    current = next((one for one in titles if one in (("dataset", recipe.dataset), ("view", recipe.view))), None)
    options = list(titles)
    chosen = st.selectbox(
        "Training data",
        options,
        index=options.index(current),
        format_func=titles.__getitem__,
        help="A version keeps the labels it was frozen with; later labels and filters do not change it.",
    )
    kind, name = chosen or ("", None)
    return {"dataset": name if kind == "dataset" else None, "view": name if kind == "view" else None}


def _order_and_limits(recipe: Recipe) -> dict[str, Any]:
    """Which groups come first, and limits of steps and trajectories."""
    edited: dict[str, Any] = {}
    for name, label in (("order", "Group order"), ("balance", "If a group has extra rollouts")):
        choices = list(get_args(Recipe.model_fields[name].annotation))
        edited[name] = st.selectbox(
            label,
            choices,
            index=choices.index(getattr(recipe, name)),
            format_func=CHOICES.__getitem__,
            help=_doc(name),
        )
    edited["difficulty_target"] = recipe.difficulty_target
    if edited["order"] == "difficulty":
        edited["difficulty_target"] = st.number_input(
            "Target mean reward", value=recipe.difficulty_target, step=0.1, help=_doc("difficulty_target")
        )
    left, right = st.columns(2)
    edited["min_rollouts"] = _integer_input(left, "Minimum rollouts", "min_rollouts", recipe.min_rollouts, "all")
    edited["max_uses"] = _integer_input(right, "Maximum uses", "max_uses", recipe.max_uses, "any")
    edited["max_prompt_tokens"] = _integer_input(
        left, "Max prompt tokens", "max_prompt_tokens", recipe.max_prompt_tokens, "any"
    )
    edited["max_response_tokens"] = _integer_input(
        right, "Max response tokens", "max_response_tokens", recipe.max_response_tokens, "any"
    )
    edited["max_leaves"] = _integer_input(left, "Max branches per trajectory", "max_leaves", recipe.max_leaves, "any")
    for name, text in BRANCHES.items():
        edited[name] = right.toggle(text, getattr(recipe, name), help=_doc(name))
    edited["temperature"] = left.number_input(
        "Temperature", min_value=0.0, value=recipe.temperature, placeholder="any", help=_doc("temperature")
    )
    losses = list(get_args(Recipe.model_fields["loss"].annotation))
    edited["loss"] = right.selectbox(
        "Steps in the loss",
        losses,
        index=losses.index(recipe.loss),
        format_func=CHOICES.__getitem__,
        help=_doc("loss"),
    )
    listed = list(recipe.rewards) if isinstance(recipe.rewards, tuple) else []
    named: Any = (
        [] if isinstance(recipe.rewards, tuple) else recipe.rewards
    )  # the name of a reward policy is kept as it is
    sources = st.multiselect(
        "Reward source priority",
        list(dict.fromkeys([*listed, *REWARD_SOURCES])),
        default=listed,
        accept_new_options=True,
        placeholder="newest reward",
        help=_doc("rewards"),
    )
    edited["rewards"] = sources or named or None
    critics = [row["model"] for row in state.service().pool.values.models()]
    known = list(dict.fromkeys([None, recipe.value_model, *critics]))
    edited["value_model"] = st.selectbox(
        "Critic",
        known,
        index=known.index(recipe.value_model),
        format_func=lambda name: name or "values sent by producers",
        help=_doc("value_model"),
    )
    return edited


def _options(options: Mapping[str, Option], values: Mapping[str, Any]) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    for name, option in options.items():
        value = values.get(name, option.default)
        if option.choices is not None:
            picked = st.selectbox(name, option.choices, index=option.choices.index(value), help=option.description)
        else:
            picked = st.number_input(
                name,
                min_value=None if option.minimum is None else float(option.minimum),
                value=None if value is None else float(value),
                help=option.description,
                format="%.6g",
            )
            if option.integer and picked is not None:
                picked = int(picked)
        if picked != option.default and (picked is not None or option.optional):
            chosen[name] = picked
    return chosen


def _integer_input(where: Any, label: str, name: str, value: int | None, empty: str, least: int = 1) -> int | None:
    entered = where.number_input(label, min_value=least, value=value, step=1, placeholder=empty, help=_doc(name))
    return None if entered is None else int(entered)


def _doc(name: str) -> str:
    return str(Recipe.model_fields[name].description)
