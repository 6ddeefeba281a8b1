"""The short way in: model calls go to their endpoint without climbing through a router's list of routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.routing import Route

from core.gateway.asgi import Receive, Scope, Send
from core.gateway.clawr1 import UID_PREFIX

_ROOT = "/v1/"

Asgi = Callable[[Any, Receive, Send], Awaitable[None]]


class Front:
    """An application before another one: takes the ``POST`` calls whose path says all, leaves the rest.

    Args:
        app: what serves everything else.
        routes: the gateway's; those under ``/v1`` without parameters are taken, there and under a trajectory's prefix.
    """

    def __init__(self, app: Asgi, routes: Sequence[Route]) -> None:
        self._app = app
        self._endpoints = {
            route.path.removeprefix(_ROOT): route.endpoint
            for route in routes
            if route.path.startswith(_ROOT) and "{" not in route.path and "POST" in (route.methods or ())
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one call."""
        if scope["type"] == "http" and scope["method"] == "POST":
            path: str = scope["path"]
            params: dict[str, str] = {}
            endpoint = None
            if path.startswith(_ROOT):
                endpoint = self._endpoints.get(path[len(_ROOT) :])
            elif path.startswith("/"):
                _, *named, rest = path.split("/", 4)
                # Claw-R1's trajectories have endpoints of their own.
                if len(named) == 3 and all(named) and named[2] == "v1" and not named[0].startswith(UID_PREFIX):
                    params = {"trajectory_uid": named[0], "prompt_uid": named[1]}
                    endpoint = self._endpoints.get(rest)
            if endpoint is not None:
                await endpoint({**scope, "path_params": params}, receive, send)
                return
        await self._app(scope, receive, send)
