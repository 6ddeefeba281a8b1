"""The recipe routes: save, list and compare versions, and set the active recipe of a channel."""

from __future__ import annotations

from typing import Any

from core.api.handling import Call
from core.api.routing import Router
from core.api.schemas import ANY, INT, OBJ, STR, array, obj
from core.api.trainer_wire import ActiveRecipeIn, RecipeIn
from core.batch.recipe import difference, parse_recipe
from core.errors import InvalidInput

routes = Router()


@routes("GET", "/recipes", obj(recipes=array(OBJ), active=OBJ))
def recipes(call: Call) -> Any:
    """List recipes.

    The newest version of each, and the active one of each channel.
    """
    pool = call.deps.pool
    active = {
        channel: {"name": recipe["name"], "version": recipe["version"]}
        for channel, recipe in pool.recipes.all_active().items()
    }
    return {"recipes": pool.recipes.all(), "active": active}


@routes("GET", "/recipes/{name}", obj(name=STR, versions=array(OBJ)), statuses=(404,))
def one_recipe(call: Call) -> Any:
    """All versions of a recipe."""
    return {"name": call.path["name"], "versions": call.deps.pool.recipes.versions(call.path["name"])}


@routes("PUT", "/recipes/{name}", obj(name=STR, version=INT, recipe=OBJ))
def save(call: Call, body: RecipeIn) -> Any:
    """Save a new version of a recipe."""
    recipe = parse_recipe(body.recipe).to_json()
    version = call.deps.pool.recipes.save(call.path["name"], recipe, author=body.author)
    return {"name": call.path["name"], "version": version, "recipe": recipe}


@routes(
    "GET",
    "/recipes/{name}/diff",
    obj(name=STR, a=INT, b=INT, changes=ANY),
    query={"a": {"type": "integer", "minimum": 1}, "b": {"type": "integer", "minimum": 1}},
    statuses=(404,),
)
def diff(call: Call) -> Any:
    """Differences between two versions.

    By default the newest two.
    """
    versions = {row["version"]: row["recipe"] for row in call.deps.pool.recipes.versions(call.path["name"])}
    newest = max(versions)
    b = call.int_query("b", newest, low=1, high=newest)
    a = call.int_query("a", max(1, b - 1), low=1, high=newest)
    return {"name": call.path["name"], "a": a, "b": b, "changes": difference(versions[a], versions[b])}


@routes("PUT", "/channels/{channel}/recipe", obj(channel=STR, active=ANY), statuses=(404,))
def activate(call: Call, body: ActiveRecipeIn) -> Any:
    """Set the active recipe of a channel."""
    if body.name is None and body.version is not None:
        raise InvalidInput("a version needs a name", field="name")
    call.deps.pool.recipes.activate(call.path["channel"], body.name, body.version, author=body.author)
    return active(call)


@routes("GET", "/channels/{channel}/recipe", obj(channel=STR, active=ANY))
def active(call: Call) -> Any:
    """The active recipe of a channel."""
    return {"channel": call.path["channel"], "active": call.deps.pool.recipes.active(call.path["channel"])}
