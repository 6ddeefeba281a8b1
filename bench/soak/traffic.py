"""Calls of thousands of agents: all dialects, streams, tools, choices, abandoned calls, failed engines."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, deque
from itertools import count

import aiohttp

from bench.soak.conversation import (
    DIALECTS,
    FAULTS,
    IDENTITIES,
    SLOWLY,
    USE_A_TOOL,
    Conversation,
    assembled,
)

AT_ONCE = 64
"""Calls under way; more wait."""
ABANDONED = 0.03
FAILED = 0.02
HANG_S = 120.0
"""A call, or a step that is not readable, after so long hangs: that ends the run as failed."""
KNOWN = 400
"""Answered calls that acts choose from."""


class Traffic:
    """The agents.

    Args:
        base: of the gateway.
        n_open: conversations at a time.
        seed: of every choice.
    """

    def __init__(self, http: aiohttp.ClientSession, base: str, n_open: int, seed: int) -> None:
        self.http, self.base = http, base
        self.draw = random.Random(seed)
        self.numbers = count()
        self.free = [self._begin() for _ in range(n_open)]
        self.latencies_s: list[float] = []
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.answered: deque[tuple[str, str, float]] = deque(maxlen=KNOWN)
        """(step, trajectory, when) of the latest."""
        self.all_answered: list[tuple[str, float]] = []
        self.n_calls = 0

    def _begin(self) -> Conversation:
        number = next(self.numbers)
        draw = self.draw
        identity = draw.choices(IDENTITIES, weights=(5, 2, 3, 1))[0]
        return Conversation(f"soak-{number}", draw.choice(DIALECTS), identity, n_turns=draw.randint(3, 12))

    async def run(self, rate: float, stopping: asyncio.Event) -> None:
        """Start this many calls per second until stopped, then wait for all; 0: as fast as they are answered."""
        room = asyncio.Semaphore(AT_ONCE if rate else 8)
        under_way: set[asyncio.Task[None]] = set()
        begun = time.monotonic()
        for number in count():
            await asyncio.sleep(max(begun + number / rate - time.monotonic(), 0) if rate else 0)
            await room.acquire()
            if stopping.is_set():
                break
            task = asyncio.create_task(self._one())
            under_way.add(task)
            task.add_done_callback(under_way.discard)
            task.add_done_callback(lambda _: room.release())
        await asyncio.gather(*under_way)

    async def open_all(self) -> None:
        """The first call of every conversation, a few at a time."""
        room = asyncio.Semaphore(8)
        waiting, self.free = self.free, []

        async def first(one: Conversation) -> None:
            async with room:
                await self._turn(one, plain=True)
            self.free.append(one)

        await asyncio.gather(*map(first, waiting))

    async def _one(self) -> None:
        at = self.draw.randrange(len(self.free))
        self.free[at], self.free[-1] = self.free[-1], self.free[at]
        one = self.free.pop()
        try:
            await self._turn(one)
            if one.turn >= one.n_turns:
                await self._end(one)
                one = self._begin()
        except Exception as error:
            self.failed[f"{one.dialect} {error!r}"] += 1
            one = self._begin()
        finally:
            self.free.append(one)

    async def _turn(self, one: Conversation, *, plain: bool = False) -> None:
        draw = self.draw
        if one.identity == "key" and one.key is None:
            async with self.http.post(f"{self.base}/api/v1/sessions", json={"trajectory_uid": one.uid}) as response:
                one.key = (await response.json())["api_key"]
        question = f"{one.uid}, turn {one.turn}: go on."
        stream = draw.random() < 0.4
        leaves = fault = False
        if not plain:
            leaves, fault = draw.random() < ABANDONED, draw.random() < FAILED
            question += f" {USE_A_TOOL}" if draw.random() < 0.3 else ""
        if fault:
            question += f" fault {draw.choice(sorted(FAULTS))}."
        elif leaves:
            question, stream = question + f" {SLOWLY}", True
        n = 3 if one.dialect == "chat" and not plain and draw.random() < 0.05 else 1
        body = one.ask(draw, question, stream=stream, n=n)
        began = time.perf_counter()
        self.n_calls += 1
        self.done[f"{one.dialect}{' streamed' if stream else ''}"] += 1
        answer = None
        try:
            where = aiohttp.ClientTimeout(total=2 if leaves or fault else HANG_S)
            async with self.http.post(self.base + one.path, json=body, headers=one.headers, timeout=where) as response:
                step_uid = response.headers.get("x-step-uid", "")
                if leaves:
                    await response.content.readany()
                    self.done["abandoned"] += 1
                    # Its connection is closed and not used again.
                    response.close()
                elif response.status == 200:
                    answer = assembled(one.dialect, await response.text()) if stream else await response.json()
                else:
                    text = await response.text()
                    if not fault:
                        self.failed[f"{one.dialect} {response.status} {text[:160]}"] += 1
        except (TimeoutError, aiohttp.ClientError) as error:
            if not (leaves or fault):
                self.failed[f"{one.dialect} {error!r}"] += 1
        if fault:
            self.done["faults"] += 1
        if answer is None:
            if not (leaves or fault):
                self.failed[f"{one.dialect} without an answer"] += 1
            one.drop()
            return
        one.take(answer)
        self.latencies_s.append(time.perf_counter() - began)
        one.steps.append(step_uid)
        self.all_answered.append((step_uid, time.monotonic()))
        if not fault:
            self.answered.append((step_uid, one.uid if one.identity != "anonymous" else "", time.monotonic()))

    async def _end(self, one: Conversation) -> None:
        """Complete most of the trajectories; the rest are left as they are."""
        api = f"{self.base}/api/v1"
        if one.identity != "anonymous" and self.draw.random() < 0.8:
            body = {"reward": round(self.draw.uniform(-1, 1), 3)}
            async with self.http.post(f"{api}/trajectories/{one.uid}/complete", json=body) as response:
                # It may not be in the pool yet.
                if response.status not in (200, 404):
                    self.failed[f"complete {response.status}"] += 1
                self.done["complete"] += 1
        if one.key is not None:
            async with self.http.delete(f"{api}/sessions/{one.uid}") as response:
                self.done["revoke"] += 1
                if response.status != 200:
                    self.failed[f"revoke {response.status} {(await response.text())[:100]}"] += 1
