"""HTTP requests to engines as bytes."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from core.gateway.transport.proxies import Proxies, Proxy

Origin = tuple[str, int, bool]
"""Host, port, whether TLS is used."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a URL leads: the request line, and default headers.

    ``proxy`` receives the request, or opens a tunnel if TLS is used; None: the server itself is connected to.
    """

    origin: Origin
    line: str
    defaults: Mapping[str, str]
    proxy: Proxy | None = None


def read_url(method: str, url: str, proxies: Proxies | None = None) -> Target:
    """Parse a URL.

    Raises:
        ValueError: it is not an http address. OSError: its proxy can't be used.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is no http address")
    tls = parts.scheme == "https"
    port = parts.port or (443 if tls else 80)
    host = parts.hostname if parts.hostname.isascii() else parts.hostname.encode("idna").decode()
    named = f"[{host}]" if ":" in host else host
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if " " in path or " " in host:
        raise ValueError(f"{url!r} is no http address")
    proxy = None if proxies is None else proxies.proxy_for(host, port, tls)
    authority = named + (f":{parts.port}" if parts.port else "")
    headers = {
        "host": f"Host: {authority}\r\n",
        "accept": "Accept: */*\r\n",
        # Bodies are recorded as received, so compression is not requested.
        "accept-encoding": "Accept-Encoding: identity\r\n",
        "user-agent": "User-Agent: claw-studio\r\n",
        **_login(parts),
    }
    if proxy is not None and not tls:
        path = f"http://{authority}{path}"
        if proxy.authorization is not None:
            headers["proxy-authorization"] = f"Proxy-Authorization: {proxy.authorization}\r\n"
    return Target((host, port, tls), f"{method} {path} HTTP/1.1\r\n", headers, proxy)


def _login(parts: SplitResult) -> dict[str, str]:
    if parts.username is None:
        return {}
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    return {"authorization": f"Authorization: Basic {base64.b64encode(login).decode()}\r\n"}


def request_bytes(
    target: Target, headers: Mapping[str, str] | Iterable[tuple[str, str]], body: bytes, method: str
) -> bytes:
    """The whole request. Raises ValueError for an invalid header."""
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
    names = {name.lower() for name, _ in pairs}
    defaults = [line for name, line in target.defaults.items() if name not in names]
    lines = [f"{name}: {value}\r\n" for name, value in pairs]
    text = "".join([target.line, *defaults, *lines])
    n_lines = 1 + len(defaults) + len(lines)
    if text.count("\n") != n_lines or text.count("\r") != n_lines or "\0" in text:
        raise ValueError("a header holds a line break")
    if body or method not in ("GET", "HEAD"):
        text += f"Content-Length: {len(body)}\r\n"
    try:
        head = text.encode("latin-1")
    except UnicodeEncodeError:
        head = text.encode("utf-8", "surrogateescape")
    return b"".join((head, b"\r\n", body))
