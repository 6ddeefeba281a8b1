"""Collects all routes of the studio's API."""

from __future__ import annotations

from starlette.convertors import register_url_convertor
from starlette.routing import Route

from core.api import openapi
from core.api.handling import AnyUid, ApiDeps
from core.api.routing import endpoint


def create_api(deps: ApiDeps) -> list[Route]:
    """All routes of the API, to be mounted beside those of the gateway."""
    register_url_convertor("uid", AnyUid())
    return [Route(one.path, endpoint(deps, one), methods=[one.method]) for one in (*openapi.SERVED, *openapi.OWN)]
