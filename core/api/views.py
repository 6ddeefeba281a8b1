"""The routes for saved views. A saved view's name is accepted wherever a route takes a view."""

from __future__ import annotations

from typing import Any

from core.api.handling import Call
from core.api.routing import Router
from core.api.schemas import STR, TIME, VIEW, array, obj
from core.api.wire import ViewIn

routes = Router()


@routes("GET", "/views", obj(views=array(obj(name=STR, view=VIEW, created_at=TIME))))
def views(call: Call) -> Any:
    """List saved views."""
    return {"views": [_public(row) for row in call.deps.pool.views.all()]}


@routes("GET", "/views/{name}", obj(name=STR, view=VIEW), statuses=(404,))
def one_view(call: Call) -> Any:
    """One saved view."""
    name = call.path["name"]
    return _public({"name": name, "view": call.deps.pool.views.get(name)})


@routes(
    "PUT",
    "/views/{name}",
    obj(name=STR, view=VIEW),
    statuses=(404,),
    example={"filters": {"agent": "coder"}, "where": "reward > 0.5"},
)
def save(call: Call, body: ViewIn) -> Any:
    """Save a view under a name, for use in steps, plans, fetches and recipes."""
    call.deps.pool.views.save(call.path["name"], body.view())
    return one_view(call)


@routes("DELETE", "/views/{name}", obj(deleted=STR), statuses=(404,))
def delete(call: Call) -> Any:
    """Delete a saved view."""
    call.deps.pool.views.delete(call.path["name"])
    return {"deleted": call.path["name"]}


def _public(row: dict[str, Any]) -> dict[str, Any]:
    view = row["view"]
    return {**row, "view": {"filters": dict(view.filters), "where": view.where}}
