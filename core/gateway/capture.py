"""One captured call, from the agent's body to its answer. The order is the promise:

who calls -> which engine -> the whole answer -> the record durable -> the answer leaves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from core.dialects import Json, Names, Translation, native_stream
from core.dialects.errors import engine_refusal
from core.errors import EngineError, JournalError, StudioError
from core.gateway.asgi import (
    EVENT_STREAM,
    JSON,
    AgentGone,
    Receive,
    Scope,
    Send,
    disconnected,
    read_body,
    send_body,
    send_start,
    send_whole,
)
from core.gateway.deps import GatewayDeps
from core.gateway.dialects import ENGINE_DIALECTS, BadRequest, Dialect, strip_asked
from core.gateway.engines import Engine, EngineAnswer, EngineCall
from core.gateway.identity import Caller, authorize, presented_keys, resolve_caller
from core.gateway.policy import SyncInProgress
from core.gateway.recall import reach, recall
from core.gateway.stats import CallEvent
from core.records import blot, call_record, harmless_headers, take_secrets

log = logging.getLogger(__name__)

_API_HEADERS = ("anthropic-version", "anthropic-beta")
"""What an agent says about the API that it speaks; an engine that speaks the same needs it."""
_MIN_SECRET_CHARS = 12
"""Shorter keys are placeholders ("EMPTY", "sk-local"): blotting them out would only damage texts."""


@dataclass(slots=True)
class Exchange:
    """The state of one call; ``caller``, ``engine`` and ``translation`` are known once it is admitted."""

    step_uid: str
    started_at: float
    headers: Mapping[str, str]
    raw_headers: list[tuple[bytes, bytes]]
    raw: bytes = b""
    request: dict[str, Any] = field(default_factory=dict)
    caller: Caller | None = None
    engine: Engine | None = None
    translation: Translation | None = None
    input_items: list[Json] = field(default_factory=list)
    policy_version: int | None = None
    stream: bool = False
    agent_gone: bool = False
    dropped: list[str] = field(default_factory=list)
    body_secrets: list[str] = field(default_factory=list)

    def reply_headers(self) -> list[tuple[bytes, bytes]]:
        """``X-Step-Uid``, and ``X-Trajectory-Uid`` when the caller is known."""
        headers = [(b"x-step-uid", self.step_uid.encode())]
        if self.caller is not None and self.caller.identity.trajectory_uid is not None:
            headers.append((b"x-trajectory-uid", self.caller.identity.trajectory_uid.encode()))
        return headers

    def secrets(self, api_key: str | None) -> list[str]:
        """Every key that the call presented or that its engine was given, and the gateway's own."""
        engine_keys = self.engine.secrets() if self.engine is not None else ()
        known = {*presented_keys(self.headers), *engine_keys, *self.body_secrets, api_key or ""}
        return [key for key in known if len(key) >= _MIN_SECRET_CHARS]


class Capture:
    """The ASGI endpoint of one dialect."""

    def __init__(self, deps: GatewayDeps, dialect: Dialect) -> None:
        self._deps = deps
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one call."""
        deps = self._deps
        raw_headers = scope["headers"]
        call = Exchange(
            step_uid=deps.new_uid(),
            started_at=deps.clock(),
            headers={name.decode("latin-1"): value.decode("latin-1") for name, value in raw_headers},
            raw_headers=raw_headers,
        )
        deps.stats.call_started()
        try:
            await self._admit(call, scope.get("path_params") or {}, receive)
        except StudioError as error:
            deps.stats.call_refused()
            await self._send_error(call, send, error)
            return
        except AgentGone:
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
        """Read the request and find out who calls whom; waits while weights are exchanged."""
        deps = self._deps
        presented = presented_keys(call.headers)
        authorize(presented, deps.keys, deps.settings.api_key)
        call.raw = await read_body(receive, deps.max_body_bytes)
        call.request = parse_request(call.raw)
        call.dropped, call.body_secrets = take_secrets(call.request)
        if call.dropped:
            # Keys have no place in a body: neither the journal nor the engine gets them.
            call.raw = orjson.dumps(call.request)
        call.caller = resolve_caller(
            path=path,
            headers=call.headers,
            model=call.request.get("model"),
            presented=presented,
            keys=deps.keys,
            api_key=deps.settings.api_key,
            channel=deps.settings.channel,
        )
        call.stream = call.request.get("stream") is True
        within = reach(presented, deps.keys, deps.settings.api_key)
        call.input_items = await recall(deps.journal.directory, self._dialect.name, call.request, within)
        names = Names(call.step_uid, call.started_at, deps.journal.mark())
        call.translation = self._dialect.wire.open(call.request, names, call.input_items)
        call.engine = await deps.engines.pick(call.caller.model)
        call.policy_version = await deps.policy.start(deps.sync_wait_s)

    async def _reply(self, call: Exchange, send: Send) -> None:
        try:
            answer = await self._exchange(call)
        except StudioError as error:
            await self._send_error(call, send, error)
            return
        assert call.translation is not None
        if answer.status != 200:
            body = self._refusal(answer)
        elif answer.engine_dialect is None and (answer.added or self._translates):
            strip_asked(answer.body, answer.added)
            body = orjson.dumps(call.translation.whole(answer.body))
        else:
            body = answer.raw
        await send_whole(send, answer.status, body, [JSON, *_retry_after(answer), *call.reply_headers()])

    async def _stream(self, call: Exchange, send: Send) -> None:
        """Make the stream from the whole answer; something empty keeps the connection open while the engine works."""
        work = asyncio.create_task(self._exchange(call))
        try:
            # Headers wait for the first comment: until then a failure can still have its own status.
            done, _ = await asyncio.wait({work}, timeout=self._deps.keepalive_s)
            if done:
                await self._stream_at_once(call, send, work)
                return
            await send_start(send, 200, [*EVENT_STREAM, *call.reply_headers()])
            while not done:
                await send_body(send, self._dialect.wire.keep_alive, more=True)
                done, _ = await asyncio.wait({work}, timeout=self._deps.keepalive_s)
            try:
                answer = work.result()
                if answer.status != 200:
                    raise engine_refusal(answer.status, answer.body)
                body = self._events(call, answer)
            except StudioError as error:
                assert call.translation is not None
                body = self._blotted(call, call.translation.relay().fail(error))
            await send_body(send, body)
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait({work})

    async def _stream_at_once(self, call: Exchange, send: Send, work: asyncio.Task[EngineAnswer]) -> None:
        try:
            answer = work.result()
        except StudioError as error:
            await self._send_error(call, send, error)
            return
        headers = call.reply_headers()
        if answer.status == 200:
            await send_whole(send, 200, self._events(call, answer), [*EVENT_STREAM, *headers])
        else:
            await send_whole(send, answer.status, self._refusal(answer), [JSON, *_retry_after(answer), *headers])

    def _events(self, call: Exchange, answer: EngineAnswer) -> bytes:
        assert call.translation is not None
        if answer.engine_dialect is not None:
            return native_stream(answer.engine_dialect, answer.body)
        strip_asked(answer.body, answer.added)
        return call.translation.stream(answer.body)

    @property
    def _translates(self) -> bool:
        """Whether engines are asked in another dialect than the agent speaks."""
        return self._dialect.wire.engine_dialect != self._dialect.name

    def _refusal(self, answer: EngineAnswer) -> bytes:
        """What the agent gets for an engine's error: the engine's words, in the agent's dialect."""
        if not self._translates or answer.engine_dialect is not None:
            return answer.raw
        return orjson.dumps(self._dialect.error(engine_refusal(answer.status, answer.body)))

    async def _exchange(self, call: Exchange) -> EngineAnswer:
        """Ask the engine and make the exchange durable.

        Raises:
            EngineError: the engine failed; that is recorded too.
            JournalError: the exchange could not be stored and ``capture`` is strict.
        """
        assert call.engine is not None and call.caller is not None and call.translation is not None
        deps = self._deps
        answer: EngineAnswer | None = None
        failure: StudioError | None = None
        identity = call.caller.identity
        # Engines may use it for affinity; it says nothing about the agent.
        passed_on = {"X-Trajectory-Uid": identity.trajectory_uid} if identity.trajectory_uid else {}
        passed_on |= {name: call.headers[name] for name in _API_HEADERS if name in call.headers}
        request = EngineCall(
            ENGINE_DIALECTS[self._dialect.wire.engine_dialect],
            call.translation.asked,
            call.caller.model,
            call.caller.foreign_key,
            passed_on,
            native=call.request if self._translates else None,
            native_dialect=self._dialect.name,
        )
        try:
            answer = await call.engine.complete(request)
        except EngineError as error:
            failure = error
        except asyncio.CancelledError:
            # The server stops and waits no longer: what is known goes to disk on the way out.
            call.agent_gone = True
            failure = EngineError("the gateway stopped before the engine answered")
            deps.journal.append(self._record(call, None, failure, deps.policy.finish()))
            self._count(call, None, failure, dropped=False)
            raise
        except Exception as error:
            log.exception("engine %s failed unexpectedly", call.engine.name)
            failure = EngineError(f"engine {call.engine.name!r} failed: {type(error).__name__}")
        record = self._record(call, answer, failure, deps.policy.finish())
        dropped = False
        try:
            await deps.journal.append_async(record)
        except JournalError as error:
            if deps.settings.capture == "strict":
                failure = error
            else:
                dropped = True
                log.error("call %s was answered and not stored: %s", call.step_uid, error.message)
        self._count(call, answer, failure, dropped=dropped)
        if failure is not None:
            raise failure
        assert answer is not None
        return answer

    def _record(
        self, call: Exchange, answer: EngineAnswer | None, failure: StudioError | None, version_end: int | None
    ) -> bytes:
        assert call.caller is not None and call.engine is not None and call.translation is not None
        finished_at = self._deps.clock()
        native = answer.engine_dialect if answer is not None else None
        translated = () if native is not None else call.translation.dropped
        dropped = [*call.dropped, *translated, *(answer.dropped if answer is not None else ())]
        return call_record(
            at=finished_at,
            step_uid=call.step_uid,
            started_at=call.started_at,
            finished_at=finished_at,
            identity=call.caller.identity,
            dialect=self._dialect.name,
            engine=call.engine.name,
            engine_kind=call.engine.kind,
            model=answer.model if answer is not None else call.caller.model,
            policy_version=call.policy_version,
            policy_version_end=version_end,
            stream=call.stream,
            stream_mode="whole" if call.stream else "none",
            client_headers=harmless_headers(call.raw_headers),
            request=call.raw,
            parsed_request=call.request,
            engine_added=answer.added if answer is not None else (),
            dropped_fields=list(dict.fromkeys(dropped)),
            response=answer.raw if answer is not None else None,
            http_status=_status_of(answer, failure),
            error=_error_of(answer, failure),
            aborted=call.agent_gone,
            retry_count=_retry_count(call.headers),
            tokenizer_hash=answer.tokenizer_hash if answer is not None else None,
            engine_dialect=native or self._dialect.wire.engine_dialect,
            engine_facts=answer.facts if answer is not None else {},
            response_id=call.translation.response_id if native is None else None,
            input_items=call.input_items,
            secrets=call.secrets(self._deps.settings.api_key),
        )

    def _count(
        self, call: Exchange, answer: EngineAnswer | None, failure: StudioError | None, *, dropped: bool
    ) -> None:
        assert call.caller is not None and call.engine is not None
        identity = call.caller.identity
        at = self._deps.clock()
        error = _error_of(answer, failure)
        self._deps.stats.call_finished(
            CallEvent(
                at=at,
                step_uid=call.step_uid,
                trajectory_uid=identity.trajectory_uid,
                identity_source=identity.identity_source,
                channel=identity.channel,
                source=identity.source,
                agent=identity.agent,
                model=answer.model if answer is not None else call.caller.model,
                engine=call.engine.name,
                dialect=self._dialect.name,
                stream=call.stream,
                http_status=_status_of(answer, failure),
                latency_s=at - call.started_at,
                n_prompt_tokens=_usage(answer, "prompt_tokens", "input_tokens"),
                n_response_tokens=_usage(answer, "completion_tokens", "output_tokens"),
                error=error["message"] if error is not None else None,
                aborted=call.agent_gone,
            ),
            dropped=dropped,
        )

    async def _send_error(self, call: Exchange, send: Send, error: StudioError) -> None:
        headers = [JSON, *call.reply_headers()]
        if isinstance(error, SyncInProgress):
            headers.append((b"retry-after", str(int(error.retry_after_s)).encode()))
        body = self._blotted(call, orjson.dumps(self._dialect.error(error)))
        await send_whole(send, error.http_status, body, headers)

    def _blotted(self, call: Exchange, body: bytes) -> bytes:
        for secret in call.secrets(self._deps.settings.api_key):
            body = blot(body, secret)
        return body


async def _watch(call: Exchange, receive: Receive) -> None:
    await disconnected(receive)
    call.agent_gone = True


def parse_request(raw: bytes) -> dict[str, Any]:
    """The body as an object. Raises BadRequest when it is none."""
    try:
        request = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not JSON: {error}", field="body") from error
    if not isinstance(request, dict):
        raise BadRequest("the body is not a JSON object", field="body")
    if not isinstance(request.get("model"), str | None):
        raise BadRequest("model is not a string", field="model")
    return request


def _status_of(answer: EngineAnswer | None, failure: StudioError | None) -> int | None:
    if answer is not None:
        return answer.status
    return failure.http_status if failure is not None else None


def _error_of(answer: EngineAnswer | None, failure: StudioError | None) -> dict[str, Any] | None:
    """``{type, message}`` of what went wrong, or None."""
    if failure is not None:
        return {"type": failure.type, "message": failure.message}
    if answer is None or answer.status == 200:
        return None
    said = answer.body.get("error")
    message = said.get("message") if isinstance(said, dict) else answer.body.get("message")
    return {"type": EngineError.type, "message": str(message or f"the engine answered {answer.status}")}


def _usage(answer: EngineAnswer | None, *names: str) -> int | None:
    """A count under the first of its names that the engine uses."""
    usage = answer.body.get("usage") if answer is not None else None
    told = (usage.get(name) for name in names) if isinstance(usage, dict) else ()
    return next((count for count in told if isinstance(count, int)), None)


def _retry_after(answer: EngineAnswer) -> list[tuple[bytes, bytes]]:
    return [(b"retry-after", answer.retry_after.encode("latin-1"))] if answer.retry_after else []


def _retry_count(headers: Mapping[str, str]) -> int:
    told = headers.get("x-stainless-retry-count", "")
    return int(told) if told.isdecimal() and len(told) < 6 else 0
