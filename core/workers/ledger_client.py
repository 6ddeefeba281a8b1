"""A worker's client of the owner's ledger: checks the budget of a session key before each call."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from core.errors import KeySpent
from core.gateway.access.keys import Binding
from core.gateway.access.ledger import Ledger


class LedgerClient(Ledger):
    """Sends messages to the owner; ``answered`` receives replies in another thread."""

    def __init__(self, send: Callable[[Mapping[str, Any]], None]) -> None:
        super().__init__()
        self._send = send
        self._numbers = itertools.count()
        self._waiting: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Future[Mapping[str, Any]]]] = {}

    async def enter(self, binding: Binding) -> None:
        """Count a call of the key. Raises KeySpent when a budget is used up."""
        if not binding.limits.counted:
            return
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Mapping[str, Any]] = loop.create_future()
        number = next(self._numbers)
        self._waiting[number] = (loop, answer)
        try:
            self._send({"want": "call", "key": binding.key_sha256, "id": number})
            reply = await answer
        finally:
            del self._waiting[number]
        if reply.get("refused") is not None:
            raise KeySpent(reply["refused"], retry_after_s=reply.get("retry_after_s"))

    def spend(self, key_sha256: str, n_tokens: int) -> None:
        """Report the tokens of a finished call."""
        self._send({"spent": key_sha256, "n_tokens": n_tokens})

    def handle_answer(self, message: Mapping[str, Any]) -> None:
        """Handle the owner's reply."""
        waiting = self._waiting.get(message["id"])
        if waiting is not None:
            loop, answer = waiting
            loop.call_soon_threadsafe(_set, answer, message)

    def owner_ended(self) -> None:
        """No reply can come any more; calls that wait for one are refused."""
        for loop, answer in list(self._waiting.values()):
            loop.call_soon_threadsafe(_set, answer, {"refused": "the studio has ended", "retry_after_s": 1.0})


def _set(answer: asyncio.Future[Mapping[str, Any]], message: Mapping[str, Any]) -> None:
    if not answer.done():
        answer.set_result(message)
