"""The recipe in the URL: read, written, and carried in links to other pages."""

from __future__ import annotations

import json
from typing import Any

import streamlit as st

from core.batch.recipe import Recipe, parse_recipe
from core.errors import InvalidInput, StudioError
from core.types import View
from studio import state
from studio.kit.callouts import show_error

PARAM = "recipe"


def recipe_from_query() -> Recipe:
    """The recipe in the URL, with defaults for missing fields. InvalidInput names an invalid field."""
    return parse_recipe(query_fields())


def query_fields() -> dict[str, Any]:
    """The recipe fields in the URL, not validated. InvalidInput when they are not a JSON object."""
    text = state.query(PARAM)
    if text is None:
        return {}
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise InvalidInput("The recipe in the URL is not JSON.", field=PARAM) from error
    if not isinstance(fields, dict):
        raise InvalidInput("The recipe in the URL is not an object.", field=PARAM)
    return fields


def safe_recipe() -> Recipe:
    """The recipe in the URL; an invalid one is explained and replaced by the defaults."""
    try:
        return recipe_from_query()
    except StudioError as error:
        show_error(error)
        if st.button("Use the default recipe", key="default-recipe"):
            state.set_query(**{PARAM: None})
            st.rerun()
        return Recipe()


def effective_recipe(channel: str) -> tuple[Recipe, str]:
    """The recipe in the URL, else the channel's active one, else the defaults; and its origin as text."""
    if state.query(PARAM) is not None:
        return recipe_from_query(), "the page's recipe"
    active = state.service().pool.recipes.active(channel)
    if active is None:
        return Recipe(channel=channel), "default recipe"
    return parse_recipe(active["recipe"]), f"recipe {active['name']} v{active['version']}"


def recipe_to_query(recipe: Recipe, base: Recipe | None = None) -> str | None:
    """The fields that differ from ``base`` (default: the default recipe) as JSON; None when none does."""
    # Compared with all options filled in: an omitted option equals its default.
    base_fields, wanted = (base or Recipe()).to_json(), recipe.to_json()
    fields = recipe.model_dump(mode="json")
    changed = {name: value for name, value in fields.items() if wanted.get(name) != base_fields.get(name)}
    return json.dumps(changed, sort_keys=True, separators=(",", ":")) if changed else None


def link_params(view: View, recipe: Recipe) -> dict[str, Any]:
    """URL parameters that carry view and recipe to another page."""
    return {**state.view_to_query(view), PARAM: recipe_to_query(recipe)}
