"""Chooses an engine when several serve a model, and decides about retries.

Calls of one trajectory stay with one healthy engine, because it has their prefix in its cache. A call is retried only
while no byte of an answer has arrived.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from core.errors import EngineError
from core.gateway.engines.answer import EngineAnswer, EngineStream
from core.gateway.engines.base import BUSY, Engine, EngineUnreachable
from core.gateway.engines.concurrency import EngineBusy


@dataclass(frozen=True, slots=True)
class Retries:
    """Retry settings.

    Attributes:
        n_attempts: per call; at least one for each engine.
        backoff_s: before the second attempt at the same engine; doubles.
        max_wait_s: a refusal with a longer ``Retry-After`` is passed on.
    """

    n_attempts: int = 3
    backoff_s: float = 0.2
    max_wait_s: float = 5.0


def affinity(trajectory_uid: str | None, request: Mapping[str, Any]) -> str:
    """The affinity key of a call: its trajectory, or a hash of the beginning of its prompt."""
    if trajectory_uid is not None:
        return trajectory_uid
    messages, prompt = request.get("messages"), request.get("prompt")
    begins = messages[:2] if isinstance(messages, list) else prompt[:256] if isinstance(prompt, str | list) else None
    return hashlib.blake2b(orjson.dumps(begins), digest_size=16).hexdigest()


def ranked(engines: Sequence[Engine], key: str) -> list[Engine]:
    """Engines by rendezvous hashing: adding or removing one moves only its own calls."""

    def score(engine: Engine) -> bytes:
        return hashlib.blake2b(f"{engine.name}\0{key}".encode(), digest_size=8).digest()

    return sorted(engines, key=score, reverse=True) if len(engines) > 1 else list(engines)


class Attempts:
    """The attempts of one call, best engine first.

    Attributes:
        engine: the one that is called now, or has answered.
        n: number of attempts.
        failed: names of the engines that failed, in order.
    """

    def __init__(self, engines: Sequence[Engine], retries: Retries) -> None:
        self.engine = _usable(engines, ())
        self.n = 0
        self.failed: list[str] = []
        self._engines = engines
        self._retries = retries

    async def ask(self, ask: Callable[[Engine], Awaitable[EngineAnswer | EngineStream]]) -> EngineAnswer | EngineStream:
        """Call engines until one answers.

        Raises:
            EngineError: of the last attempt.
        """
        n_attempts = max(self._retries.n_attempts, len(self._engines))
        while True:
            self.n += 1
            answer: EngineAnswer | EngineStream | None = None
            try:
                answer = await ask(self.engine)
            except (EngineUnreachable, EngineBusy) as error:
                if self.n >= n_attempts or not self._goes_on(error):
                    raise
                wait_s = self._backoff()
            else:
                if not isinstance(answer, EngineAnswer) or answer.status not in BUSY or self.n >= n_attempts:
                    return answer
                retry_after_s = _seconds(answer.retry_after)
                if len(self._engines) == 1 and (retry_after_s is None or retry_after_s > self._retries.max_wait_s):
                    return answer
                wait_s = max(retry_after_s or 0.0, self._backoff())
            self.failed.append(self.engine.name)
            following = _usable(self._engines, self.failed)
            if following is self.engine or following.name in self.failed:
                if wait_s > self._retries.max_wait_s and answer is not None:
                    return answer
                await asyncio.sleep(min(wait_s, self._retries.max_wait_s))
            self.engine = following

    def _goes_on(self, error: EngineError) -> bool:
        """Whether to try again. A full queue is retried only if another engine has room."""
        if isinstance(error, EngineBusy):
            return any(not engine.concurrency.full for engine in self._engines)
        # A request that crashes engines must stop at the second one.
        return (isinstance(error, EngineUnreachable) and error.again) or (len(self._engines) > 1 and not self.failed)

    def _backoff(self) -> float:
        # Jitter: calls that failed together must not retry together.
        doubled: int = 1 << self.failed.count(self.engine.name)
        return self._retries.backoff_s * doubled * random.uniform(0.75, 1.25)

    def secrets(self) -> list[str]:
        """Keys of all engines that may be called."""
        return [key for engine in self._engines for key in engine.secrets()]

    def facts(self) -> dict[str, Any]:
        """Facts for the record; empty if the first attempt succeeded."""
        return {"attempts": self.n, "failed_engines": list(self.failed)} if self.n > 1 else {}


def _usable(engines: Sequence[Engine], failed: Sequence[str]) -> Engine:
    """The first engine that is healthy, has room and has not failed this call; else the one that failed least often."""
    fewest = min(failed.count(engine.name) for engine in engines)
    fresh = [engine for engine in engines if failed.count(engine.name) == fewest]
    well = [engine for engine in fresh if engine.health.usable]
    roomy = [engine for engine in well if not engine.concurrency.full]
    return (roomy or well or fresh)[0]


def _seconds(retry_after: str | None) -> float | None:
    try:
        return max(float(retry_after), 0.0) if retry_after else None
    except ValueError:
        # An HTTP date means minutes.
        return None
