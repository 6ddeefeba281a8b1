"""The state of one call, and the recorder that makes it durable before it is answered."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from core.dialects import Json, Translation
from core.errors import EngineError, JournalError, StudioError
from core.gateway.calls.identity import Caller, presented_keys
from core.gateway.calls.own_keys import TOKENS_REMOVED, StreamGuard, usable_secrets, without_own_keys
from core.gateway.deps import GatewayDeps
from core.gateway.engines.answer import EngineAnswer, EngineCall
from core.gateway.engines.base import Engine
from core.gateway.engines.routing import Attempts
from core.gateway.served_dialects import ENGINE_DIALECTS, ServedDialect
from core.gateway.telemetry.stats import CallEvent
from core.records import call_record
from core.scrub import MIN_SECRET_CHARS, SCRUBBED, harmless_headers, scrub_bytes

log = logging.getLogger(__name__)

_API_HEADERS = ("anthropic-version", "anthropic-beta")
"""Headers about the agent's API version, passed to an engine of the same API."""


@dataclass(slots=True)
class Exchange:
    """The state of one call; ``caller``, ``attempts`` and ``translation`` are set once it is admitted.

    Attributes:
        attempts: the engines it may use, and the one it uses.
        stream_mode: how the agent's stream is made: ``none``, ``whole`` or ``relay``.
    """

    step_uid: str
    started_at: float
    headers: Mapping[str, str]
    raw_headers: list[tuple[bytes, bytes]]
    raw: bytes = b""
    request: dict[str, Any] = field(default_factory=dict)
    caller: Caller | None = None
    attempts: Attempts | None = None
    translation: Translation | None = None
    input_items: list[Json] = field(default_factory=list)
    policy_version: int | None = None
    stream: bool = False
    stream_mode: str = "none"
    client_disconnected: bool = False
    connection: str | None = None
    dropped: list[str] = field(default_factory=list)
    body_secrets: list[str] = field(default_factory=list)

    @property
    def engine(self) -> Engine | None:
        """The engine that is called, or has answered."""
        return self.attempts.engine if self.attempts is not None else None

    def reply_headers(self) -> list[tuple[bytes, bytes]]:
        """``X-Step-Uid``, and ``X-Trajectory-Uid`` when the caller is known."""
        headers = [(b"x-step-uid", self.step_uid.encode())]
        if self.caller is not None and self.caller.identity.trajectory_uid is not None:
            headers.append((b"x-trajectory-uid", self.caller.identity.trajectory_uid.encode()))
        return headers

    def secrets(self, api_key: str | None) -> list[str]:
        """All keys of the call: presented ones, the engines' and the admin key."""
        engine_keys = self.attempts.secrets() if self.attempts is not None else ()
        known = {*presented_keys(self.headers), *engine_keys, *self.body_secrets, api_key or ""}
        return [key for key in known if len(key) >= MIN_SECRET_CHARS]

    def own_keys(self, api_key: str | None) -> tuple[str, ...]:
        """The service's own keys that the agent did not present; no answer may contain them."""
        engine_keys = self.attempts.secrets() if self.attempts is not None else ()
        return usable_secrets({*engine_keys, api_key or ""}.difference(presented_keys(self.headers)))

    def engine_call(self, dialect: ServedDialect) -> EngineCall:
        """The engine's request."""
        assert self.caller is not None and self.translation is not None
        identity = self.caller.identity
        # Engines may use it for affinity; it reveals nothing about the agent.
        passed_on = {"X-Trajectory-Uid": identity.trajectory_uid} if identity.trajectory_uid else {}
        passed_on |= {name: self.headers[name] for name in _API_HEADERS if name in self.headers}
        return EngineCall(
            ENGINE_DIALECTS[dialect.wire.engine_dialect],
            self.translation.engine_request,
            self.caller.model,
            self.caller.foreign_key,
            passed_on,
            native=self.request if dialect.translates else None,
            native_dialect=dialect.name,
        )


class Recorder:
    """Records the calls of one dialect in the journal and the counters."""

    def __init__(self, deps: GatewayDeps, dialect: ServedDialect) -> None:
        self._deps = deps
        self._dialect = dialect

    async def settle(
        self, call: Exchange, answer: EngineAnswer | None, failure: StudioError | None = None
    ) -> EngineAnswer:
        """Make a call durable; returns the answer.

        Args:
            answer: the engine's; partial if ``failure`` says that it broke off.

        Raises:
            StudioError: ``failure``, once it is recorded. JournalError: nothing could be stored and ``capture`` is
                strict.
        """
        deps = self._deps
        record = self._record(call, answer, failure, deps.policy.finish(_sampled_by(answer)))
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

    def abandon(self, call: Exchange, answer: EngineAnswer | None) -> None:
        """Record what is known of a call that the stopping server does not wait for."""
        call.client_disconnected = True
        failure = EngineError("the gateway stopped before the engine answered")
        self._deps.journal.append(self._record(call, answer, failure, self._deps.policy.finish(_sampled_by(answer))))
        self._count(call, answer, failure, dropped=False)

    def guard(self, call: Exchange) -> StreamGuard | None:
        """The filter for a stream's chunks; None if there is no key to remove."""
        keys = call.own_keys(self._deps.settings.api_key)
        return StreamGuard(keys) if keys else None

    def guarded(self, call: Exchange, answer: EngineAnswer) -> EngineAnswer:
        """The answer without the service's own keys; if one was removed, also without tokens, which spell it."""
        clean = without_own_keys(answer.raw, call.own_keys(self._deps.settings.api_key))
        if clean is not None:
            answer.raw, answer.body = clean
            answer.dropped = [*answer.dropped, TOKENS_REMOVED]
            answer.facts = {name: value for name, value in answer.facts.items() if name != "prompt_ids"}
        return answer

    def scrubbed(self, call: Exchange, body: bytes) -> bytes:
        """An error body for the agent, with all keys removed."""
        for secret in call.secrets(self._deps.settings.api_key):
            body = scrub_bytes(body, secret)
        return body

    def _record(
        self, call: Exchange, answer: EngineAnswer | None, failure: StudioError | None, version_end: int | None
    ) -> bytes:
        assert call.caller is not None and call.attempts is not None and call.translation is not None
        engine = call.attempts.engine
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
            engine=engine.name,
            engine_kind=engine.kind,
            model=answer.model if answer is not None else call.caller.model,
            policy_version=call.policy_version,
            policy_version_end=version_end,
            stream=call.stream,
            stream_mode=call.stream_mode,
            client_headers=harmless_headers(call.raw_headers),
            request=call.raw,
            parsed_request=call.request,
            engine_added=answer.added if answer is not None else (),
            dropped_fields=list(dict.fromkeys(dropped)),
            response=answer.raw if answer is not None else None,
            http_status=_status_of(answer, failure),
            error=_error_of(answer, failure),
            aborted=call.client_disconnected,
            retry_count=_retry_count(call.headers),
            tokenizer_hash=answer.tokenizer_hash if answer is not None else None,
            engine_dialect=native or self._dialect.wire.engine_dialect,
            engine_facts={**(answer.facts if answer is not None else {}), **call.attempts.facts()},
            response_id=call.translation.response_id if native is None else None,
            input_items=call.input_items,
            connection=call.connection,
            secrets=call.secrets(self._deps.settings.api_key),
        )

    def _scrub_text(self, call: Exchange, text: str) -> str:
        """Engines may repeat keys in error messages."""
        for secret in call.secrets(self._deps.settings.api_key):
            text = text.replace(secret, SCRUBBED.decode())
        return text

    def _count(
        self, call: Exchange, answer: EngineAnswer | None, failure: StudioError | None, *, dropped: bool
    ) -> None:
        assert call.caller is not None and call.engine is not None
        identity = call.caller.identity
        at = self._deps.clock()
        error = _error_of(answer, failure)
        n_prompt_tokens = _usage(answer, "prompt_tokens", "input_tokens")
        n_response_tokens = _usage(answer, "completion_tokens", "output_tokens")
        if call.caller.binding is not None and call.caller.binding.limits.max_tokens is not None:
            n_tokens = (n_prompt_tokens or 0) + (n_response_tokens or 0)
            self._deps.ledger.spend(call.caller.binding.key_sha256, n_tokens)
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
                n_prompt_tokens=n_prompt_tokens,
                n_response_tokens=n_response_tokens,
                error=self._scrub_text(call, error["message"]) if error is not None else None,
                aborted=call.client_disconnected,
            ),
            dropped=dropped,
        )


def _sampled_by(answer: EngineAnswer | None) -> int | None:
    """The newest weights that sampled the answer, if its engine says so, as the local engine does."""
    body = answer.body if answer is not None else None
    version = body.get("policy_version_end") if isinstance(body, dict) else None
    return version if isinstance(version, int) and not isinstance(version, bool) else None


def _status_of(answer: EngineAnswer | None, failure: StudioError | None) -> int | None:
    if failure is not None:
        return failure.http_status
    return answer.status if answer is not None else None


def _error_of(answer: EngineAnswer | None, failure: StudioError | None) -> dict[str, Any] | None:
    """``{type, message}`` of the failure, or None."""
    if failure is not None:
        return {"type": failure.type, "message": failure.message}
    if answer is None or answer.status == 200:
        return None
    error_field = answer.body.get("error")
    message = error_field.get("message") if isinstance(error_field, dict) else answer.body.get("message")
    return {"type": EngineError.type, "message": str(message or f"the engine answered {answer.status}")}


def _usage(answer: EngineAnswer | None, *names: str) -> int | None:
    """A token count, under the first of these names that the engine uses."""
    usage = answer.body.get("usage") if answer is not None else None
    counts = (usage.get(name) for name in names) if isinstance(usage, dict) else ()
    return next((count for count in counts if isinstance(count, int)), None)


def _retry_count(headers: Mapping[str, str]) -> int:
    count = headers.get("x-stainless-retry-count", "")
    return int(count) if count.isdecimal() and len(count) < 6 else 0
