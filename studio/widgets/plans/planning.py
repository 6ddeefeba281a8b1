"""The recipe on the screen and in the URL, and the plan that it makes of the URL's view.

The plan is ``core.batch.plan.plan``'s, whole: what a page draws of it is what a fetch leases and an export writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar, get_args

import streamlit as st

from core.batch.plan import Plan, count_plan, plan
from core.batch.recipe import Recipe, parse_recipe
from core.credit import REGISTRY, Option
from core.errors import InvalidInput, StudioError
from core.types import TokenSource, View
from studio import state
from studio.kit.callouts import show_error
from studio.kit.figures import Figure, figures
from studio.kit.format import DASH, compact, count, number, percent
from studio.widgets.plans.packing import packed

PARAM = "recipe"


def recipe_from_query() -> Recipe:
    """The URL's recipe; defaults where it says nothing. InvalidInput names the field that doesn't fit."""
    return parse_recipe(query_fields())


def query_fields() -> dict[str, Any]:
    """The fields of a recipe that the URL spells, not looked at yet; InvalidInput when they are no JSON object."""
    text = state.query(PARAM)
    if text is None:
        return {}
    try:
        given = json.loads(text)
    except ValueError as error:
        raise InvalidInput("The recipe in the URL is not JSON.", field=PARAM) from error
    if not isinstance(given, dict):
        raise InvalidInput("The recipe in the URL is not an object.", field=PARAM)
    return given


def safe_recipe() -> Recipe:
    """The URL's recipe; one that doesn't fit is explained and replaced by the defaults."""
    try:
        return recipe_from_query()
    except StudioError as error:
        show_error(error)
        if st.button("Use the default recipe", key="default-recipe"):
            state.set_query(**{PARAM: None})
            st.rerun()
        return Recipe()


def standing_recipe(channel: str) -> tuple[Recipe, str]:
    """The URL's recipe, else the one that the channel's trainers fetch by, else the defaults; and where it is from."""
    if state.query(PARAM) is not None:
        return recipe_from_query(), "the page's recipe"
    active = state.service().pool.recipes.active(channel)
    if active is None:
        return Recipe(channel=channel), "default recipe"
    return parse_recipe(active["recipe"]), f"recipe {active['name']} v{active['version']}"


def recipe_to_query(recipe: Recipe, base: Recipe | None = None) -> str | None:
    """What differs from ``base`` (the defaults unless told), as JSON; None when nothing does."""
    # Compared with all options spelled out: leaving one at its default says the same as naming it.
    standing, wanted = (base or Recipe()).to_json(), recipe.to_json()
    given = recipe.model_dump(mode="json")
    changed = {name: value for name, value in given.items() if wanted.get(name) != standing.get(name)}
    return json.dumps(changed, sort_keys=True, separators=(",", ":")) if changed else None


T = TypeVar("T")


def current_plan(view: View, recipe: Recipe) -> Plan:
    """The plan of the running service's pool; the same object, its layout included, while nothing was written."""
    return _plan_at(*_moment(view, recipe), view, recipe)


def as_of_now(name: str, view: View, recipe: Recipe, more: Any, ask: Callable[[], T]) -> T:
    """What ``ask`` tells about view and recipe; asked again only once something was written. ``more`` as JSON."""
    answer: T = _told_at(*_moment(view, recipe), name, json.dumps(more, sort_keys=True, default=str), ask)
    return answer


def _moment(view: View, recipe: Recipe) -> tuple[str, int, str]:
    """The pool, how often it was written to, and what is asked of it: equal moments have equal answers."""
    service = state.service()
    asked = json.dumps([dict(view.filters), view.where, recipe.to_json()], sort_keys=True, default=str)
    return f"{service.settings.pool_path} {service.port}", service.pool.n_writes, asked


@st.cache_resource(max_entries=4, show_spinner=False)
def _plan_at(opened: str, n_writes: int, asked: str, _view: View, _recipe: Recipe) -> Plan:
    return plan(state.service().pool, _view, _recipe)


@st.cache_resource(max_entries=32, show_spinner=False)
def _told_at(opened: str, n_writes: int, asked: str, name: str, more: str, _ask: Callable[[], Any]) -> Any:
    return _ask()


def link_params(view: View, recipe: Recipe) -> dict[str, Any]:
    """URL parameters that carry view and recipe to another page."""
    return {**state.view_to_query(view), PARAM: recipe_to_query(recipe)}


def recipe_editor(recipe: Recipe, channels: Sequence[str], base: Recipe | None = None) -> None:
    """The recipe's fields; a change goes to the URL, as what differs from ``base``, and plans again."""
    edited: dict[str, Any] = {}
    names = list(REGISTRY)
    edited["algorithm"] = st.selectbox(
        "Algorithm", names, index=names.index(recipe.algorithm), format_func=lambda name: REGISTRY[name].title
    )
    estimator = REGISTRY[edited["algorithm"]]
    st.caption(f"`{estimator.formula}`")
    given = recipe.options if edited["algorithm"] == recipe.algorithm else {}
    with st.expander(f"{estimator.title} options") if estimator.options else nullcontext():
        edited["options"] = _options(estimator.options, given)
    edited |= _data(recipe)
    known = list(dict.fromkeys([recipe.channel, *channels]))
    edited["channel"] = st.selectbox("Channel", known, index=known.index(recipe.channel), help=_doc("channel"))
    left, right = st.columns(2)
    edited["n_rollouts"] = _whole(left, "Rollouts", "n_rollouts", recipe.n_rollouts, "all")
    edited["batch_size"] = _whole(right, "Groups", "batch_size", recipe.batch_size, "all")
    edited["max_staleness"] = _whole(left, "Max staleness", "max_staleness", recipe.max_staleness, "any", least=0)
    edited["policy_version"] = _whole(right, "Counted from", "policy_version", recipe.policy_version, "newest", least=0)
    edited["token_budget"] = int(
        st.number_input("Token budget of a row", 1, value=recipe.token_budget, step=1024, help=_doc("token_budget"))
    )
    edited["n_ranks"] = int(st.number_input("Ranks", 1, 65536, recipe.n_ranks, help=_doc("n_ranks")))
    sources = list(recipe.token_sources or ())
    chosen = st.multiselect(
        "Token sources",
        [str(source) for source in TokenSource],
        default=[str(source) for source in sources],
        placeholder="as the algorithm needs",
        help=_doc("token_sources"),
    )
    edited["token_sources"] = chosen or None
    for name, label in TOGGLES.items():
        edited[name] = st.toggle(label, getattr(recipe, name), help=_doc(name))
    with st.expander("Order and limits"):
        edited |= _order_and_limits(recipe)
    wanted = parse_recipe(edited)
    if wanted.to_json() != recipe.to_json():
        state.set_query(**{PARAM: recipe_to_query(wanted, base)})
        st.rerun()


def _data(recipe: Recipe) -> dict[str, str | None]:
    """Whether the pool as it is now, the steps of a saved view, or a frozen version is trained on."""
    pool = state.service().pool
    versions = list(dict.fromkeys([recipe.dataset, *(head["name"] for head in pool.versions.all())]))
    views = list(dict.fromkeys([recipe.view, *(row["name"] for row in pool.views.all())]))
    titles: dict[tuple[str, str] | None, str] = {None: "The pool as it is now"}
    titles |= {("dataset", name): f"Version {name}" for name in versions if name is not None}
    titles |= {("view", name): f"Saved view {name}" for name in views if name is not None}
    standing = next((one for one in titles if one in (("dataset", recipe.dataset), ("view", recipe.view))), None)
    options = list(titles)
    chosen = st.selectbox(
        "Trained on",
        options,
        index=options.index(standing),
        format_func=titles.__getitem__,
        help="A version is trained on as it was frozen: labels and filters of later don't reach it.",
    )
    kind, name = chosen or ("", None)
    return {"dataset": name if kind == "dataset" else None, "view": name if kind == "view" else None}


TOGGLES = {"require_complete": "Complete trajectories only", "drop_flat_groups": "Skip flat groups"}


REWARD_SOURCES = ("human", "verifier", "judge", "service", "complete", "steps")


def _order_and_limits(recipe: Recipe) -> dict[str, Any]:
    """The fields that most recipes leave as they are."""
    edited: dict[str, Any] = {}
    for name, label in (("order", "Groups first"), ("balance", "Of too many rollouts")):
        choices = list(get_args(Recipe.model_fields[name].annotation))
        edited[name] = st.selectbox(label, choices, index=choices.index(getattr(recipe, name)), help=_doc(name))
    edited["difficulty_target"] = recipe.difficulty_target
    if edited["order"] == "difficulty":
        edited["difficulty_target"] = st.number_input(
            "Mean reward wanted", value=recipe.difficulty_target, step=0.1, help=_doc("difficulty_target")
        )
    left, right = st.columns(2)
    edited["min_rollouts"] = _whole(left, "Fewest rollouts", "min_rollouts", recipe.min_rollouts, "no fewer")
    edited["max_uses"] = _whole(right, "Uses", "max_uses", recipe.max_uses, "any number")
    edited["max_prompt_tokens"] = _whole(left, "Longest prompt", "max_prompt_tokens", recipe.max_prompt_tokens, "any")
    edited["max_response_tokens"] = _whole(
        right, "Longest response", "max_response_tokens", recipe.max_response_tokens, "any"
    )
    edited["temperature"] = left.number_input(
        "Temperature", min_value=0.0, value=recipe.temperature, placeholder="any", help=_doc("temperature")
    )
    losses = list(get_args(Recipe.model_fields["loss"].annotation))
    edited["loss"] = right.selectbox("Steps in the loss", losses, index=losses.index(recipe.loss), help=_doc("loss"))
    listed = list(recipe.rewards) if isinstance(recipe.rewards, tuple) else []
    named: Any = [] if isinstance(recipe.rewards, tuple) else recipe.rewards  # a reward policy stays what it is
    sources = st.multiselect(
        "Rewards, first that there is",
        list(dict.fromkeys([*listed, *REWARD_SOURCES])),
        default=listed,
        accept_new_options=True,
        placeholder="the newest word",
        help=_doc("rewards"),
    )
    edited["rewards"] = sources or named or None
    critics = [row["model"] for row in state.service().pool.values.models()]
    known = list(dict.fromkeys([None, recipe.value_model, *critics]))
    edited["value_model"] = st.selectbox(
        "Critic",
        known,
        index=known.index(recipe.value_model),
        format_func=lambda name: name or "values that producers sent",
        help=_doc("value_model"),
    )
    return edited


def totals_row(made: Plan) -> None:
    """The plan's totals in one row; of a plan too big to pack in passing, where its packing is found."""
    totals = made.counts
    layout = packed(made)
    cells = [
        Figure("Groups", count(totals["n_groups"]), help="prompt group"),
        Figure("Trajectories", count(totals["n_trajectories"]), help="trajectory"),
        Figure("Steps", count(totals["n_steps"]), help="step"),
        Figure("Tokens", compact(totals["n_tokens"]), sub=f"{compact(totals['n_loss_tokens'])} in the loss"),
    ]
    if layout is None:
        said = "Packing reads every token: the Packing button opens an estimate, and packs the plan when asked"
        cells.append(Figure("Packed", DASH, sub="see Packing", help=said))
    else:
        n_rows, once = len(layout.rows), layout.n_packed_tokens
        capacity = n_rows * layout.token_budget
        cells += [
            Figure("Packed", compact(once), sub="prefixes once", help="prefix tree"),
            Figure("Token ratio", number(layout.token_ratio), help="token ratio"),
            Figure(
                "Rows",
                count(n_rows),
                sub=f"{percent(capacity - once, capacity)} padding" if n_rows else "",
                help="Packed rows under the token budget",
            ),
        ]
    figures(cells, dense=True)


def counts_now(view: View, recipe: Recipe) -> dict[str, int]:
    """``current_plan(…).counts``, without making the plan where counts are all that is shown."""
    pool = state.service().pool
    return as_of_now("counts", view, recipe, None, lambda: count_plan(pool, view, recipe))


def plan_counts(counts: Mapping[str, int]) -> dict[str, int]:
    """Groups, trajectories, steps and tokens of ``Plan.counts``, as pages call them."""
    return {name: counts[f"n_{name}"] for name in ("groups", "trajectories", "steps", "tokens")}


def _options(options: Mapping[str, Option], given: Mapping[str, Any]) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    for name, option in options.items():
        value = given.get(name, option.default)
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
            if option.whole and picked is not None:
                picked = int(picked)
        if picked != option.default and (picked is not None or option.optional):
            chosen[name] = picked
    return chosen


def _whole(where: Any, label: str, name: str, value: int | None, empty: str, least: int = 1) -> int | None:
    entered = where.number_input(label, min_value=least, value=value, step=1, placeholder=empty, help=_doc(name))
    return None if entered is None else int(entered)


def _doc(name: str) -> str:
    return str(Recipe.model_fields[name].description)
