"""Roles of routes: which key a request needs."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from core.gateway.http.error_shapes import MODEL_PATH


class Role(StrEnum):
    """Which key a route accepts, where the service requires one.

    ``OPEN``: none is needed. ``SESSION``: the admin key or a session key. ``ADMIN``: the admin key alone.
    """

    OPEN = "open"
    SESSION = "session"
    ADMIN = "admin"


def role_of(path: str, open_paths: Collection[str]) -> Role:
    """The role of a request's path, known before it is routed. Paths without a route have one as well.

    It agrees with the role that each route declares (``core.api.routing.Operation``).

    Args:
        open_paths: the paths of all routes that are declared ``OPEN``.
    """
    if path in open_paths:
        return Role.OPEN
    return Role.SESSION if MODEL_PATH.match(path) else Role.ADMIN
