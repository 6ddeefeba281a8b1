"""Throttling of addresses that send many wrong keys."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from typing import Final

from cachetools import LRUCache

from core.errors import TooManyAttempts

MAX_WRONG: Final = 20
WINDOW_S: Final = 60.0
_MAX_ADDRESSES: Final = 10_000


class WrongKeys:
    """Different wrong keys of the last minute, by address. Thread-safe.

    The same wrong key counts once: it is a misconfigured agent, not a guess. An IPv6 address counts as its /64, which
    is what one customer gets.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wrong: LRUCache[str, dict[str, float]] = LRUCache(_MAX_ADDRESSES)
        self._lock = threading.Lock()

    def check(self, address: str) -> None:
        """Raises TooManyAttempts while the address is throttled."""
        if not self._wrong:
            return
        with self._lock:
            tried = self._recent(_network(address))
            if tried is None or len(tried) < MAX_WRONG:
                return
            wait_s = min(tried.values()) + WINDOW_S - self._clock()
        raise TooManyAttempts("too many different wrong keys came from this address", retry_after_s=max(1.0, wait_s))

    def count_failure(self, address: str, key_sha256: str) -> None:
        """Count a wrong key of the address."""
        with self._lock:
            network = _network(address)
            tried = self._recent(network)
            if tried is None:
                tried = self._wrong[network] = {}
            if key_sha256 in tried or len(tried) < MAX_WRONG:
                tried[key_sha256] = self._clock()

    def _recent(self, network: str) -> dict[str, float] | None:
        tried = self._wrong.get(network)
        if tried is None:
            return None
        before = self._clock() - WINDOW_S
        for key in [key for key, at in tried.items() if at <= before]:
            del tried[key]
        if not tried:
            del self._wrong[network]
            return None
        return tried


def _network(address: str) -> str:
    try:
        ip = ip_address(address)
    except ValueError:
        return address
    if isinstance(ip, IPv6Address):
        return str(ip.ipv4_mapped) if ip.ipv4_mapped else ip.exploded[:19]
    return address
