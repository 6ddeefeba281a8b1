"""A fast router for model calls, in front of the framework's list of routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, unquote

from starlette.routing import Route

from core.gateway.calls.clawr1 import UID_PREFIX
from core.gateway.http.asgi import Receive, Scope, Send

_ROOT = "/v1/"
_SLASH: Final = "\ud82f"
"""Replaces a slash inside a uid while routes are matched. It is half a surrogate pair, so no decoded path contains it.
"""
_DOUBLED: Final = "/v1/v1/"
_CALLS: Final = frozenset(
    {"chat", "completions", "responses", "messages", "models", "embeddings", "tokenize", "detokenize"}
)
"""First path segments after ``/v1/`` of model calls."""

Asgi = Callable[[Any, Receive, Send], Awaitable[None]]


class FastRouter:
    """ASGI middleware that serves ``POST`` model calls directly and passes everything else on.

    Args:
        app: serves everything else.
        routes: the gateway's; those under ``/v1`` without parameters are served here, also under a trajectory's prefix.
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
        if scope["type"] == "http" and _DOUBLED in scope["path"]:
            scope = _single_prefix(scope)
        if scope["type"] == "http" and (path := matched_path(scope)) != scope["path"]:
            scope = {**scope, "path": path}
        if scope["type"] == "http" and scope["method"] == "POST":
            path = scope["path"]
            params: dict[str, str] = {}
            endpoint = None
            if path.startswith(_ROOT):
                endpoint = self._endpoints.get(path[len(_ROOT) :])
            elif path.startswith("/"):
                _, *named, rest = path.split("/", 4)
                # Claw-R1's trajectories have endpoints of their own.
                if len(named) == 3 and all(named) and named[2] == "v1" and not named[0].startswith(UID_PREFIX):
                    params = decode_slashes({"trajectory_uid": named[0], "prompt_uid": named[1]})
                    endpoint = self._endpoints.get(rest)
            if endpoint is not None:
                await endpoint({**scope, "path_params": params}, receive, send)
                return
        await self._app(scope, receive, send)


def matched_path(scope: Scope) -> str:
    """The path for matching: encoded slashes under ``/{trajectory_uid}/{prompt_uid}/v1`` do not split a uid."""
    path: str = scope["path"]
    raw_path: bytes = scope.get("raw_path", b"")
    if b"%2" not in raw_path:
        return path
    parts = raw_path.split(b"/", 4)
    if len(parts) < 5 or parts[3] != b"v1" or not any(b"%2f" in part.lower() for part in parts[1:3]):
        return path
    uids = [unquote(part.decode("ascii", "replace")).replace("/", _SLASH) for part in parts[1:3]]
    return "/".join(["", *uids, "v1", unquote(parts[4].decode("ascii", "replace"))])


def decode_slashes(params: Mapping[str, str]) -> dict[str, str]:
    """Path parameters with their slashes restored."""
    return {name: value.replace(_SLASH, "/") if isinstance(value, str) else value for name, value in params.items()}


def _single_prefix(scope: Scope) -> Scope:
    """``/v1/v1/...`` as ``/v1/...``, also under a trajectory's prefix: some clients append ``/v1`` to a URL that has
    one.
    """
    head, _, rest = scope["path"].partition(_DOUBLED)
    # Model calls only: admission checked the original path, so no other path may be rewritten.
    if rest.partition("/")[0] not in _CALLS or head.count("/") not in (0, 2):
        return scope
    path = f"{head}{_ROOT}{rest}"
    return {**scope, "path": path, "raw_path": quote(path).encode()}
