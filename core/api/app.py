"""All routes of the studio's API."""

from __future__ import annotations

from starlette.convertors import register_url_convertor
from starlette.routing import Route

from core.api import batches, clawr1, data, feedback, keys, openapi, produce, read, recipes, train, views
from core.api.handling import PREFIX, AnyUid, ApiDeps, AsyncHandler, Handler, endpoint


def create_api(deps: ApiDeps) -> list[Route]:
    """All routes, ready to be mounted beside the gateway's."""
    register_url_convertor("uid", AnyUid())
    table: list[tuple[str, str, Handler | AsyncHandler]] = [
        *[(method, PREFIX + path, handler) for method, path, handler in produce.ROUTES],
        *[(method, PREFIX + path, handler) for method, path, handler in keys.ROUTES],
        *[(method, PREFIX + path, handler) for method, path, handler in feedback.ROUTES],
        *[(method, PREFIX + path, handler) for method, path, handler in read.ROUTES],
        *[(method, PREFIX + path, handler) for method, path, handler in train.ROUTES],
        *[(method, PREFIX + path, handler) for method, path, handler in batches.ROUTES],
        *[(method, PREFIX + path, handler) for method, path, handler in recipes.ROUTES],
        *[(method, PREFIX + path, handler) for method, path, handler in views.ROUTES],
        *[(method, PREFIX + path, handler) for method, path, handler in data.ROUTES],
        *[(method, path, handler) for method, path, handler in read.ROOT_ROUTES],
        *[(method, path, handler) for method, path, handler in clawr1.ROUTES],
        *[(method, path, handler) for method, path, handler in openapi.ROUTES],
    ]
    return [Route(path, endpoint(deps, handler), methods=[method]) for method, path, handler in table]
