"""An engine's stream on its way to the agent and to the journal.

Words leave as they come; what ends the answer waits until the record is durable. The engine is read at its own pace
and always to its end, agent or no agent: a late answer is kept and marked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing

from core.dialects import Json, Relay
from core.dialects.assembly import Assembly
from core.errors import EngineError, StudioError
from core.gateway.dialects import strip_asked
from core.gateway.engine import EngineAnswer
from core.gateway.exchange import Exchange, Recorder
from core.gateway.streams import EngineStream

log = logging.getLogger(__name__)

MAX_WAITING = 128
"""Chunks that wait for a slow agent; more of them are put together to one, which takes no more than the answer."""


class Outbox:
    """What the agent has not been sent yet, as chunks.

    Args:
        relay: makes the agent's events of them.

    Attributes:
        news: set when there is something to send.
    """

    def __init__(self, relay: Relay) -> None:
        self.news = asyncio.Event()
        self.relay = relay
        self._waiting: list[Json] = []
        self._merged: Assembly | None = None
        self._held: list[Json] = []
        self._ended: set[int] = set()

    def put(self, chunks: Sequence[Json]) -> None:
        """Take chunks of the engine's; what ends a choice, or comes after, is held back."""
        for chunk in chunks:
            ready, last = self._split(chunk)
            if last is not None:
                self._held.append(last)
            if ready is None:
                continue
            if self._merged is not None:
                self._merged.feed(ready)
                continue
            self._waiting.append(ready)
            if len(self._waiting) > MAX_WAITING:
                self._merged = Assembly()
                for waiting in self._waiting:
                    self._merged.feed(waiting)
                self._waiting = []
        if self._waiting or self._merged is not None:
            self.news.set()

    def take(self) -> bytes:
        """Events of all that waits, possibly none."""
        self.news.clear()
        if self._merged is not None:
            self._waiting, self._merged = [self._merged.chunk()], None
        waiting, self._waiting = self._waiting, []
        return b"".join(map(self.relay.feed, waiting))

    def rest(self) -> bytes:
        """All remaining events, the end included: for when the record is durable."""
        return b"".join([self.take(), *map(self.relay.feed, self._held), self.relay.finish()])

    def _split(self, chunk: Json) -> tuple[Json | None, Json | None]:
        """(what may leave, what is held back)."""
        choices = chunk.get("choices")
        if not choices:
            # Usage, and what else comes at the end.
            return None, chunk
        for choice in choices:
            if choice.get("finish_reason") is not None:
                self._ended.add(choice.get("index", 0))
        if not self._ended:
            return chunk, None
        held = [choice for choice in choices if choice.get("index", 0) in self._ended]
        if len(held) == len(choices):
            return None, chunk
        going = [choice for choice in choices if choice.get("index", 0) not in self._ended]
        return {**chunk, "choices": going}, {**chunk, "choices": held} if held else None


async def relay(call: Exchange, stream: EngineStream, outbox: Outbox, recorder: Recorder) -> EngineAnswer:
    """Read an engine's stream to its end and make it durable.

    Returns:
        The whole answer; the agent may have its end now.

    Raises:
        StudioError: the stream broke off, or nothing could be stored. What came is recorded with the reason.
    """
    call.stream_mode = "relay"
    assembly = Assembly()
    failure: StudioError | None = None
    try:
        async with aclosing(stream.batches()) as batches:
            async for chunks in batches:
                for chunk in chunks:
                    assembly.feed(chunk)
                if not call.agent_gone:
                    outbox.put([chunk for chunk in chunks if _is_for_the_agent(chunk, stream.added)])
        if not assembly.begun:
            raise EngineError("the engine's answer has no choices", hint="is its base URL an OpenAI-compatible /v1?")
        if not assembly.ended:
            raise EngineError("the engine ended its stream in the middle of the answer")
    except EngineError as error:
        failure = error
    except Exception as error:
        log.exception("the stream of engine %s could not be read", call.engine.name if call.engine else None)
        failure = EngineError(f"the engine's stream could not be read: {type(error).__name__}")
    except asyncio.CancelledError:
        recorder.abandon(call, await _answer(stream, assembly, EngineError("the gateway stopped")))
        raise
    finally:
        stream.close()
    return await recorder.settle(call, await _answer(stream, assembly, failure), failure)


async def _answer(stream: EngineStream, assembly: Assembly, failure: StudioError | None) -> EngineAnswer | None:
    body = assembly.whole() if assembly.begun else None
    return await stream.answer(body, failure.message if failure is not None else None)


def _is_for_the_agent(chunk: Json, added: Sequence[str]) -> bool:
    """Take out what only the gateway asked for; False where nothing is left to tell."""
    choices = chunk.get("choices")
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        return False
    if not choices:
        return bool(chunk.get("usage"))
    if not added:
        return True
    strip_asked(chunk, added)
    return any(_says_something(choice) for choice in choices)


def _says_something(choice: Json) -> bool:
    delta = choice.get("delta")
    said = any(value is not None for value in delta.values()) if isinstance(delta, dict) else choice.get("text")
    return bool(said) or any(choice.get(name) for name in ("finish_reason", "logprobs", "token_ids"))
