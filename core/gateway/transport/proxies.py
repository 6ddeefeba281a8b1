"""Proxies and certificate authorities of the environment.

``HTTP_PROXY``, ``HTTPS_PROXY``, ``ALL_PROXY`` and ``NO_PROXY`` (in either case) are read as by curl. OpenSSL itself
reads ``SSL_CERT_FILE`` and ``SSL_CERT_DIR``; where neither is set, ``REQUESTS_CA_BUNDLE`` and ``CURL_CA_BUNDLE`` are.
"""

from __future__ import annotations

import base64
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment

from core.config import is_loopback

_DEFAULT_PORT: Final = 80


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy.

    Attributes:
        authorization: the value of ``Proxy-Authorization``; None where its URL has no login.
    """

    host: str
    port: int
    authorization: str | None = None

    @classmethod
    def parse(cls, url: str) -> Proxy:
        """From ``[http://][user:password@]host[:port]``. Raises OSError for anything else."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        # Messages leave out its login.
        if parts.scheme != "http":
            raise OSError(
                f"the environment names a proxy of {parts.scheme}://, and only those of http:// are supported"
            )
        try:
            host, port = parts.hostname, parts.port or _DEFAULT_PORT
        except ValueError as error:
            raise OSError("the environment names a proxy without a valid port") from error
        if not host:
            raise OSError("the environment names a proxy without a host")
        authorization = None
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            authorization = f"Basic {base64.b64encode(login).decode()}"
        return cls(host, port, authorization)


class Proxies:
    """Which proxy leads to a server.

    Args:
        urls: proxy by scheme (``http``, ``https``, ``all``); under ``no`` the hosts that need none, separated by
            commas: names with what is below them, addresses, networks (``10.0.0.0/8``), each with a port or without;
            ``*``.
    """

    def __init__(self, urls: Mapping[str, str]) -> None:
        self._urls = dict(urls)

    @classmethod
    def of_environment(cls) -> Proxies:
        """As the environment says."""
        return cls(getproxies_environment())

    def proxy_for(self, host: str, port: int, tls: bool) -> Proxy | None:
        """The proxy to a server; None where it is asked directly, as every server on this machine is.

        Raises:
            OSError: the proxy's address can't be used.
        """
        url = self._urls.get("https" if tls else "http") or self._urls.get("all")
        if not url or is_loopback(host):
            return None
        name, address = host.lower().rstrip("."), _address(host)
        exempt = (one.strip().lower() for one in self._urls.get("no", "").split(","))
        return None if any(_exempts(one, name, address, port) for one in exempt) else Proxy.parse(url)


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _exempts(entry: str, name: str, address: IPv4Address | IPv6Address | None, port: int) -> bool:
    """Whether an entry of ``NO_PROXY`` means a server."""
    if entry == "*":
        return True
    host, colon, digits = entry.rpartition(":")
    if colon and digits.isdigit() and (":" not in host or host.endswith("]")):
        if int(digits) != port:
            return False
        entry = host
    if address is not None:
        try:
            return address in ip_network(entry.strip("[]"), strict=False)
        except ValueError:
            return False
    above = entry.removeprefix("*").removeprefix(".")
    return bool(above) and (name == above or name.endswith(f".{above}"))


def tls_context() -> ssl.SSLContext:
    """What certificates of servers are checked against. Raises OSError where the environment names no such file."""
    if not (os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")):
        for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
            if path := os.environ.get(name):
                return _context(name, Path(path))
    return ssl.create_default_context()


def _context(name: str, path: Path) -> ssl.SSLContext:
    try:
        if path.is_dir():
            return ssl.create_default_context(capath=path)
        return ssl.create_default_context(cafile=path)
    except (OSError, ssl.SSLError) as error:
        raise OSError(f"{name} names no file of certificates: {path}") from error
