"""What the next fetch of a channel would lease, and the editor of its recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from core.batch.funnel import Excluded
from core.batch.leases import Fetch
from core.batch.recipe import Recipe, difference, parse_recipe
from core.errors import StudioError
from core.types import View
from studio import kit, state
from studio.kit.html_tables import html_table
from studio.widgets.plans.current_plan import cached_answer
from studio.widgets.plans.recipe_editor import recipe_editor
from studio.widgets.plans.recipe_query import query_fields


def ready_groups(channel: str) -> tuple[int, int | None]:
    """(groups ready for the channel's recipe, groups per batch or None)."""
    recipe = state.service().leases.choose(Fetch("studio", channel=channel)).recipe
    return fetchable(recipe.model_copy(update={"batch_size": None})).counts["n_groups"], recipe.batch_size


@dataclass(frozen=True, slots=True)
class Fetchable:
    """What a new consumer's fetch would get: counts, and exclusions."""

    counts: Mapping[str, int]
    excluded: Sequence[Excluded]


def fetchable(recipe: Recipe) -> Fetchable:
    """What a fetch with this recipe would lease now; cached until the pool is written to."""

    def ask() -> Fetchable:
        plan = state.service().leases.preview(Fetch("studio", recipe=recipe.to_json()))
        return Fetchable(plan.counts, plan.excluded)

    return cached_answer("fetch", View(), recipe, None, ask)


def next_fetch(channel: str) -> None:
    """The channel's recipe, what it would lease now, and the editor for its next version."""
    service = state.service()
    chosen = service.leases.choose(Fetch("studio", channel=channel))
    title = f"{chosen.name} v{chosen.version}" if chosen.name else "no active recipe; defaults are used"
    kit.section("Next fetch", title)
    edited = edited_recipe(chosen.recipe)
    now = fetchable(chosen.recipe)
    then = now if edited == chosen.recipe else fetchable(edited)
    effect(now, then, edited.batch_size)
    changes = difference(chosen.recipe.to_json(), edited.to_json())
    name, wanted = "", False
    if changes:
        html_table(
            ["Field", "Current", "New"],
            [(f"<code>{kit.escape(one['field'])}</code>", text_of(one["a"]), text_of(one["b"])) for one in changes],
        )
        with st.form("activate", border=False):
            name = st.text_input("Recipe name", chosen.name or "default")
            wanted = st.form_submit_button("Use for the next fetch", type="primary", width="stretch")
        if st.button("Discard changes", width="stretch"):
            state.set_query(recipe=None)
            st.rerun()
    recipe_editor(edited, [channel], base=chosen.recipe)
    # After the editor: a field that was changed just before the click is in the table first.
    if wanted:
        version = service.pool.recipes.save(name, edited.to_json(), author=state.author())
        service.pool.recipes.activate(channel, name.strip(), version, author=state.author())
        state.set_query(recipe=None)
        st.rerun()


def text_of(value: Any) -> str:
    """A recipe value as a table shows it."""
    return kit.DASH if value is None else kit.escape(str(value))


def edited_recipe(active: Recipe) -> Recipe:
    """The active recipe with the URL's changes. Invalid changes show an error and are ignored."""
    try:
        return active if state.query("recipe") is None else parse_recipe({**active.to_json(), **query_fields()})
    except StudioError as error:
        kit.show_error(error)
        if st.button("Discard changes", width="stretch"):
            state.set_query(recipe=None)
            st.rerun()
        return active


EFFECTS = (("n_groups", "Groups"), ("n_trajectories", "Trajectories"), ("n_steps", "Steps"), ("n_tokens", "Tokens"))


def effect(now: Fetchable, then: Fetchable, batch_size: int | None) -> None:
    """What a fetch would get now, and with the changes."""
    cells = []
    for name, label in EFFECTS:
        before, after = now.counts[name], then.counts[name]
        sub = f"{after - before:+,} compared with now" if before != after else ""
        cells.append(kit.Figure(label, kit.count(after), sub=sub, tone="warn" if after < before else ""))
    kit.figures(cells, dense=True)
    if then.counts["n_groups"] < (batch_size or 1):
        reasons = sorted(then.excluded, key=lambda item: -item.n_groups)[:3]
        st.caption(
            "Not enough for a batch. " + "; ".join(f"{item.label}: {kit.count(item.n_groups)}" for item in reasons)
        )
