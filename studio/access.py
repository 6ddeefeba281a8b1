"""Access control of the pages' port: known hosts only, no requests from other origins, no framing.

Streamlit's own check accepts a websocket from every page on a loopback name, whatever its port, and does not check
plain HTTP requests. This middleware runs before it.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Any, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response

from core.gateway.access.hosts import Hosts, host_of, is_foreign
from studio import lifecycle
from studio.document import PATHS, document

_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)


@cache
def content_security_policy() -> str:
    """The Content-Security-Policy header of every response: pages load from, frame and send to no other host.

    Allowed scripts are Streamlit's files, its inline scripts (by hash), and ``blob:`` URLs, by which it imports the
    components of ``studio/components``; only a script that already runs can create one.
    """
    hashes = [base64.b64encode(hashlib.sha256(text).digest()).decode() for text in _SCRIPT.findall(document())]
    return "; ".join(
        (
            "default-src 'self'",
            " ".join(["script-src 'self' 'wasm-unsafe-eval' blob:", *(f"'sha256-{each}'" for each in hashes)]),
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "font-src 'self' data:",
            "media-src 'self' data: blob:",
            "connect-src 'self' data: blob:",
            "worker-src 'self' blob:",
            "frame-src 'self'",
            "object-src 'none'",
            "base-uri 'self'",
            "form-action 'self'",
            "frame-ancestors 'self'",
        )
    )


BROWSER_COOKIE: Final = "claw_browser"
"""A random name of the browser, so that a reload finds what was made for it (its session keys). It grants nothing."""
_REFUSED: Final = 1008
"""WebSocket close code: a policy was violated (RFC 6455, 7.4.1)."""

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class AccessMiddleware:
    """ASGI middleware for ``st.App`` that refuses unknown hosts and other origins."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._app = app
        self._hosts: Hosts | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request or a websocket, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        if self._hosts is None:
            self._hosts = Hosts(lifecycle.pages_address(), lifecycle.allowed_hosts())
        headers = Headers(raw=list(scope["headers"]))
        if len(headers.getlist("host")) != 1 or not self._hosts.allow(headers["host"].encode("latin-1")):
            await refuse(scope, receive, send, 421, "Unknown host: add it to CLAW_STUDIO_ALLOWED_HOSTS.")
        elif _is_foreign(headers) and not _is_visit(scope, headers):
            await refuse(scope, receive, send, 403, "Pages of other origins may not use this studio.")
        elif scope["type"] == "http":
            if not _is_page(scope, headers):
                await self._app(scope, receive, _with_policy(send))
                return
            page = Response(document(), media_type="text/html", headers={"cache-control": "no-cache"})
            fresh = f"{BROWSER_COOKIE}=" not in headers.get("cookie", "")
            await page(dict(scope), receive, _with_policy(send, new_browser=fresh))
        else:
            await self._app(scope, receive, send)


async def refuse(scope: Scope, receive: Receive, send: Send, status: int, why: str) -> None:
    """Refuse a request, or close a websocket before it opens."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": _REFUSED, "reason": why})
        return
    await PlainTextResponse(why, status)(dict(scope), receive, _with_policy(send))


def is_exposed(host: str | None, address: str | None) -> bool:
    """Whether a visitor may be someone other than the user of this machine, and so must enter the admin key.

    Args:
        host: the ``Host`` header; it shows the public name when a proxy on this machine forwards the request.
        address: the peer address of the connection; None is this machine.
    """
    named = host_of(host) if host else None
    places = (lifecycle.pages_address(), named, address)
    return not all(place is None or lifecycle.is_loopback(place) for place in places)


def _is_foreign(headers: Headers) -> bool:
    origin, site = headers.getlist("origin"), headers.get("sec-fetch-site")
    if len(origin) > 1:
        return True
    return is_foreign(
        origin[0].encode("latin-1") if origin else None,
        site.encode("latin-1") if site is not None else None,
        headers["host"].encode("latin-1"),
    )


def _is_visit(scope: Scope, headers: Headers) -> bool:
    """Whether the request is a top-level navigation: a link on another site to one of the pages."""
    return (
        scope["type"] == "http"
        and scope["method"] == "GET"
        and "origin" not in headers
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )


def _is_page(scope: Scope, headers: Headers) -> bool:
    return scope["method"] == "GET" and scope["path"] in PATHS and "text/html" in headers.get("accept", "")


def _with_policy(send: Send, *, new_browser: bool = False) -> Send:
    async def sent(message: Any) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=message.setdefault("headers", []))
            if new_browser:
                name = f"{BROWSER_COOKIE}={secrets.token_urlsafe(16)}"
                headers.append("set-cookie", f"{name}; Path=/; Max-Age=31536000; HttpOnly; SameSite=Strict")
            headers.setdefault("content-security-policy", content_security_policy())
            headers.setdefault("x-content-type-options", "nosniff")
        await send(message)

    return sent
