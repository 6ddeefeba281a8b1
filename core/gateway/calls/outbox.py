"""Events of an engine's stream that are not sent to the agent yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from core.dialects import Json, Relay, native_relay
from core.dialects.assembly import Assembly

MAX_WAITING: Final = 128
"""Most chunks kept for a slow agent; beyond it they are merged, so memory is bounded by the answer's size."""


class Outbox:
    """Chunks on their way to the agent.

    Args:
        relay: turns chunks into the agent's events.

    Attributes:
        news: set when there is something to send.
    """

    def __init__(self, relay: Relay) -> None:
        self.news = asyncio.Event()
        self.relay = relay
        self._ends: _Ends = _ChoicesEnd()
        self._merging: Callable[[], _Merged] = _MergedChunks
        self._waiting: list[Json] = []
        self._merged: _Merged | None = None
        self._held: list[Json] = []

    def pass_through(self, dialect: str) -> None:
        """Called before the first chunk: the chunks are events of the agent's own dialect."""
        self.relay = native_relay(dialect)
        self._ends = _MessageEnds()
        self._merging = _MergedEvents

    def put(self, chunks: Sequence[Json]) -> None:
        """Add the engine's chunks; the end of a choice, and what follows it, is held back."""
        for chunk in chunks:
            ready, last = self._ends.split(chunk)
            if last is not None:
                self._held.append(last)
            if ready is None:
                continue
            if self._merged is not None:
                self._merged.feed(ready)
                continue
            self._waiting.append(ready)
            if len(self._waiting) > MAX_WAITING:
                self._merged = self._merging()
                for waiting in self._waiting:
                    self._merged.feed(waiting)
                self._waiting = []
        if self._waiting or self._merged is not None:
            self.news.set()

    def take(self) -> bytes:
        """The events of all waiting chunks, possibly none."""
        self.news.clear()
        if self._merged is not None:
            self._waiting, self._merged = self._merged.chunks(), None
        waiting, self._waiting = self._waiting, []
        return b"".join(map(self.relay.feed, waiting))

    def rest(self) -> bytes:
        """All remaining events including the end; called once the record is durable."""
        return b"".join([self.take(), *map(self.relay.feed, self._held), self.relay.finish()])


class _Ends(Protocol):
    def split(self, chunk: Json) -> tuple[Json | None, Json | None]:
        """(the part that may be sent, the part that is held back)."""
        ...


class _Merged(Protocol):
    def feed(self, chunk: Json) -> None: ...

    def chunks(self) -> list[Json]: ...


class _ChoicesEnd:
    """Chat and completions: a choice ends with its ``finish_reason``; usage and other final fields have no choices."""

    def __init__(self) -> None:
        self._ended: set[int] = set()

    def split(self, chunk: Json) -> tuple[Json | None, Json | None]:
        choices = chunk.get("choices")
        if not choices:
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


class _MergedChunks:
    """All waiting chunks merged into one."""

    def __init__(self) -> None:
        self._assembly = Assembly()

    def feed(self, chunk: Json) -> None:
        self._assembly.feed(chunk)

    def chunks(self) -> list[Json]:
        return [self._assembly.chunk()]


class _MessageEnds:
    """Messages: ``message_delta`` ends the message."""

    def __init__(self) -> None:
        self._ended = False

    def split(self, chunk: Json) -> tuple[Json | None, Json | None]:
        self._ended |= chunk.get("type") in ("message_delta", "message_stop")
        return (None, chunk) if self._ended else (chunk, None)


class _MergedEvents:
    """Consecutive deltas of one type and block merged into one."""

    def __init__(self) -> None:
        self._events: list[Json] = []
        self._last: tuple[Any, ...] | None = None
        self._pieces: list[str] = []

    def feed(self, chunk: Json) -> None:
        if chunk.get("type") == "ping":
            return
        piece = _text_of(chunk)
        where = (chunk.get("index"), *piece[:2]) if piece is not None else None
        if piece is None or where != self._last:
            self._close()
            self._events.append(chunk)
            self._last = where
        if piece is not None:
            self._pieces.append(piece[2])

    def chunks(self) -> list[Json]:
        self._close()
        return self._events

    def _close(self) -> None:
        if self._last is not None:
            event = self._events[-1]
            self._events[-1] = {**event, "delta": {**event["delta"], self._last[2]: "".join(self._pieces)}}
        self._last, self._pieces = None, []


def _text_of(event: Mapping[str, Any]) -> tuple[Any, str, str] | None:
    """(type, field, text) of a delta that extends a text."""
    delta = event.get("delta")
    if event.get("type") != "content_block_delta" or not isinstance(delta, dict):
        return None
    fields = [name for name in delta if name != "type"]
    if len(fields) != 1 or not isinstance(delta[fields[0]], str):
        return None
    return delta.get("type"), fields[0], delta[fields[0]]
