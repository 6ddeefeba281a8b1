"""An engine's stream over HTTP, and its deadlines."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Sequence
from typing import Any, TypeVar

from core.errors import EngineError, EngineTimeout
from core.gateway.engines.answer import EngineStream, Finish
from core.gateway.engines.response_bodies import error_message, parse_body
from core.gateway.transport.connection import HttpError
from core.gateway.transport.connection_pool import Timeouts
from core.gateway.transport.http1 import HttpAnswer
from core.gateway.transport.sse import EventReader

DONE = b"[DONE]"
_LINGER_S = 0.05
"""A connection can be reused once its last, empty chunk is read, which follows at once or never."""

T = TypeVar("T")


class StreamDeadline:
    """The deadlines of one stream: for silence and for the whole answer.

    Args:
        name: the engine's.
        deadline: of the whole answer, loop time.
    """

    def __init__(self, name: str, deadline: float, timeouts: Timeouts) -> None:
        self._name = name
        self._deadline = deadline
        self._idle_s = timeouts.idle
        self._silence_s = timeouts.first_byte or timeouts.total

    async def wait(self, coming: Awaitable[T]) -> T:
        """The next item. Raises EngineTimeout."""
        now = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(min(self._deadline, now + self._silence_s)):
                result = await coming
        except TimeoutError as error:
            late = asyncio.get_running_loop().time() >= self._deadline
            what = "did not end its answer in time" if late else f"was silent for {self._silence_s:g} s"
            raise EngineTimeout(
                f"engine {self._name!r} {what}", hint="CLAW_STUDIO_ENGINE_TIMEOUT_S sets the limit" if late else None
            ) from error
        self._silence_s = self._idle_s
        return result


class HttpStream(EngineStream):
    """Server-sent events of an engine that is called directly.

    Args:
        name: the engine's.
        stream_deadline: limits of the wait.
    """

    def __init__(
        self,
        response: HttpAnswer,
        *,
        name: str,
        added: Sequence[str],
        stream_deadline: StreamDeadline,
        finish: Finish,
        engine_dialect: str | None = None,
    ) -> None:
        super().__init__(added=added, finish=finish, engine_dialect=engine_dialect)
        self._response = response
        self._name = name
        self._stream_deadline = stream_deadline

    async def batches(self) -> AsyncGenerator[list[dict[str, Any]]]:
        """Chunks as they arrive."""
        events = EventReader()
        try:
            while piece := await self._read():
                chunks: list[dict[str, Any]] = []
                failure: EngineError | None = None
                done = False
                try:
                    for data in events.feed(piece):
                        if done := data.strip() == DONE:
                            break
                        chunks.append(_chunk(data))
                except EngineError as error:
                    failure = error
                if chunks:
                    yield chunks
                if failure is not None:
                    raise failure
                if done:
                    await self._drain()
                    return
        finally:
            self.close()

    def close(self) -> None:
        """Release the connection if the body was read to its end, else close it."""
        self._response.release()
        super().close()

    async def _read(self) -> bytes:
        try:
            return await self._stream_deadline.wait(self._response.readany())
        except HttpError as error:
            raise EngineError(f"engine {self._name!r} broke off in the middle of its answer: {error}") from error

    async def _drain(self) -> None:
        with contextlib.suppress(TimeoutError, HttpError):
            async with asyncio.timeout(_LINGER_S):
                while await self._response.readany():
                    pass


def _chunk(data: bytes) -> dict[str, Any]:
    chunk, _ = parse_body(data)
    if not isinstance(chunk, dict):
        raise EngineError("the engine sent something that is no chunk of an answer")
    if chunk.get("error") and not chunk.get("choices"):
        inner = chunk["error"]
        status = inner.get("code") if isinstance(inner, dict) else None
        raise EngineError(
            f"the engine answered with an error: {error_message(chunk)}",
            upstream_status=status if isinstance(status, int) and 400 <= status < 600 else None,
        )
    return chunk
