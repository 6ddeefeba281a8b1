"""Admission of requests: host, origin, key and content type are checked before the body is read.

Each request is checked for four things: the ``Host`` names this server; it does not come from a page of another origin;
its key allows this call; a request to the admin API declares JSON. Every server of the port has this layer: a single
process, each gateway worker, and the owner that workers forward to.

There are three roles. Model calls (``/v1`` and ``/{trajectory}/{prompt}/v1``) accept the admin key or a session key. A
few paths reveal nothing and are open. Everything else is the admin API, which never accepts a session key: an agent
reads only its own answers, and can't reward itself.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

from starlette.middleware.cors import CORSMiddleware

from core.errors import Forbidden, ForeignOrigin, StudioError, UnknownHost, UnsupportedMedia
from core.gateway.access.hosts import Hosts, is_foreign
from core.gateway.access.keys import KeyStore, authorize, presented_keys
from core.gateway.access.roles import Role, role_of
from core.gateway.access.wrong_keys import WrongKeys
from core.gateway.http.asgi import Receive, Scope, Send, send_whole
from core.gateway.http.error_shapes import refusal
from core.gateway.http.fast_router import matched_path
from core.gateway.telemetry.stats import GatewayStats

WORKER_HEADER: Final = "x-claw-worker"
"""``TOKEN ADDRESS``: marks a request that a worker forwards, with the client's address."""
CORS_METHODS: Final = ("GET", "POST", "DELETE")
CORS_EXPOSED: Final = ("x-step-uid", "x-trajectory-uid", "retry-after")

_LINES_PATH: Final = "/api/v1/imports"
_LINES_TYPES: Final = frozenset({b"application/jsonl", b"application/x-ndjson", b"application/json"})
_JSON_TYPE = re.compile(rb"application/(?:[\w.!#$&^-]+\+)?json")

Asgi = Callable[[Any, Receive, Send], Awaitable[None]]


class Admission:
    """ASGI middleware that admits or refuses requests.

    Args:
        app: the application that serves admitted requests.
        hosts: host names of this server.
        api_key: the admin key; None requires no key.
        keys: session keys.
        stats: counts refused requests by reason.
        open_paths: paths that need no key.
        cors_origins: origins whose pages may make model calls.
        wrong_keys: shared with every other place that checks the admin key.
        worker_token: sent by gateway workers, which have made the same checks already.
    """

    def __init__(
        self,
        app: Asgi,
        *,
        hosts: Hosts,
        api_key: str | None,
        keys: KeyStore,
        stats: GatewayStats,
        open_paths: Collection[str],
        cors_origins: Collection[str] = (),
        wrong_keys: WrongKeys | None = None,
        worker_token: str | None = None,
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._api_key = api_key
        self._keys = keys
        self._stats = stats
        self._open_paths = frozenset(open_paths)
        self._wrong_keys = wrong_keys or WrongKeys()
        self._worker_token = worker_token
        self._origins = frozenset(origin.encode("latin-1") for origin in cors_origins)
        self._with_cors = CORSMiddleware(
            self._keyed,
            allow_origins=list(cors_origins),
            allow_methods=CORS_METHODS,
            allow_headers=("*",),
            expose_headers=CORS_EXPOSED,
            allow_private_network=True,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        host = origin = site = None
        for name, value in scope["headers"]:
            if name == b"host":
                # Two Host headers may be read differently by two servers.
                host = value if host is None else b""
            elif name == b"origin":
                origin = value if origin is None else b""
            elif name == b"sec-fetch-site":
                site = value
        role = role_of(matched_path(scope), self._open_paths)
        if host is None or not self._hosts.allow(host):
            shown = "none" if host is None else repr(host.decode("latin-1")[:100])
            hint = "send requests to the address that it listens at, or name the host in CLAW_STUDIO_ALLOWED_HOSTS"
            error = UnknownHost(f"this service does not answer for the host {shown}", field="Host", hint=hint)
            await self._refuse(scope, send, error, "host")
        elif is_foreign(origin, site, host) and role is not Role.OPEN:
            if origin in self._origins and role is Role.SESSION:
                await self._with_cors(scope, receive, send)  # type: ignore[arg-type]
                return
            hint = "CLAW_STUDIO_CORS_ORIGINS names those whose pages may make model calls; the admin API takes none"
            shown = f"the origin {origin.decode('latin-1')[:100]!r}" if origin is not None else "another origin"
            error_of_page = ForeignOrigin(f"a page of {shown} may not call this service", field="Origin", hint=hint)
            await self._refuse(scope, send, error_of_page, "origin")
        else:
            await self._keyed(scope, receive, send)

    async def _keyed(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the key of a request whose host and origin are allowed, and serve it."""
        path = matched_path(scope)
        role = role_of(path, self._open_paths)
        if role is not Role.OPEN:
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            try:
                self._check_key(scope, headers, role)
                if role is Role.ADMIN:
                    _check_media(headers, path)
            except UnsupportedMedia as error:
                await self._refuse(scope, send, error, "media_type")
                return
            except StudioError as error:
                await self._refuse(scope, send, error, error.type)
                return
        await self._app(scope, receive, send)

    def _check_key(self, scope: Scope, headers: dict[str, str], role: Role) -> None:
        presented = presented_keys(headers)
        binding = authorize(presented, self._keys, self._api_key, self._address(scope, headers), self._wrong_keys)
        if binding is not None and role is Role.ADMIN:
            raise Forbidden(
                "a session key makes model calls and nothing else",
                field="authorization",
                hint="send the admin key (CLAW_STUDIO_API_KEY)",
            )

    def _address(self, scope: Scope, headers: dict[str, str]) -> str:
        """The client's address, also for a request that a worker forwarded."""
        token, _, address = headers.get(WORKER_HEADER, "").partition(" ")
        if self._worker_token is not None and hmac.compare_digest(token.encode("latin-1"), self._worker_token.encode()):
            return address
        client = scope.get("client")
        return str(client[0]) if client else ""

    async def _refuse(self, scope: Scope, send: Send, error: StudioError, reason: str) -> None:
        self._stats.refused(reason)
        body, headers = refusal(matched_path(scope), scope["headers"], error)
        await send_whole(send, error.http_status, body, headers)


def _check_media(headers: dict[str, str], path: str) -> None:
    """Raises UnsupportedMedia for a body that is not declared as JSON."""
    if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
        return
    content_type = headers.get("content-type", "")
    media = content_type.partition(";")[0].strip().lower().encode("latin-1")
    if path == _LINES_PATH and media in _LINES_TYPES:
        return
    if path == _LINES_PATH or not _JSON_TYPE.fullmatch(media):
        wanted = "application/jsonl" if path == _LINES_PATH else "application/json"
        raise UnsupportedMedia(
            f"the body is declared as {content_type[:100]!r}" if content_type else "the body has no type",
            field="Content-Type",
            hint=f"send 'Content-Type: {wanted}' (curl: -H 'Content-Type: {wanted}')",
        )
