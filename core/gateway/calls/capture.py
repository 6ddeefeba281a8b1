"""One captured call, from the agent's request to its response.

Order: caller, engine, answer, durable record, end of the response.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import orjson

from core.dialects import RESPONSES, ResponseIds, native_stream
from core.dialects.errors import engine_refusal
from core.errors import EngineError, KeySpent, StudioError
from core.gateway.calls.earlier_responses import expand_input, readable_trajectory
from core.gateway.calls.exchange import Exchange, Recorder
from core.gateway.calls.identity import presented_keys, resolve_caller
from core.gateway.calls.outbox import Outbox
from core.gateway.calls.policy import SyncInProgress
from core.gateway.calls.relay import relay
from core.gateway.deps import GatewayDeps
from core.gateway.engines.answer import EngineAnswer, EngineStream
from core.gateway.engines.base import Engine
from core.gateway.engines.concurrency import EngineBusy
from core.gateway.engines.registry import EnginePaused
from core.gateway.engines.routing import Attempts, affinity, ranked
from core.gateway.http.asgi import (
    EVENT_STREAM,
    JSON,
    ClientDisconnected,
    Receive,
    Scope,
    Send,
    disconnected,
    read_request,
    send_body,
    send_start,
    send_whole,
    text_headers,
)
from core.gateway.http.fast_router import decode_slashes
from core.gateway.served_dialects import BadRequest, ServedDialect, strip_fields
from core.records import MAX_DEPTH, too_deep
from core.scrub import pop_secrets

log = logging.getLogger(__name__)


class Capture:
    """The ASGI endpoint of one dialect."""

    def __init__(self, deps: GatewayDeps, dialect: ServedDialect) -> None:
        self._deps = deps
        self._dialect = dialect
        self._recorder = Recorder(deps, dialect)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one call."""
        deps = self._deps
        raw_headers = scope["headers"]
        call = Exchange(
            step_uid=deps.new_uid(),
            started_at=deps.clock(),
            headers=text_headers(raw_headers),
            raw_headers=raw_headers,
            connection="{}:{}".format(*client) if (client := scope.get("client")) else None,
        )
        deps.stats.call_started()
        try:
            await self._admit(call, decode_slashes(scope.get("path_params") or {}), receive)
        except StudioError as error:
            deps.stats.call_refused()
            await self._send_error(call, send, error)
            return
        except ClientDisconnected:
            deps.stats.call_refused()
            return
        except BaseException:
            deps.stats.call_refused()
            raise
        watcher = asyncio.create_task(_watch(call, receive))
        try:
            if call.stream:
                await self._stream(call, send)
            else:
                await self._reply(call, send)
        finally:
            watcher.cancel()

    async def _admit(self, call: Exchange, path: Mapping[str, str], receive: Receive) -> None:
        """Read the request, resolve caller and engines; wait while weights are synced."""
        deps = self._deps
        presented = presented_keys(call.headers)
        call.raw = await read_request(receive, call.headers, deps.max_body_bytes)
        call.request = parse_request(call.raw)
        call.dropped, call.body_secrets = pop_secrets(call.request)
        if call.dropped:
            # Neither the journal nor the engine may get keys from a body.
            call.raw = orjson.dumps(call.request)
        call.caller = resolve_caller(
            path=path,
            headers=call.headers,
            model=call.request.get("model"),
            presented=presented,
            keys=deps.keys,
            api_key=deps.settings.api_key,
            channel=deps.settings.channel,
            metadata=call.request.get("metadata"),
        )
        call.stream = call.request.get("stream") is True
        within = readable_trajectory(presented, deps.keys, deps.settings.api_key)
        call.input_items = await expand_input(deps.journal.directory, self._dialect.name, call.request, within)
        # Only the ids of Responses are looked up in the journal.
        mark = deps.journal.mark_for(call.step_uid) if self._dialect.name == RESPONSES.name else ""
        ids = ResponseIds(call.step_uid, call.started_at, mark)
        try:
            call.translation = self._dialect.wire.open(call.request, ids, call.input_items)
        except (TypeError, AttributeError, LookupError, ValueError) as error:
            # A field has an unexpected type; the agent gets an error in its own dialect.
            log.exception("a %s request could not be translated", self._dialect.name)
            raise BadRequest(f"the body is not shaped like a {self._dialect.name} request", field="body") from error
        engines = await deps.engines.candidates(call.caller.model)
        if len(engines) > 1:
            engines = ranked(engines, affinity(call.caller.identity.trajectory_uid, call.translation.engine_request))
        call.attempts = Attempts(engines, deps.retries)
        if call.caller.binding is not None:
            await deps.ledger.enter(call.caller.binding)
        call.policy_version = await deps.policy.start(deps.sync_wait_s)

    async def _reply(self, call: Exchange, send: Send) -> None:
        try:
            answer = await self._ask(call, None)
        except StudioError as error:
            await self._send_error(call, send, error)
            return
        assert call.translation is not None
        if answer.status != 200:
            body = self._refusal(answer)
        elif answer.engine_dialect is None and (
            answer.added or self._dialect.translates or call.translation.engine_request is not call.request
        ):
            strip_fields(answer.body, answer.added)
            body = orjson.dumps(call.translation.full_answer(answer.body))
        else:
            body = answer.raw
        await send_whole(send, answer.status, body, [JSON, *_retry_after(answer), *call.reply_headers()])

    async def _stream(self, call: Exchange, send: Send) -> None:
        """Send events as the engine's arrive, or all at the end; keep-alive bytes are sent meanwhile."""
        assert call.translation is not None
        outbox = Outbox(call.translation.relay())
        call.stream_mode = "whole"
        work = asyncio.create_task(self._ask(call, outbox))
        work.add_done_callback(lambda _: outbox.news.set())
        started = False
        try:
            while True:
                waited = await _wait_for(self._deps.keepalive_s, outbox.news)
                if work.done():
                    break
                events = outbox.take() if waited else self._dialect.wire.keep_alive
                if not events:
                    continue
                if not started:
                    # Headers wait for the first event, so that an earlier failure still has its own status.
                    started = True
                    await send_start(send, 200, [*EVENT_STREAM, *call.reply_headers()])
                await send_body(send, events, more=True)
            await self._end_stream(call, send, work, outbox, started=started)
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait({work})

    async def _end_stream(
        self, call: Exchange, send: Send, work: asyncio.Task[EngineAnswer], outbox: Outbox, *, started: bool
    ) -> None:
        """Send the last events, once the record is durable or has failed."""
        headers = call.reply_headers()
        try:
            answer = work.result()
            if answer.status != 200 and started:
                raise engine_refusal(answer.status, answer.body)
        except StudioError as error:
            if started:
                await send_body(send, self._recorder.scrubbed(call, outbox.relay.fail(error)))
            else:
                await self._send_error(call, send, error)
            return
        if answer.status != 200:
            await send_whole(send, answer.status, self._refusal(answer), [JSON, *_retry_after(answer), *headers])
            return
        body = outbox.rest() if call.stream_mode == "relay" else self._events(call, answer)
        if started:
            await send_body(send, body)
        else:
            await send_whole(send, 200, body, [*EVENT_STREAM, *headers])

    def _events(self, call: Exchange, answer: EngineAnswer) -> bytes:
        assert call.translation is not None
        if answer.engine_dialect is not None:
            return native_stream(answer.engine_dialect, answer.body)
        strip_fields(answer.body, answer.added)
        return call.translation.stream(answer.body)

    def _refusal(self, answer: EngineAnswer) -> bytes:
        """The engine's error, in the agent's dialect."""
        if not self._dialect.translates or answer.engine_dialect is not None:
            return answer.raw
        return orjson.dumps(self._dialect.error(engine_refusal(answer.status, answer.body)))

    async def _ask(self, call: Exchange, outbox: Outbox | None) -> EngineAnswer:
        """Call the engine and make the exchange durable.

        Args:
            outbox: receives chunks as they arrive; None for a whole answer.

        Raises:
            EngineError: the engine failed; that is recorded too.
            JournalError: the exchange could not be stored and ``capture`` is strict.
        """
        assert call.attempts is not None
        answer: EngineAnswer | EngineStream | None = None
        failure: StudioError | None = None
        request = call.engine_call(self._dialect)
        stream = outbox is not None and self._dialect.relays

        async def ask(engine: Engine) -> EngineAnswer | EngineStream:
            return await (engine.open_stream(request) if stream else engine.complete(request))

        try:
            answer = await call.attempts.ask(ask)
        except EngineError as error:
            failure = error
        except asyncio.CancelledError:
            self._recorder.abandon(call, None)
            raise
        except Exception as error:
            name = call.attempts.engine.name
            log.exception("engine %s failed unexpectedly", name)
            failure = EngineError(f"engine {name!r} failed: {type(error).__name__}")
        if isinstance(answer, EngineStream):
            assert outbox is not None
            return await relay(call, answer, outbox, self._recorder)
        if answer is not None:
            answer = self._recorder.guarded(call, answer)
        return await self._recorder.settle(call, answer, failure)

    async def _send_error(self, call: Exchange, send: Send, error: StudioError) -> None:
        headers = [JSON, *call.reply_headers()]
        if isinstance(error, SyncInProgress | EngineBusy | EnginePaused | KeySpent) and error.retry_after_s is not None:
            headers.append((b"retry-after", str(int(error.retry_after_s)).encode()))
        body = self._recorder.scrubbed(call, orjson.dumps(self._dialect.error(error)))
        await send_whole(send, error.http_status, body, headers)


async def _watch(call: Exchange, receive: Receive) -> None:
    await disconnected(receive)
    call.client_disconnected = True


async def _wait_for(seconds: float, event: asyncio.Event) -> bool:
    """Wait for an event; False on timeout."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


def parse_request(raw: bytes) -> dict[str, Any]:
    """The body as an object. Raises BadRequest for anything else."""
    try:
        request = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not JSON: {error}", field="body") from error
    if too_deep(request, raw):
        raise BadRequest(f"the body is nested more than {MAX_DEPTH} deep", field="body")
    if not isinstance(request, dict):
        raise BadRequest("the body is not a JSON object", field="body")
    if not isinstance(request.get("model"), str | None):
        raise BadRequest("model is not a string", field="model")
    return request


def _retry_after(answer: EngineAnswer) -> list[tuple[bytes, bytes]]:
    return [(b"retry-after", answer.retry_after.encode("latin-1"))] if answer.retry_after else []
