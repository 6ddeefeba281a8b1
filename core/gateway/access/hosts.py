"""Allowed hosts and origins of requests.

The host check stops DNS rebinding: a page loaded from a foreign name keeps sending that name as ``Host`` after the name
resolves to this machine. The origin check stops pages of other origins, by ``Origin`` or by ``Sec-Fetch-Site``
(https://www.w3.org/TR/fetch-metadata/).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final

from cachetools import LRUCache

from core.config import is_loopback

WILDCARDS: Final = frozenset({"0.0.0.0", "::", ""})
"""Addresses that listen on all interfaces."""
FOREIGN_SITES: Final = frozenset({b"cross-site", b"same-site"})
"""Values of ``Sec-Fetch-Site`` for pages of other origins; other ports of this machine are the same site."""

_AUTHORITY = re.compile(r"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+))(?::(?P<port>\d{1,5}))?", re.IGNORECASE)
_MAX_KNOWN: Final = 256


def host_of(authority: str) -> str | None:
    """The host of ``host[:port]`` in lower case, without brackets and final dot; None if it is not an authority."""
    match = _AUTHORITY.fullmatch(authority)
    if match is None or int(match["port"] or 0) > 65535:
        return None
    return (match["v6"] or match["name"]).lower().rstrip(".") or None


class Hosts:
    """The hosts that a server answers for.

    Args:
        bound: the address it listens on. With a wildcard every IP address is accepted, because DNS rebinding needs a
            name.
        allowed: further names; ``*.example.org`` matches all subdomains.
    """

    def __init__(self, bound: str, allowed: Iterable[str] = ()) -> None:
        self._wildcard = bound in WILDCARDS
        names = {name.lower().rstrip(".") for name in (bound, *allowed)}
        self._names = frozenset(name for name in names if not name.startswith("*."))
        self._below = tuple(name[1:] for name in names if name.startswith("*."))
        self._known: LRUCache[bytes, bool] = LRUCache(_MAX_KNOWN)

    def allow(self, authority: bytes) -> bool:
        """Whether a ``Host`` header names this server, at any port."""
        known = self._known.get(authority)
        if known is None:
            known = self._known[authority] = self._allow(authority.decode("latin-1"))
        return known

    def _allow(self, authority: str) -> bool:
        host = host_of(authority)
        if host is None:
            return False
        if host in self._names or host.endswith(self._below) or is_loopback(host):
            return True
        return self._wildcard and _is_number(host)


def _is_number(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def is_foreign(origin: bytes | None, site: bytes | None, host: bytes) -> bool:
    """Whether a request was made by a page of another origin.

    Args:
        origin, site: ``Origin`` and ``Sec-Fetch-Site``; None where missing, as in requests of programs.
        host: ``Host``, already allowed.
    """
    if origin is not None:
        scheme, _, authority = origin.partition(b"://")
        return scheme not in (b"http", b"https") or authority.lower() != host.lower()
    return site in FOREIGN_SITES
