"""What all routes of the gateway share: settings, stores, engines, counters, limits."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from core.config import Settings
from core.gateway.access.ledger import Ledger
from core.gateway.calls.identity import KeyStore
from core.gateway.calls.policy import PolicyState
from core.gateway.engines.registry import EngineSet
from core.gateway.engines.routing import Retries
from core.gateway.http.asgi import MAX_BODY_BYTES
from core.gateway.telemetry.stats import GatewayStats
from core.journal import Journal


def random_uid() -> str:
    """32 hex digits."""
    return secrets.token_hex(16)


@dataclass(frozen=True, kw_only=True)
class GatewayDeps:
    """Parts and limits of a gateway.

    Attributes:
        clock: UTC seconds since the epoch.
        new_uid: makes a step's uid.
        keepalive_s: interval of keep-alive comments in a stream that waits for its engine, seconds.
        sync_wait_s: how long a call waits for a weight sync before it gets 503, seconds.
        max_body_bytes: larger requests get 413.
        retries: how often an engine that gave no answer is tried again.
        ledger: budgets of session keys.
    """

    settings: Settings
    journal: Journal
    engines: EngineSet
    keys: KeyStore
    policy: PolicyState
    stats: GatewayStats
    clock: Callable[[], float] = time.time
    new_uid: Callable[[], str] = random_uid
    keepalive_s: float = 3.0
    sync_wait_s: float = 30.0
    max_body_bytes: int = MAX_BODY_BYTES
    retries: Retries = field(default_factory=Retries)
    ledger: Ledger = field(default_factory=Ledger)
