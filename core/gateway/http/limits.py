"""Limits of the server, for one client and for all: bytes, seconds, connections, file descriptors."""

from __future__ import annotations

import resource
from dataclasses import dataclass, replace
from typing import Final, Self

from core.config import Settings

MAX_DESCRIPTORS: Final = 1 << 20
KEPT_DESCRIPTORS: Final = 128
"""File descriptors kept for the journal, the pool, pipes and so on."""
BODIES_AT_ONCE: Final = 4
"""How many request bodies of the largest size may be in memory at a time, summed over all requests."""
OWNER_IDLE_S: Final = 75.0
OWNER_HEADER_BYTES: Final = 4096
MAX_FRAMING: Final = 16
"""Most bytes of chunk sizes, extensions and trailers per byte of body; chunks of one byte have six."""
CHECK_EVERY_S: Final = 1.0
"""Interval between checks of all connections, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Bytes, seconds and connections of one process; the settings have the same names."""

    max_body_bytes: int = 256 << 20
    max_header_bytes: int = 64 << 10
    header_timeout_s: float = 30.0
    body_timeout_s: float = 120.0
    idle_timeout_s: float = 75.0
    max_connections: int = 8192

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """From the user's settings."""
        return cls(
            max_body_bytes=settings.max_body_bytes,
            max_header_bytes=settings.max_header_bytes,
            header_timeout_s=settings.header_timeout_s,
            body_timeout_s=settings.body_timeout_s,
            idle_timeout_s=settings.idle_timeout_s,
            max_connections=settings.max_connections,
        )

    def with_workers(self, n_workers: int) -> Self:
        """Limits of the owner's server behind ``n_workers`` gateway workers.

        It accepts whatever workers accepted, keeps connections open longer than they do, and adds no limit of its own.
        """
        return replace(
            self,
            max_header_bytes=self.max_header_bytes + OWNER_HEADER_BYTES,
            idle_timeout_s=max(self.idle_timeout_s, OWNER_IDLE_S),
            max_connections=self.max_connections * n_workers,
        )

    @property
    def n_connections(self) -> int:
        """Most connections at a time: each call may need a second descriptor for its engine."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY:
            return self.max_connections
        return max(8, min(self.max_connections, (soft - KEPT_DESCRIPTORS) // 2))

    @property
    def check_every_s(self) -> float:
        """Seconds between checks of all connections, short enough for the shortest timeout."""
        shortest = min(self.header_timeout_s, self.body_timeout_s, self.idle_timeout_s)
        return min(CHECK_EVERY_S, shortest / 4)


def raise_descriptor_limit() -> int:
    """Raise this process's limit of open files to the system's maximum; returns the limit. Never lowers it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_DESCRIPTORS
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if wanted <= soft:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        # Some systems name a hard limit that they don't grant.
        return soft
    return wanted
