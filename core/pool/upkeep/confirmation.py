"""Confirmation tokens: a deletion runs only with the token that its preview returned."""

from __future__ import annotations

import hmac
import secrets
import threading
from collections.abc import Callable
from typing import Any

from core.errors import Conflict

LASTS_S = 600.0
MAX_OPEN = 1000


class Confirmations:
    """Tokens, each valid for one subject, once, for ``LASTS_S``, and in this process only. Thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[str, tuple[str, float]] = {}

    def issue(self, subject: str) -> dict[str, Any]:
        """``{confirm, expires_at}`` for the digest of a preview."""
        token, until = secrets.token_urlsafe(24), self._clock() + LASTS_S
        with self._lock:
            self._open[token] = (subject, until)
            while len(self._open) > MAX_OPEN:
                del self._open[next(iter(self._open))]
        return {"confirm": token, "expires_at": until}

    def check(self, token: str, subject: str) -> None:
        """Redeem a token. Conflict when it is unknown, has expired, or was issued for another digest."""
        with self._lock:
            known = self._open.pop(token, None)
        if known is None or known[1] < self._clock():
            raise Conflict("This confirmation is unknown or has expired.", field="confirm", hint="Preview again.")
        if not hmac.compare_digest(known[0], subject):
            raise Conflict(
                "What would be deleted is not what was previewed any more.", field="confirm", hint="Preview again."
            )
