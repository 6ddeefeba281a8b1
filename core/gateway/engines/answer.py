"""What goes to an engine and what comes back: a call, a whole answer, a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.gateway.dialects import Dialect


@dataclass(slots=True)
class EngineAnswer:
    """What an engine said.

    Attributes:
        status: HTTP status.
        raw: the body as it came, valid JSON.
        body: the same, parsed.
        model: the model name that the engine was asked for.
        added: names of request fields that the gateway added.
        dropped: names of request fields that the engine was not given.
        retry_after: the engine's ``Retry-After``, where it sent one.
        tokenizer_hash: SHA-256 (hex) of the tokenizer that made the ids, where the engine tells it.
        engine_dialect: the agent's own dialect, where the engine was asked and answered in it; None where ``body``
            is in the dialect that the call asked in.
        facts: what is known of the engine: ``flavour``, ``version``, ``logprobs`` (``raw`` or ``processed``), and
            ``prompt_ids`` where it encoded the prompt again that it says it read; ``renamed_fields``, see
            ``core.gateway.providers.fields.Sent``.
    """

    status: int
    raw: bytes
    body: Any
    model: str
    added: Sequence[str] = ()
    dropped: Sequence[str] = ()
    retry_after: str | None = None
    tokenizer_hash: str | None = None
    engine_dialect: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class EngineCall:
    """One request on its way to an engine.

    Attributes:
        body: the agent's request, parsed; not to be changed.
        model: the model that the agent named; None when it named none.
        foreign_key: the agent's own provider key.
        headers: harmless headers to pass on.
        native: the agent's own body where ``body`` is a translation of it, for engines that speak its dialect.
        native_dialect: the dialect that the agent speaks.
    """

    dialect: Dialect
    body: Mapping[str, Any]
    model: str | None
    foreign_key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    native: Mapping[str, Any] | None = None
    native_dialect: str | None = None


Finish = Callable[[dict[str, Any] | None, str | None], Awaitable[EngineAnswer | None]]
"""Assembled body, failure -> the answer to record. Called once when a stream has ended."""


class EngineStream(ABC):
    """Made by ``Engine.open_stream``. Read ``batches`` to its end or its error, then call ``answer`` once.

    Args:
        added: names of request fields that the gateway added.
        finish: what ``answer`` does.

    Attributes:
        engine_dialect: the agent's own dialect, where the engine streams in it; None where the chunks are of the
            dialect that the call asked in.
    """

    def __init__(self, *, added: Sequence[str], finish: Finish, engine_dialect: str | None = None) -> None:
        self.added = added
        self.engine_dialect = engine_dialect
        self._finish = finish
        self._left: Callable[[], None] | None = None

    @abstractmethod
    def batches(self) -> AsyncGenerator[list[dict[str, Any]]]:
        """Parsed chunks, as many at a time as have come. Closes the connection when left.

        Raises:
            EngineError: broken off, an error in the stream, something that is no chunk. EngineTimeout: silence, or
                not ended in time.
        """

    def when_closed(self, left: Callable[[], None]) -> None:
        """Have something called when the engine is done with."""
        self._left = left

    def close(self) -> None:
        """The engine is done with. May be called twice."""
        left, self._left = self._left, None
        if left is not None:
            left()

    async def answer(self, body: dict[str, Any] | None, failure: str | None = None) -> EngineAnswer | None:
        """The answer, with what is known of the engine, which is told how it went.

        Args:
            body: what the chunks were put together to; None where there was none to begin with.
            failure: why it is not whole; None when it is.
        """
        return await self._finish(body, failure)
