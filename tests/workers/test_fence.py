"""The fence of a gateway worker, with a clock of the test's own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from core.workers import fence as fence_module
from core.workers.fence import PAUSE_S, Fence, OwnerSilent


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def made() -> tuple[Fence, Clock, list[Any]]:
    sent: list[Any] = []
    clock = Clock()
    return Fence(sent.append, clock=clock), clock, sent


def test_a_worker_that_runs_is_never_held() -> None:
    fence, clock, sent = made()
    for _ in range(100):
        clock.now += PAUSE_S / 2
        asyncio.run(fence.passed())
        fence.tick()
    assert sent == []


@pytest.mark.parametrize("first", ["the call", "the tick"])
def test_after_a_pause_a_call_waits_for_the_answer_to_the_last_question(first: str) -> None:
    """Whichever thread of a process that goes on runs first."""
    fence, clock, sent = made()

    async def call() -> None:
        clock.now += 10
        if first == "the tick":
            fence.tick()
        held = asyncio.ensure_future(fence.passed())
        await asyncio.sleep(0.05)
        assert not held.done() and sent == [{"fence": 1}]
        clock.now += 10
        fence.tick()
        assert sent == [{"fence": 1}, {"fence": 2}]
        fence.handle_answer(1)
        await asyncio.sleep(0.05)
        assert not held.done(), "the answer is from before the second pause"
        fence.handle_answer(2)
        await asyncio.wait_for(held, 10)
        await fence.passed()

    asyncio.run(call())
    assert len(sent) == 2


def test_an_owner_that_stays_silent_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence_module, "WAIT_S", 0.05)
    fence, clock, _ = made()
    clock.now += 10
    with pytest.raises(OwnerSilent):
        asyncio.run(fence.passed())
    fence.handle_answer(1)
    asyncio.run(fence.passed())
