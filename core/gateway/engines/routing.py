"""Which engine a call goes to when several serve its model, and when it may go to another one.

Calls of one trajectory stay with one engine as long as it is well: that one has their prefix in its cache. A call is
tried again only while nothing of an answer has come.
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
    """How often a call is tried.

    Attributes:
        n_attempts: per call; more where there are more engines.
        backoff_s: before the second attempt at the same engine; doubles.
        max_wait_s: an engine that asks to wait longer has its refusal passed on.
    """

    n_attempts: int = 3
    backoff_s: float = 0.2
    max_wait_s: float = 5.0


def affinity(trajectory_uid: str | None, asked: Mapping[str, Any]) -> str:
    """What calls of one trajectory have in common: its uid, or how their prompt begins where nobody names it."""
    if trajectory_uid is not None:
        return trajectory_uid
    messages, prompt = asked.get("messages"), asked.get("prompt")
    begins = messages[:2] if isinstance(messages, list) else prompt[:256] if isinstance(prompt, str | list) else None
    return hashlib.blake2b(orjson.dumps(begins), digest_size=16).hexdigest()


def ranked(engines: Sequence[Engine], key: str) -> list[Engine]:
    """By rendezvous hashing: each engine's place depends on no other, so who comes or goes moves only its own calls."""

    def score(engine: Engine) -> bytes:
        return hashlib.blake2b(f"{engine.name}\0{key}".encode(), digest_size=8).digest()

    return sorted(engines, key=score, reverse=True) if len(engines) > 1 else list(engines)


class Attempts:
    """One call's way through its engines, best first.

    Attributes:
        engine: the one that is asked now, or answered.
        n: how often an engine was asked.
        failed: names of the engines that were asked in vain, in order.
    """

    def __init__(self, engines: Sequence[Engine], retries: Retries) -> None:
        self.engine = _usable(engines, ())
        self.n = 0
        self.failed: list[str] = []
        self._engines = engines
        self._retries = retries

    async def ask(self, ask: Callable[[Engine], Awaitable[EngineAnswer | EngineStream]]) -> EngineAnswer | EngineStream:
        """Ask until one answers.

        Raises:
            EngineError: what the last one failed with.
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
                told_s = _seconds(answer.retry_after)
                if len(self._engines) == 1 and (told_s is None or told_s > self._retries.max_wait_s):
                    return answer
                wait_s = max(told_s or 0.0, self._backoff())
            self.failed.append(self.engine.name)
            following = _usable(self._engines, self.failed)
            if following is self.engine or following.name in self.failed:
                if wait_s > self._retries.max_wait_s and answer is not None:
                    return answer
                await asyncio.sleep(min(wait_s, self._retries.max_wait_s))
            self.engine = following

    def _goes_on(self, error: EngineError) -> bool:
        """A full line is no reason to stand in it again; another engine's may be shorter."""
        if isinstance(error, EngineBusy):
            return any(not engine.concurrency.full for engine in self._engines)
        # A request that ends one engine after the other has to stop at the second.
        return (isinstance(error, EngineUnreachable) and error.again) or (len(self._engines) > 1 and not self.failed)

    def _backoff(self) -> float:
        # Callers that failed together must not come back together.
        doubled: int = 1 << self.failed.count(self.engine.name)
        return self._retries.backoff_s * doubled * random.uniform(0.75, 1.25)

    def secrets(self) -> list[str]:
        """Keys of every engine that may be asked."""
        return [key for engine in self._engines for key in engine.secrets()]

    def facts(self) -> dict[str, Any]:
        """What the record says of it; nothing where the first engine that was asked answered."""
        return {"attempts": self.n, "failed_engines": list(self.failed)} if self.n > 1 else {}


def _usable(engines: Sequence[Engine], failed: Sequence[str]) -> Engine:
    """The first that is well, has room and did not fail this call; else the one that failed it least."""
    fewest = min(failed.count(engine.name) for engine in engines)
    fresh = [engine for engine in engines if failed.count(engine.name) == fewest]
    well = [engine for engine in fresh if engine.health.usable]
    roomy = [engine for engine in well if not engine.concurrency.full]
    return (roomy or well or fresh)[0]


def _seconds(retry_after: str | None) -> float | None:
    try:
        return max(float(retry_after), 0.0) if retry_after else None
    except ValueError:
        # A date: who says that means minutes.
        return None
