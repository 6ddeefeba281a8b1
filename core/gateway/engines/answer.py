"""A call to an engine, its whole answer, and its stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.gateway.served_dialects import ServedDialect


@dataclass(slots=True)
class EngineAnswer:
    """An engine's whole answer.

    Attributes:
        status: HTTP status.
        raw: the body as it came, valid JSON.
        body: the same, parsed.
        model: the model name that was sent to the engine.
        added: names of request fields that the gateway added.
        dropped: names of request fields that were not sent to the engine.
        retry_after: the engine's ``Retry-After``, if any.
        tokenizer_hash: SHA-256 (hex) of the tokenizer that made the ids, if the engine reports it.
        engine_dialect: the agent's own dialect, if the engine was called in it; None where ``body`` is in the dialect
            of the translated call.
        facts: what is known of the engine: ``flavour``, ``version``, ``logprobs`` (``raw`` or ``processed``);
            ``prompt_ids`` if the engine encoded its rendered prompt again; ``renamed_fields``, see
            ``core.gateway.providers.fields.FieldUse``.
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
    """One request to an engine.

    Attributes:
        body: the request, parsed; must not be changed.
        model: the model that the agent named; None if it named none.
        foreign_key: the agent's own provider key.
        headers: headers to pass on.
        native: the agent's original body if ``body`` is a translation, for engines that speak its dialect.
        native_dialect: the agent's dialect.
    """

    dialect: ServedDialect
    body: Mapping[str, Any]
    model: str | None
    foreign_key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    native: Mapping[str, Any] | None = None
    native_dialect: str | None = None


Finish = Callable[[dict[str, Any] | None, str | None], Awaitable[EngineAnswer | None]]
"""Assembled body, failure -> the answer to record. Called once when a stream has ended."""


class EngineStream(ABC):
    """An engine's answer as it arrives. Read ``batches`` to its end or its error, then call ``answer`` once.

    Args:
        added: names of request fields that the gateway added.
        finish: what ``answer`` does.

    Attributes:
        engine_dialect: the agent's own dialect, if the engine streams in it; None where the chunks are in the dialect
            of the translated call.
    """

    def __init__(self, *, added: Sequence[str], finish: Finish, engine_dialect: str | None = None) -> None:
        self.added = added
        self.engine_dialect = engine_dialect
        self._finish = finish
        self._on_close: Callable[[], None] | None = None

    @abstractmethod
    def batches(self) -> AsyncGenerator[list[dict[str, Any]]]:
        """Parsed chunks, as many at a time as have arrived. Leaving the generator closes the connection.

        Raises:
            EngineError: broken off, an error in the stream, or an invalid chunk. EngineTimeout: silent for too long, or
                not ended in time.
        """

    def when_closed(self, callback: Callable[[], None]) -> None:
        """Set a callback for the end of the stream."""
        self._on_close = callback

    def close(self) -> None:
        """Close the stream. May be called twice."""
        callback, self._on_close = self._on_close, None
        if callback is not None:
            callback()

    async def answer(self, body: dict[str, Any] | None, failure: str | None = None) -> EngineAnswer | None:
        """The whole answer; also updates what is known of the engine.

        Args:
            body: the assembled chunks; None if there were none.
            failure: why the answer is incomplete; None if it is complete.
        """
        return await self._finish(body, failure)
