"""Budgets of session keys: calls, tokens, calls per minute.

One process counts. Gateway workers ask it before each call of a key with limits, so budgets are exact with any number
of processes. Tokens are known after the answer, so calls in flight can exceed a token budget.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from core.errors import KeySpent
from core.gateway.access.keys import Binding

MINUTE_S: Final = 60.0


@dataclass(slots=True)
class _Account:
    n_calls: int
    n_tokens: int
    recent: deque[float] = field(default_factory=deque)


def no_earlier(trajectory_uid: str) -> tuple[int, int]:
    """Usage of a trajectory without earlier calls."""
    return 0, 0


class Ledger:
    """Usage counts of the keys that have limits. Thread-safe.

    Args:
        earlier: number of calls and tokens of a trajectory in earlier runs; called once per key.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        earlier: Callable[[str], tuple[int, int]] = no_earlier,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._earlier = earlier
        self._clock = clock
        self._accounts: dict[str, _Account] = {}
        self._lock = threading.Lock()

    async def enter(self, binding: Binding) -> None:
        """Count a call of the key. Raises KeySpent when a budget is used up."""
        if binding.limits.counted:
            await asyncio.to_thread(self.take, binding)

    def take(self, binding: Binding) -> None:
        """``enter``, blocking."""
        limits = binding.limits
        with self._lock:
            account = self._accounts.get(binding.key_sha256)
            if account is None:
                account = self._accounts[binding.key_sha256] = _Account(*self._earlier(binding.trajectory_uid))
            now = self._clock()
            while account.recent and account.recent[0] <= now - MINUTE_S:
                account.recent.popleft()
            if limits.max_calls is not None and account.n_calls >= limits.max_calls:
                raise KeySpent(f"the key's {limits.max_calls} calls are made")
            if limits.max_tokens is not None and account.n_tokens >= limits.max_tokens:
                raise KeySpent(f"the key's {limits.max_tokens} tokens are used: {account.n_tokens}")
            if limits.calls_per_minute is not None and len(account.recent) >= limits.calls_per_minute:
                wait_s = account.recent[0] + MINUTE_S - now
                raise KeySpent(
                    f"the key makes {limits.calls_per_minute} calls a minute", retry_after_s=max(1.0, wait_s)
                )
            account.n_calls += 1
            if limits.calls_per_minute is not None:
                account.recent.append(now)

    def spend(self, key_sha256: str, n_tokens: int) -> None:
        """Add the prompt and response tokens of a finished call."""
        with self._lock:
            account = self._accounts.get(key_sha256)
            if account is not None:
                account.n_tokens += n_tokens
