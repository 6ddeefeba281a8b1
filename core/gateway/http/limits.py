"""What one sender, and all of them together, may take of the gateway: bytes, seconds, connections, descriptors."""

from __future__ import annotations

import resource
from dataclasses import dataclass, replace
from typing import Final, Self

from core.config import Settings

MOST_DESCRIPTORS: Final = 1 << 20
KEPT_DESCRIPTORS: Final = 128
"""For the journal, the pool, pipes and whatever else is no connection."""
BODIES_AT_ONCE: Final = 4
"""So many bodies of the largest size may be held at a time, in however many requests they come."""
OWNER_IDLE_S: Final = 75.0
OWNER_HEADER_BYTES: Final = 4096
MOST_FRAMING: Final = 16
"""Bytes of chunks' sizes, extensions and trailers for each byte of a body: chunks of one byte have six."""
CHECK_EVERY_S: Final = 1.0
"""How often connections are looked over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The settings of the same names: bytes, seconds, connections of one process."""

    max_body_bytes: int = 256 << 20
    max_header_bytes: int = 64 << 10
    header_timeout_s: float = 30.0
    body_timeout_s: float = 120.0
    idle_timeout_s: float = 75.0
    max_connections: int = 8192

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """As the user set them."""
        return cls(
            max_body_bytes=settings.max_body_bytes,
            max_header_bytes=settings.max_header_bytes,
            header_timeout_s=settings.header_timeout_s,
            body_timeout_s=settings.body_timeout_s,
            idle_timeout_s=settings.idle_timeout_s,
            max_connections=settings.max_connections,
        )

    def behind(self, n_workers: int) -> Self:
        """For the server that only the gateway processes talk to.

        It takes whatever they took, keeps their connections longer than they do, and adds no limit to theirs.
        """
        return replace(
            self,
            max_header_bytes=self.max_header_bytes + OWNER_HEADER_BYTES,
            idle_timeout_s=max(self.idle_timeout_s, OWNER_IDLE_S),
            max_connections=self.max_connections * n_workers,
        )

    @property
    def n_connections(self) -> int:
        """Most connections at a time: each call may need a descriptor for its engine besides its own."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY:
            return self.max_connections
        return max(8, min(self.max_connections, (soft - KEPT_DESCRIPTORS) // 2))

    @property
    def check_every_s(self) -> float:
        """Seconds between two looks at all connections: short enough for the shortest of the times."""
        shortest = min(self.header_timeout_s, self.body_timeout_s, self.idle_timeout_s)
        return min(CHECK_EVERY_S, shortest / 4)


def raise_descriptor_limit() -> int:
    """Allow this process as many open files as the system lets it; returns how many. Lowers nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_DESCRIPTORS
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if wanted <= soft:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        # Some systems name a hard limit that they don't grant.
        return soft
    return wanted
