"""Relays an engine's stream to the agent and to the journal.

Text is sent as it arrives; the end of the answer waits for the durable record. The engine is always read to its end,
also after the agent has disconnected, so the full answer is recorded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing

from core.dialects import Json
from core.dialects.assembly import Assembly
from core.dialects.messages_assembly import MessageAssembly
from core.errors import EngineError, StudioError
from core.gateway.calls.exchange import Exchange, Recorder
from core.gateway.calls.outbox import Outbox
from core.gateway.calls.own_keys import TOKENS_REMOVED
from core.gateway.engines.answer import EngineAnswer, EngineStream
from core.gateway.served_dialects import strip_fields

log = logging.getLogger(__name__)


async def relay(call: Exchange, stream: EngineStream, outbox: Outbox, recorder: Recorder) -> EngineAnswer:
    """Read an engine's stream to its end and make it durable.

    Returns:
        The whole answer; its end may be sent now.

    Raises:
        StudioError: the stream broke off, or nothing could be stored. What arrived is recorded with the reason.
    """
    call.stream_mode = "relay"
    assembly = Assembly() if stream.engine_dialect is None else MessageAssembly()
    if stream.engine_dialect is not None:
        outbox.pass_through(stream.engine_dialect)
    failure: StudioError | None = None
    guard = recorder.guard(call)
    native = stream.engine_dialect is not None

    def take(chunks: Sequence[Json]) -> None:
        for chunk in chunks:
            assembly.feed(chunk)
        if not call.client_disconnected:
            outbox.put([chunk for chunk in chunks if native or _strip_added(chunk, stream.added)])

    try:
        async with aclosing(stream.batches()) as batches:
            async for chunks in batches:
                take(chunks if guard is None else guard.feed(chunks))
        if guard is not None:
            take(guard.rest())
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
        answer, _ = await _answer(stream, assembly, EngineError("the gateway stopped"))
        recorder.abandon(call, answer)
        raise
    finally:
        stream.close()
    if guard is not None and failure is not None:
        for chunk in guard.rest():
            assembly.feed(chunk)
    answer, failure = await _answer(stream, assembly, failure)
    if answer is not None and guard is not None and guard.cut:
        answer.dropped = [*answer.dropped, TOKENS_REMOVED]
    return await recorder.settle(call, answer, failure)


async def _answer(
    stream: EngineStream, assembly: Assembly | MessageAssembly, failure: StudioError | None
) -> tuple[EngineAnswer | None, StudioError | None]:
    """The assembled answer and the failure; chunks that can't be assembled are a failure."""
    try:
        body = assembly.full_answer() if assembly.begun else None
        return await stream.answer(body, failure.message if failure is not None else None), failure
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        # The call is recorded even if its answer can't be assembled.
        log.exception("the chunks of a stream make no answer")
        failure = failure or EngineError(f"the engine's chunks make no answer: {type(error).__name__}: {error}")
        return await stream.answer(None, failure.message), failure


def _strip_added(chunk: Json, added: Sequence[str]) -> bool:
    """Remove what only the gateway requested; False if nothing is left to send."""
    choices = chunk.get("choices")
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        return False
    if not choices:
        return bool(chunk.get("usage"))
    if not added:
        return True
    strip_fields(chunk, added)
    return any(_has_content(choice) for choice in choices)


def _has_content(choice: Json) -> bool:
    delta = choice.get("delta")
    content = any(value is not None for value in delta.values()) if isinstance(delta, dict) else choice.get("text")
    return bool(content) or any(choice.get(name) for name in ("finish_reason", "logprobs", "token_ids"))
