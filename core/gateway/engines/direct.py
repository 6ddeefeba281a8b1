"""Engines with an OpenAI-compatible API, called directly so that raw bodies, token ids and log-probs are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import orjson

from core.dialects.chat import with_both_reasonings
from core.dialects.messages_request import CONTINUE, PREFILL
from core.errors import EngineError, EngineTimeout
from core.gateway.engines.answer import EngineAnswer, EngineCall, EngineStream
from core.gateway.engines.base import Engine, EngineOptions, EngineUnreachable
from core.gateway.engines.choices import MAX_CHOICES, n_choices, separate_calls
from core.gateway.engines.endpoint import EngineEndpoint
from core.gateway.engines.exact_calls import ExactCalls
from core.gateway.engines.probe import PROBE_TIMEOUT_S, Probe
from core.gateway.engines.refusals import REFUSALS, is_too_long
from core.gateway.engines.weights import WEIGHTS_APIS, Weights, WeightsApi, hook_api, load_and_check
from core.gateway.transport.connection import ConnectError, HttpError

_GENERATION = ("stream", "stream_options")


class DirectEngine(Engine):
    """An OpenAI-compatible engine at a base URL. Made by ``EngineSet.add``."""

    kind = "openai"

    def __init__(
        self,
        options: EngineOptions,
        base_url: str | None,
        *,
        ready: Callable[[], str | None] | None,
        login: str | None = None,
    ) -> None:
        super().__init__(options, login)
        self.endpoint = EngineEndpoint(
            options, base_url, login=login, ready=ready, started=self._started, not_started=self._not_started
        )
        self._pool = options.pool
        self._probe = Probe(options.name, options.pool, options.clock)
        self._calls = ExactCalls(self, options, self.endpoint, self._probe)
        self._one_at_a_time: set[str] = set()

    @property
    def address(self) -> str | None:
        """Base URL; None before a started engine has reported it."""
        return self.endpoint.base_url

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
        if self.endpoint.base_url is None:
            return None
        for path in ("/health", "/v1/models"):
            try:
                async with asyncio.timeout(PROBE_TIMEOUT_S), await self.endpoint.get(path) as answer:
                    if answer.status not in (404, 405):
                        # A response that requires a key shows that the engine is alive.
                        return answer.status < 500
            except (HttpError, ValueError, TimeoutError):
                return False
        return True

    def streaming(self) -> dict[str, str]:
        """Mode, and how each kind of call is streamed now."""
        return self._calls.streaming()

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
        if self.endpoint.starter is not None and self.endpoint.base_url is None:
            # Listing models does not start an engine.
            raise EngineError(f"engine {self.name!r} is not started")
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            return await self._probe.fetch_models(self.endpoint.base_url, self.endpoint.authorization(None))

    async def count_tokens(self, prompt: Mapping[str, Any], model: str | None, foreign_key: str | None) -> int | None:
        """By ``POST /tokenize`` beside ``/v1``, or by the flavour's own path."""
        if self.endpoint.base_url is None:
            # Counting tokens does not start an engine.
            return None
        await self._probe_once(foreign_key)
        path, name = self._probe.flavour.count
        messages = with_both_reasonings(prompt.get("messages"))
        body = {"model": self._model_for(model), "add_generation_prompt": True, **prompt, "messages": messages}
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                status, raw = await self._pool.request_aside(
                    "POST", self.endpoint.url(path), self.endpoint.authorization(foreign_key), body
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
        await self.endpoint.wait_started()
        await self._probe_once(foreign_key)
        known = {**body, "model": self._model_for(model)} if "model" in body else body
        async with await self.endpoint.send(path, known, foreign_key, {}) as answer:
            try:
                async with asyncio.timeout(self.timeouts.total):
                    return answer.status, answer.content_type, await answer.read()
            except (HttpError, TimeoutError) as error:
                raise EngineError(f"engine {self.name!r} broke off: {error}") from error

    async def load_weights(self, weights: Weights) -> bool:
        """By the weights hook, if there is one, else in the way of the engine's flavour."""
        with self._named(f"did not load version {weights.version}"):
            return await load_and_check(self.name, await self._weights_api(), self._manage, weights)

    async def weights(self) -> Weights | None:
        """The weights that the engine reports now."""
        with self._named("did not report its weights"):
            return await (await self._weights_api()).now(self._manage)

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """Errors name the engine."""
        try:
            yield
        except EngineError as error:
            if repr(self.name) in error.message:
                raise
            message = f"engine {self.name!r} {what}: {error.message}"
            raise EngineError(message, field=error.field or "engines", hint=error.hint) from error

    async def _weights_api(self) -> WeightsApi:
        if self.weights_hook is not None:
            return hook_api(self.name, self.weights_hook, self._post_hook)
        await self.endpoint.wait_started()
        await self._probe_once(None)
        api = WEIGHTS_APIS.get(self._probe.flavour.name)
        if api is None:
            raise EngineError(
                f"how engine {self.name!r} ({self._probe.flavour.title}) loads weights is unknown",
                field="engines",
                hint="set weights_hook of the engine to a URL that loads them",
            )
        return api

    async def _manage(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, Any]:
        for attempt in (1, 2):
            try:
                return await self._aside(method, self.endpoint.url(path), self.endpoint.authorization(None), body)
            except EngineUnreachable:
                if self.endpoint.starter is None or attempt == 2:
                    raise
                # A supervised engine that is gone is started again.
                self.endpoint.starter.forget()
                await self.endpoint.wait_started()
        raise AssertionError("unreachable")

    async def _post_hook(self, url: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        return await self._aside("POST", url, {}, body)

    async def _aside(
        self, method: str, url: str, headers: Mapping[str, str], body: Mapping[str, Any] | None
    ) -> tuple[int, Any]:
        """Status and parsed JSON. Raises EngineUnreachable, or EngineError if there is no response."""
        try:
            status, raw = await self._pool.request_aside(method, url, headers, body)
        except ConnectError as error:
            raise EngineUnreachable(f"engine {self.name!r}: {url} can't be reached: {error}") from error
        except (HttpError, ValueError) as error:
            raise EngineError(f"engine {self.name!r}: {method} {url} had no response: {error}") from error
        try:
            return status, orjson.loads(raw)
        except ValueError:
            return status, None

    async def may_serve(self, model: str) -> bool:
        """Whether the engine lists the model; a ``*`` engine without a list may serve any."""
        if any(glob != "*" and fnmatchcase(model, glob) for glob in self.models):
            return True
        if "*" not in self.models:
            return False
        if self.endpoint.starter is None:
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
        await self.endpoint.wait_started()
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
            answer = await self._calls.ask(call, model, body, deadline, dropped=left_out)
            if not (required_limit and isinstance(answer, EngineAnswer) and is_too_long(answer.status, answer.body)):
                return answer
        del body["max_tokens"]
        return await self._calls.ask(call, model, body, deadline, dropped=[*left_out, "max_tokens"])

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
        await self._probe.run(self.endpoint.base_url, self.endpoint.authorization(foreign_key), self.findings)

    def _started(self) -> None:
        # Findings about an earlier process may not hold for this one.
        self._probe.forget()
        self._calls.forget()
        self._one_at_a_time.clear()

    def _not_started(self, reason: str) -> None:
        self.ok, self.error = False, reason
