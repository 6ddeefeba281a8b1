"""Engines with an OpenAI-compatible API, called directly so that raw bodies, token ids and log-probs are kept.

Whether an engine knows ``return_token_ids`` is tried out: after a refusal (400, 422) the request is sent again with
fewer extra fields, and what worked is remembered per dialect and model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import orjson

from core.dialects.chat import with_both_reasonings
from core.dialects.messages_request import CONTINUE, PREFILL
from core.errors import EngineError, EngineTimeout
from core.gateway.engines.answer import EngineAnswer, EngineCall, EngineStream
from core.gateway.engines.base import Engine, EngineUnreachable, basic
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
from core.gateway.engines.choices import MAX_CHOICES, n_choices, separate_calls
from core.gateway.engines.flavours import CLAW_STUDIO, by_refusal, prompt_text
from core.gateway.engines.probe import PROBE_TIMEOUT_S, Probe
from core.gateway.engines.refusals import REFUSALS, is_about_the_request, is_too_long
from core.gateway.engines.response_bodies import error_message, maybe_json, parse_body
from core.gateway.engines.starter import EngineStarter
from core.gateway.engines.stream_trials import StreamTrials
from core.gateway.engines.streams import HttpStream, StreamDeadline
from core.gateway.served_dialects import add_fields, answer_fields_of, check_answer
from core.gateway.transport.connection import ConnectError, Disconnected, HttpError
from core.gateway.transport.connection_pool import ConnectionPool, Timeouts
from core.gateway.transport.http1 import HttpAnswer

_GENERATION = ("stream", "stream_options")


class DirectEngine(Engine):
    """An OpenAI-compatible engine at a base URL. Made by ``EngineSet.add``."""

    kind = "openai"

    def __init__(
        self,
        name: str,
        base_url: str | None,
        *,
        models: Sequence[str],
        api_key: str | None,
        ready: Callable[[], str | None] | None,
        streaming: str,
        timeouts: Timeouts,
        concurrency: int | None,
        pool: ConnectionPool,
        clock: Callable[[], float],
        login: str | None = None,
    ) -> None:
        super().__init__(name, models, api_key, timeouts, clock, concurrency, login)
        self._base_url = base_url.rstrip("/") if base_url else None
        self._starter = EngineStarter(name, ready, self._started, self._not_started) if ready is not None else None
        self._pool = pool
        self._clock = clock
        self._probe = Probe(name, pool, clock)
        self._fallback = CapabilityFallback(self.findings, clock)
        self._streams = StreamPolicy(streaming)
        self._trials = StreamTrials(name, timeouts, clock)
        self._one_at_a_time: set[str] = set()

    @property
    def address(self) -> str | None:
        """Base URL; None before a started engine has reported it."""
        return self._base_url

    async def ask(self, call: EngineCall) -> EngineAnswer:
        """The whole answer, with ids and log-probs as far as the engine returns them."""
        answer = await self._in_time(call, stream=False)
        assert isinstance(answer, EngineAnswer)
        return answer

    async def ask_stream(self, call: EngineCall) -> EngineStream | EngineAnswer:
        """A stream if ``streaming`` allows it for this kind of call, else the whole answer."""
        return await self._in_time(call, stream=True)

    async def check(self) -> bool | None:
        """``GET /health`` beside ``/v1``, or the model list if there is no such path."""
        if self._base_url is None:
            return None
        client = await self._pool.client()
        for address in (f"{self._base_url.removesuffix('/v1')}/health", f"{self._base_url}/models"):
            try:
                async with (
                    asyncio.timeout(PROBE_TIMEOUT_S),
                    await client.request("GET", address, headers=self._authorization(None)) as answer,
                ):
                    if answer.status not in (404, 405):
                        # A response that requires a key shows that the engine is alive.
                        return answer.status < 500
            except (HttpError, ValueError, TimeoutError):
                return False
        return True

    def streaming(self) -> dict[str, str]:
        """Mode, and how each kind of call is streamed now."""
        modes = self._streams.status(self._probe.flavour, self._probe.version)
        if self._streams.mode == AUTO:
            for kind in KINDS:
                why_not = self._trials.why_not(kind)
                if why_not is not None and modes[kind] != RELAY:
                    modes[kind] = f"{WHOLE}: {why_not}" if why_not else RELAY
        return modes

    async def _in_time(self, call: EngineCall, *, stream: bool) -> EngineStream | EngineAnswer:
        deadline = asyncio.get_running_loop().time() + self.timeouts.total
        try:
            async with asyncio.timeout_at(deadline):
                answer = await self._with_choices(call, deadline if stream else None)
        except TimeoutError as error:
            raise self.failed(
                EngineTimeout(
                    f"engine {self.name!r} gave no answer within {self.timeouts.total:g} s",
                    hint="CLAW_STUDIO_ENGINE_TIMEOUT_S sets the limit",
                )
            ) from error
        except EngineError as error:
            self.failed(error)
            raise
        if isinstance(answer, EngineAnswer):
            self.succeeded()
        return answer

    async def list_models(self) -> list[dict[str, Any]]:
        """The engine's own list, fetched now."""
        if self._starter is not None and self._base_url is None:
            # Listing models does not start an engine.
            raise EngineError(f"engine {self.name!r} is not started")
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            return await self._probe.fetch_models(self._base_url, self._authorization(None))

    async def count_tokens(self, prompt: Mapping[str, Any], model: str | None, foreign_key: str | None) -> int | None:
        """By ``POST /tokenize`` beside ``/v1``, or by the flavour's own path."""
        if self._base_url is None:
            # Counting tokens does not start an engine.
            return None
        await self._probe_once(foreign_key)
        path, name = self._probe.flavour.count
        messages = with_both_reasonings(prompt.get("messages"))
        body = {"model": self._model_for(model), "add_generation_prompt": True, **prompt, "messages": messages}
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                status, raw = await self._pool.request_aside(
                    "POST", f"{self._base_url.removesuffix('/v1')}{path}", self._authorization(foreign_key), body
                )
            counted = orjson.loads(raw) if status == 200 else None
        except (HttpError, TimeoutError, ValueError):
            return None
        count = counted.get(name) if isinstance(counted, dict) else None
        return count if isinstance(count, int) else None

    async def pass_on(
        self, path: str, body: Mapping[str, Any], model: str | None, foreign_key: str | None
    ) -> tuple[int, str, bytes]:
        """``POST`` to the engine, with the engine's name of the model."""
        if self._starter is not None:
            await self._starter.wait()
        await self._probe_once(foreign_key)
        known = {**body, "model": self._model_for(model)} if "model" in body else body
        async with await self._send(path, known, foreign_key, {}) as answer:
            try:
                async with asyncio.timeout(self.timeouts.total):
                    return answer.status, answer.content_type, await answer.read()
            except (HttpError, TimeoutError) as error:
                raise EngineError(f"engine {self.name!r} broke off: {error}") from error

    async def may_serve(self, model: str) -> bool:
        """Whether the engine lists the model; a ``*`` engine without a list may serve any."""
        if any(glob != "*" and fnmatchcase(model, glob) for glob in self.models):
            return True
        if "*" not in self.models:
            return False
        if self._starter is None:
            await self._probe_once(None)
        return self._probe.cards is None or any(entry.get("id") == model for entry in self._probe.cards)

    async def _with_choices(self, call: EngineCall, deadline: float | None) -> EngineStream | EngineAnswer:
        """All requested choices, also from an engine that returns one per call."""
        n, dialect = n_choices(call.body), call.dialect.name
        if n > 1 and dialect in self._one_at_a_time:
            return await separate_calls(call, n, self._ask_whole, None)
        answer = await self._complete(call, deadline)
        if n == 1 or isinstance(answer, EngineStream) or answer.status not in {200, *REFUSALS}:
            return answer
        if answer.status == 200 and len(answer.body["choices"]) >= n:
            return answer
        combined = await separate_calls(call, n, self._ask_whole, answer if answer.status == 200 else None)
        if combined.status != 200 and n <= MAX_CHOICES:
            # One choice fails as well: the original refusal describes the request best.
            return answer
        self._one_at_a_time.add(dialect)
        return combined if n <= MAX_CHOICES or answer.status == 200 else answer

    async def _ask_whole(self, call: EngineCall) -> EngineAnswer:
        answer = await self._complete(call, None)
        assert isinstance(answer, EngineAnswer)
        return answer

    async def _complete(self, call: EngineCall, deadline: float | None) -> EngineStream | EngineAnswer:
        """One call. ``deadline`` (loop time) is set if the agent wants a stream."""
        if self._starter is not None:
            await self._starter.wait()
        await self._probe_once(call.foreign_key)
        model = self._model_for(call.model)
        body = {key: value for key, value in call.body.items() if key not in _GENERATION}
        body["model"] = model
        if "messages" in body:
            body["messages"] = with_both_reasonings(body["messages"])
        left_out: list[str] = []
        if call.native_dialect == "messages" and CONTINUE.items() <= body.items() and not self._probe.flavour.continues:
            body = {name: value for name, value in body.items() if name not in CONTINUE}
            left_out.append(PREFILL)
        # Messages requires max_tokens; it is dropped when it exceeds the model's context.
        required_limit = call.native_dialect == "messages" and "max_tokens" in body
        if not (required_limit and self._probe.never_fits(body["max_tokens"], model)):
            answer = await self._ask(call, model, body, deadline, dropped=left_out)
            if not (required_limit and isinstance(answer, EngineAnswer) and is_too_long(answer.status, answer.body)):
                return answer
        del body["max_tokens"]
        return await self._ask(call, model, body, deadline, dropped=[*left_out, "max_tokens"])

    async def _ask(
        self,
        call: EngineCall,
        model: str,
        body: Mapping[str, Any],
        deadline: float | None,
        *,
        dropped: Sequence[str] = (),
    ) -> EngineStream | EngineAnswer:
        """Request all extra fields that the engine is known to accept, and fewer after a refusal."""
        flavour, dialect, path = self._probe.flavour, call.dialect.name, f"/v1/{call.dialect.path}"
        echo = body.get("echo") is True
        asks = asks_of_call(flavour.asks(dialect), echo=echo and flavour is not CLAW_STUDIO)
        kind = stream_kind(dialect, body)
        own = self._streams.relays(flavour, self._probe.version, kind)
        # Streams of engines without ids, as tested by stream_trials.
        text = not own and self._streams.mode == AUTO and self._trials.relays(model, kind)
        stream = deadline is not None and (own or (text and n_choices(call.body) == 1))
        options = {"stream": True, "stream_options": _with_usage(call.body)} if stream else {}
        # A stream may accept fewer extra fields, so streams are remembered separately.
        where = f"{dialect} stream" if stream and own else f"{dialect} echo" if echo else dialect
        for level in range(min(self._fallback.level(where, model), len(asks) - 1), len(asks)):
            request, added = add_fields(body, asks[level])
            response = await self._send(path, {**request, **options}, call.foreign_key, call.headers)
            if stream and response.status == 200 and response.content_type == "text/event-stream":
                assert deadline is not None
                finish = partial(self._finish, call, model, where, kind, asks, level, added, dropped, text)
                stream_deadline = StreamDeadline(self.name, deadline, self.timeouts)
                return HttpStream(response, name=self.name, added=added, stream_deadline=stream_deadline, finish=finish)
            status, raw, retry_after = await self._read(response)
            if status in REFUSALS and added and not is_about_the_request(status, raw, added):
                self._probe.see_refusal(by_refusal(maybe_json(raw)), self.findings)
                if stream and self._streams.mode == AUTO:
                    # The engine may refuse the stream together with the extra fields; those are needed for exact
                    # tokens.
                    return await self._ask(call, model, body, None, dropped=dropped)
                # The extra fields may be the reason. The last try has none, so its refusal describes the agent's own
                # fault.
                continue
            if status != 200:
                return self._refused(status, raw, model, added, retry_after)
            answer, raw = parse_body(raw, prompt_ids="prompt_token_ids" not in answer_fields_of(added))
            answered = await self._answered(call, model, where, asks, level, added, check_answer(answer))
            answered.raw, answered.dropped = raw, dropped
            if deadline is not None and not own and self._streams.mode == AUTO:
                send = partial(self._send_trial, call, asks[level])
                self._trials.start_trial(model, kind, answered.body, send)
            return answered
        raise AssertionError("the last ask adds nothing")

    async def _answered(
        self,
        call: EngineCall,
        model: str,
        where: str,
        asks: Sequence[Mapping[str, Any]],
        level: int,
        added: Sequence[str],
        body: dict[str, Any],
    ) -> EngineAnswer:
        echoed = call.body.get("echo") is True
        self._fallback.remember(where, call.dialect.name, model, asks, level, added, body, echoed)
        facts = await self._facts(call, body)
        return EngineAnswer(200, b"", body, model, added, tokenizer_hash=self._probe.tokenizer_hash(model), facts=facts)

    async def _finish(
        self,
        call: EngineCall,
        model: str,
        where: str,
        kind: str,
        asks: Sequence[Mapping[str, Any]],
        level: int,
        added: Sequence[str],
        dropped: Sequence[str],
        text: bool,
        body: dict[str, Any] | None,
        failure: str | None,
    ) -> EngineAnswer | None:
        """Called at the end of a stream: count it, and check its token counts."""
        if failure is not None:
            self.failed(EngineError(failure))
            if body is None:
                return None
            return EngineAnswer(200, orjson.dumps(body), body, model, added, dropped, facts=self._probe.facts())
        assert body is not None
        answer = await self._answered(call, model, where, asks, level, added, body)
        answer.raw, answer.dropped = orjson.dumps(body), dropped
        self.succeeded()
        if text:
            self._trials.check_stream(model, kind, body)
        elif (
            self._streams.mode == AUTO
            and call.body.get("echo") is not True
            and (lost := lost_tokens(body, call.dialect.name))
        ):
            # No ids were requested from a stream that echoes.
            self._streams.use_whole(kind, lost)
        return answer

    async def _facts(self, call: EngineCall, answer: Mapping[str, Any]) -> dict[str, Any]:
        """Facts about the engine, and the prompt's ids where it returns its rendered prompt."""
        facts = self._probe.facts()
        if (text := prompt_text(answer)) is not None:
            ids = await self._probe.tokenize(str(self._base_url), self._authorization(call.foreign_key), text)
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
                f"engine {self.name!r} answered with status {status}: {error_message(body, raw)}",
                upstream_status=status,
            )
        return EngineAnswer(status, raw, body, model, added, (), retry_after)

    async def _send(
        self, path: str, body: Mapping[str, Any], foreign_key: str | None, passed_on: Mapping[str, str]
    ) -> HttpAnswer:
        """Send a request; the body is not read yet. Paths outside ``/v1`` are beside it."""
        data = orjson.dumps(body)
        headers = {"Content-Type": "application/json", **passed_on, **self._authorization(foreign_key)}
        client = await self._pool.client()
        for attempt in (1, 2):
            try:
                return await client.request(
                    "POST",
                    self._at(path),
                    headers=headers,
                    body=data,
                    connect_timeout_s=self.timeouts.connect,
                )
            except ConnectError as error:
                if self._starter is None or attempt == 2:
                    raise EngineUnreachable(
                        f"engine {self.name!r} at {self._base_url} can't be reached: {error}",
                        hint="start the engine or correct its base URL",
                    ) from error
                # A supervised engine that is gone is started again.
                self._starter.forget()
                await self._starter.wait()
            except Disconnected as error:
                # The engine may have closed an idle connection just now, so one retry is made.
                if attempt == 2:
                    gone = EngineUnreachable(f"engine {self.name!r} closed the connection without an answer")
                    # The request itself may crash the engine, so it is not sent to it again.
                    gone.again = False
                    raise gone from error
            except HttpError as error:
                raise EngineError(f"engine {self.name!r} broke off: {error}") from error
        raise AssertionError("unreachable")

    async def _send_trial(self, call: EngineCall, ask: Mapping[str, Any], question: Mapping[str, Any]) -> HttpAnswer:
        """A request of the gateway's own, with the same extra fields as the call."""
        request, _ = add_fields(question, ask)
        return await self._send(f"/v1/{call.dialect.path}", request, call.foreign_key, {})

    def _at(self, path: str) -> str:
        base = str(self._base_url)
        return base + path[3:] if path.startswith("/v1/") else base.removesuffix("/v1") + path

    async def _read(self, response: HttpAnswer) -> tuple[int, bytes, str | None]:
        """Status, body and ``Retry-After``."""
        async with response:
            try:
                return response.status, await response.read(), response.headers.get("retry-after")
            except HttpError as error:
                raise EngineError(f"engine {self.name!r} broke off: {error}") from error

    def _authorization(self, foreign_key: str | None) -> dict[str, str]:
        if self.login:
            return {"Authorization": f"Basic {basic(self.login)}"}
        key = self.api_key or foreign_key
        return {"Authorization": f"Bearer {key}"} if key else {}

    def _model_for(self, requested: str | None) -> str:
        """The model name to send: an engine with one model is always called with that name."""
        served = [str(entry["id"]) for entry in self._probe.cards or () if "id" in entry]
        if len(served) == 1 or (requested is None and served):
            return served[0]
        if requested is not None:
            return requested
        plain = self.plain_models()
        return plain[0] if plain else "default"

    async def _probe_once(self, foreign_key: str | None) -> None:
        """Probe the engine once."""
        await self._probe.run(self._base_url, self._authorization(foreign_key), self.findings)

    def _started(self, base_url: str | None) -> None:
        if base_url:
            self._base_url = base_url.rstrip("/")
        # Findings about an earlier process may not hold for this one.
        self._probe.forget()
        self._streams.forget()
        self._trials.forget()
        self._one_at_a_time.clear()
        if self._base_url is None:
            raise EngineError(f"engine {self.name!r} started without a base URL")

    def _not_started(self, reason: str) -> None:
        self.ok, self.error = False, reason


def _with_usage(body: Mapping[str, Any]) -> dict[str, Any]:
    options = body.get("stream_options")
    return {**(options if isinstance(options, dict) else {}), "include_usage": True}
