"""Saved views over HTTP: kept under a name, and meant by it wherever a view is asked for."""

from __future__ import annotations

from typing import Any

from core.api.handling import Call, Handler
from core.api.wire import ViewIn, check


def views(call: Call) -> Any:
    """``GET views``."""
    return {"views": [_public(row) for row in call.deps.pool.views.all()]}


def one_view(call: Call) -> Any:
    """``GET views/{name}``."""
    name = call.path["name"]
    return _public({"name": name, "view": call.deps.pool.views.get(name)})


def save(call: Call) -> Any:
    """``PUT views/{name}``: in place of an older one."""
    call.deps.pool.views.save(call.path["name"], check(ViewIn, call.json()).view())
    return one_view(call)


def delete(call: Call) -> Any:
    """``DELETE views/{name}``."""
    call.deps.pool.views.delete(call.path["name"])
    return {"deleted": call.path["name"]}


def _public(row: dict[str, Any]) -> dict[str, Any]:
    view = row["view"]
    return {**row, "view": {"filters": dict(view.filters), "where": view.where}}


ROUTES: list[tuple[str, str, Handler]] = [
    ("GET", "/views", views),
    ("GET", "/views/{name}", one_view),
    ("PUT", "/views/{name}", save),
    ("DELETE", "/views/{name}", delete),
]
