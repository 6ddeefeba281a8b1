"""Calls with the extra fields that make an engine return token ids and log-probs.

Whether an engine knows ``return_token_ids`` is tried out: after a refusal (400, 422) the request is sent again with
fewer extra fields, and what worked is remembered per dialect and model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from core.errors import EngineError
from core.gateway.engines.answer import EngineAnswer, EngineCall, EngineStream
from core.gateway.engines.base import Engine, EngineOptions
from core.gateway.engines.capabilities import (
    AUTO,
    KINDS,
    RELAY,
    WHOLE,
    CapabilityFallback,
    StreamPolicy,
    asks_of_call,
    lost_tokens,
    stream_kind,
)
from core.gateway.engines.choices import n_choices
from core.gateway.engines.endpoint import EngineEndpoint
from core.gateway.engines.flavours import CLAW_STUDIO, by_refusal, prompt_text
from core.gateway.engines.probe import Probe
from core.gateway.engines.refusals import REFUSALS, is_about_the_request
from core.gateway.engines.response_bodies import error_message, maybe_json, parse_body
from core.gateway.engines.stream_trials import StreamTrials
from core.gateway.engines.streams import HttpStream, StreamDeadline
from core.gateway.served_dialects import add_fields, answer_fields_of, check_answer
from core.gateway.transport.http1 import HttpAnswer


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One request of a call, for what happens after its answer.

    Attributes:
        model: the engine's name of the model.
        where: key under which accepted extra fields are remembered: the dialect, and its kind of request.
        kind: kind of stream, see ``capabilities.KINDS``.
        asks: sets of extra fields, the fullest first.
        level: which of them was sent.
        added: names of the extra fields that the call itself did not have.
        dropped: fields of the call that were not sent.
        is_trial: whether the stream is relayed because its trial lost nothing.
    """

    call: EngineCall
    model: str
    where: str
    kind: str
    asks: Sequence[Mapping[str, Any]]
    level: int
    added: Sequence[str]
    dropped: Sequence[str]
    is_trial: bool


class ExactCalls:
    """Asks one engine for answers with token ids and log-probs, as far as it returns them.

    Args:
        engine: counts successes and failures of streams; its ``findings`` are updated.
        endpoint: requests are sent with it.
        probe: what is known of the engine.
    """

    def __init__(self, engine: Engine, options: EngineOptions, endpoint: EngineEndpoint, probe: Probe) -> None:
        self._engine = engine
        self._name = options.name
        self._timeouts = options.timeouts
        self._endpoint = endpoint
        self._probe = probe
        self._fallback = CapabilityFallback(engine.findings, options.clock)
        self._streams = StreamPolicy(options.streaming)
        self._trials = StreamTrials(options.name, options.timeouts, options.clock)

    def forget(self) -> None:
        """Forget how streams behaved; the engine was restarted."""
        self._streams.forget()
        self._trials.forget()

    def streaming(self) -> dict[str, str]:
        """Mode, and how each kind of call is streamed now."""
        modes = self._streams.status(self._probe.flavour, self._probe.version)
        if self._streams.mode == AUTO:
            for kind in KINDS:
                why_not = self._trials.why_not(kind)
                if why_not is not None and modes[kind] != RELAY:
                    modes[kind] = f"{WHOLE}: {why_not}" if why_not else RELAY
        return modes

    async def ask(
        self,
        call: EngineCall,
        model: str,
        body: Mapping[str, Any],
        deadline: float | None,
        *,
        dropped: Sequence[str] = (),
    ) -> EngineStream | EngineAnswer:
        """Request all extra fields that the engine is known to accept, and fewer after a refusal.

        Args:
            model: the engine's name of the model.
            body: the request without extra fields.
            deadline: end of the call, loop time, if the agent wants a stream; None: the whole answer.
            dropped: fields of the call that ``body`` does not have.

        Raises:
            EngineError: no answer, or one that is not JSON. EngineUnreachable: no byte of an answer.
        """
        flavour, dialect, path = self._probe.flavour, call.dialect.name, f"/v1/{call.dialect.path}"
        echo = body.get("echo") is True
        asks = asks_of_call(flavour.field_sets(dialect), echo=echo and flavour is not CLAW_STUDIO)
        kind = stream_kind(dialect, body)
        native_stream = self._streams.relays(flavour, self._probe.version, kind)
        # Streams of engines without ids, as tested by stream_trials.
        is_trial = not native_stream and self._streams.mode == AUTO and self._trials.relays(model, kind)
        stream = deadline is not None and (native_stream or (is_trial and n_choices(call.body) == 1))
        options = {"stream": True, "stream_options": _with_usage(call.body)} if stream else {}
        # A stream may accept fewer extra fields, so streams are remembered separately.
        where = f"{dialect} stream" if stream and native_stream else f"{dialect} echo" if echo else dialect
        for level in range(min(self._fallback.level(where, model), len(asks) - 1), len(asks)):
            request, added = add_fields(body, asks[level])
            attempt = _Attempt(call, model, where, kind, asks, level, added, dropped, is_trial)
            response = await self._endpoint.send(path, {**request, **options}, call.foreign_key, call.headers)
            if stream and response.status == 200 and response.content_type == "text/event-stream":
                assert deadline is not None
                stream_deadline = StreamDeadline(self._name, deadline, self._timeouts)
                finish = partial(self._finish_stream, attempt)
                return HttpStream(
                    response, name=self._name, added=added, stream_deadline=stream_deadline, finish=finish
                )
            status, raw, retry_after = await self._endpoint.read(response)
            if status in REFUSALS and added and not is_about_the_request(status, raw, added):
                self._probe.see_refusal(by_refusal(maybe_json(raw)), self._engine.findings)
                if stream and self._streams.mode == AUTO:
                    # The engine may refuse the stream together with the extra fields; those are needed for exact
                    # tokens.
                    return await self.ask(call, model, body, None, dropped=dropped)
                # The extra fields may be the reason. The last try has none, so its refusal describes the agent's own
                # fault.
                continue
            if status != 200:
                return self._refused(status, raw, model, added, retry_after)
            answer, raw = parse_body(raw, prompt_ids="prompt_token_ids" not in answer_fields_of(added))
            answered = await self._answer(attempt, check_answer(answer), raw)
            if deadline is not None and not native_stream and self._streams.mode == AUTO:
                self._trials.start_trial(model, kind, answered.body, partial(self._send_trial, call, asks[level]))
            return answered
        raise AssertionError("the last ask adds nothing")

    async def _answer(self, attempt: _Attempt, body: dict[str, Any], raw: bytes) -> EngineAnswer:
        """Remember which extra fields worked; the answer with facts about the engine."""
        call, model = attempt.call, attempt.model
        echoed = call.body.get("echo") is True
        self._fallback.remember(
            attempt.where, call.dialect.name, model, attempt.asks, attempt.level, attempt.added, body, echoed
        )
        facts = await self._facts(call, body)
        tokenizer_hash = self._probe.tokenizer_hash(model)
        return EngineAnswer(
            200, raw, body, model, attempt.added, attempt.dropped, tokenizer_hash=tokenizer_hash, facts=facts
        )

    async def _finish_stream(
        self, attempt: _Attempt, body: dict[str, Any] | None, failure: str | None
    ) -> EngineAnswer | None:
        """Called at the end of a stream: count it, and check its token counts."""
        if failure is not None:
            self._engine.failed(EngineError(failure))
            if body is None:
                return None
            raw, facts = orjson.dumps(body), self._probe.facts()
            return EngineAnswer(200, raw, body, attempt.model, attempt.added, attempt.dropped, facts=facts)
        assert body is not None
        answer = await self._answer(attempt, body, orjson.dumps(body))
        self._engine.succeeded()
        call = attempt.call
        if attempt.is_trial:
            self._trials.check_stream(attempt.model, attempt.kind, body)
        elif (
            self._streams.mode == AUTO
            and call.body.get("echo") is not True
            and (lost := lost_tokens(body, call.dialect.name))
        ):
            # No ids were requested from a stream that echoes.
            self._streams.use_whole(attempt.kind, lost)
        return answer

    async def _facts(self, call: EngineCall, answer: Mapping[str, Any]) -> dict[str, Any]:
        """Facts about the engine, and the prompt's ids where it returns its rendered prompt."""
        facts = self._probe.facts()
        if (text := prompt_text(answer)) is not None:
            headers = self._endpoint.authorization(call.foreign_key)
            ids = await self._probe.tokenize(str(self._endpoint.base_url), headers, text)
            if ids is not None:
                facts["prompt_ids"] = ids
        return facts

    def _refused(
        self, status: int, raw: bytes, model: str, added: Sequence[str], retry_after: str | None
    ) -> EngineAnswer:
        """An error answer. Status 5xx and bodies that are not JSON are the engine's fault and raise EngineError."""
        body = maybe_json(raw)
        if not isinstance(body, dict) or (status >= 500 and status != 503) or status < 400:
            raise EngineError(
                f"engine {self._name!r} answered with status {status}: {error_message(body, raw)}",
                upstream_status=status,
            )
        return EngineAnswer(status, raw, body, model, added, (), retry_after)

    async def _send_trial(self, call: EngineCall, ask: Mapping[str, Any], question: Mapping[str, Any]) -> HttpAnswer:
        """A request of the gateway's own, with the same extra fields as the call."""
        request, _ = add_fields(question, ask)
        return await self._endpoint.send(f"/v1/{call.dialect.path}", request, call.foreign_key, {})


def _with_usage(body: Mapping[str, Any]) -> dict[str, Any]:
    options = body.get("stream_options")
    return {**(options if isinstance(options, dict) else {}), "include_usage": True}
