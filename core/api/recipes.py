"""Recipes over HTTP: versions, their difference, and which one a channel uses."""

from __future__ import annotations

from typing import Any

from core.api.handling import Call, Handler
from core.api.trainer_wire import ActiveRecipeIn, RecipeIn
from core.api.wire import check
from core.batch.recipe import difference, parse_recipe
from core.errors import InvalidInput


def recipes(call: Call) -> Any:
    """``GET recipes``: the newest version of each, and the active one by channel."""
    pool = call.deps.pool
    active = {
        channel: {"name": found["name"], "version": found["version"]}
        for channel, found in pool.recipes.all_active().items()
    }
    return {"recipes": pool.recipes.all(), "active": active}


def one_recipe(call: Call) -> Any:
    """``GET recipes/{name}``: all versions, newest first."""
    return {"name": call.path["name"], "versions": call.deps.pool.recipes.versions(call.path["name"])}


def save(call: Call) -> Any:
    """``PUT recipes/{name}``."""
    body = check(RecipeIn, call.json())
    recipe = parse_recipe(body.recipe).to_json()
    version = call.deps.pool.recipes.save(call.path["name"], recipe, author=body.author)
    return {"name": call.path["name"], "version": version, "recipe": recipe}


def diff(call: Call) -> Any:
    """``GET recipes/{name}/diff?a=&b=``: what differs between two versions, the newest two unless told."""
    versions = {row["version"]: row["recipe"] for row in call.deps.pool.recipes.versions(call.path["name"])}
    newest = max(versions)
    b = call.int_query("b", newest, low=1, high=newest)
    a = call.int_query("a", max(1, b - 1), low=1, high=newest)
    return {"name": call.path["name"], "a": a, "b": b, "changes": difference(versions[a], versions[b])}


def activate(call: Call) -> Any:
    """``PUT channels/{channel}/recipe``."""
    body = check(ActiveRecipeIn, call.json())
    if body.name is None and body.version is not None:
        raise InvalidInput("a version needs a name", field="name")
    call.deps.pool.recipes.activate(call.path["channel"], body.name, body.version, author=body.author)
    return active(call)


def active(call: Call) -> Any:
    """``GET channels/{channel}/recipe``."""
    return {"channel": call.path["channel"], "active": call.deps.pool.recipes.active(call.path["channel"])}


ROUTES: list[tuple[str, str, Handler]] = [
    ("GET", "/recipes", recipes),
    ("GET", "/recipes/{name}", one_recipe),
    ("PUT", "/recipes/{name}", save),
    ("GET", "/recipes/{name}/diff", diff),
    ("PUT", "/channels/{channel}/recipe", activate),
    ("GET", "/channels/{channel}/recipe", active),
]
