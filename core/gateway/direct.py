"""Engines that speak the OpenAI API, called directly: whole answers, raw bodies kept, ids asked for.

Whether an engine knows ``return_token_ids`` is found out by asking: a refusal (400, 422) is tried again with
less, and what went through is remembered per dialect and model.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from fnmatch import fnmatchcase
from typing import Any

import aiohttp
import orjson

from core.dialects.chat import with_both_reasonings
from core.dialects.errors import engine_refusal, prompt_too_long
from core.errors import EngineError, EngineTimeout
from core.gateway.dialects import Dialect, add_asked, check_answer
from core.gateway.engines import CONNECT_TIMEOUT_S, Connections, Engine, EngineAnswer, EngineCall
from core.gateway.flavours import by_refusal, prompt_text
from core.gateway.probe import PROBE_TIMEOUT_S, Probe
from core.records import extract_tokens

ASK_AGAIN_S = 300.0
REFUSALS = frozenset({400, 422})
_MAX_REMEMBERED = 1024
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
        timeout_s: float,
        connections: Connections,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(name, models, api_key, timeout_s)
        self._base_url = base_url.rstrip("/") if base_url else None
        self._ready = ready
        self._starting: Future[None] | None = None
        self._start_lock = threading.Lock()
        self._connections = connections
        self._clock = clock
        self._probe = Probe(name, connections, clock)
        self._levels: dict[tuple[str, str], tuple[int, float]] = {}

    @property
    def address(self) -> str | None:
        """Base URL; None before a starting engine has told it."""
        return self._base_url

    async def complete(self, call: EngineCall) -> EngineAnswer:
        """Ask for the whole answer, with ids and log-probs as far as the engine lets itself be asked."""
        try:
            async with asyncio.timeout(self.timeout_s):
                answer = await self._complete(call)
        except TimeoutError as error:
            raise self.failed(
                EngineTimeout(
                    f"engine {self.name!r} gave no answer within {self.timeout_s:g} s",
                    hint="CLAW_STUDIO_ENGINE_TIMEOUT_S sets the limit",
                )
            ) from error
        except EngineError as error:
            self.failed(error)
            raise
        self.succeeded()
        return answer

    async def list_models(self) -> list[dict[str, Any]]:
        """The engine's own list, asked for anew."""
        if self._ready is not None and self._base_url is None:
            # Listing names is no reason to start an engine.
            raise EngineError(f"engine {self.name!r} is not started")
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            return await self._probe.fetch_models(self._base_url, self._authorization(None))

    async def count_tokens(self, prompt: Mapping[str, Any], model: str | None, foreign_key: str | None) -> int | None:
        """Where its kind tells it: by ``POST /tokenize`` beside ``/v1``, or at an address of its own."""
        if self._base_url is None:
            # Counting is no reason to start an engine.
            return None
        await self._look(foreign_key)
        path, name = self._probe.flavour.count
        session = await self._connections.session()
        messages = with_both_reasonings(prompt.get("messages"))
        body = {"model": self._model_for(model), **prompt, "messages": messages, "add_generation_prompt": True}
        try:
            async with (
                asyncio.timeout(PROBE_TIMEOUT_S),
                session.post(
                    f"{self._base_url.removesuffix('/v1')}{path}",
                    json=body,
                    headers=self._authorization(foreign_key),
                    allow_redirects=False,
                ) as response,
            ):
                counted = orjson.loads(await response.read()) if response.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, orjson.JSONDecodeError):
            return None
        count = counted.get(name) if isinstance(counted, dict) else None
        return count if isinstance(count, int) else None

    async def may_serve(self, model: str) -> bool:
        """Whether the engine lists the model; a ``*`` engine that lists nothing may serve anything."""
        if any(glob != "*" and fnmatchcase(model, glob) for glob in self.models):
            return True
        if "*" not in self.models:
            return False
        if self._ready is None:
            await self._look(None)
        return self._probe.cards is None or any(entry.get("id") == model for entry in self._probe.cards)

    async def _complete(self, call: EngineCall) -> EngineAnswer:
        await self._wait_ready()
        await self._look(call.foreign_key)
        model = self._model_for(call.model)
        asks = self._probe.flavour.asks(call.dialect.name)
        body = {key: value for key, value in call.body.items() if key not in _GENERATION}
        body["model"] = model
        if "messages" in body:
            body["messages"] = with_both_reasonings(body["messages"])
        # Messages has to name a limit, so agents name their usual model's: for who holds less it says nothing.
        formality = call.native_dialect == "messages" and "max_tokens" in body
        if not (formality and self._never_fits(body["max_tokens"], model)):
            answer = await self._ask(call, model, body, asks)
            too_long = answer.status in REFUSALS and prompt_too_long(engine_refusal(answer.status, answer.body))
            if not (formality and too_long):
                return answer
        del body["max_tokens"]
        answer = await self._ask(call, model, body, asks)
        answer.dropped = [*answer.dropped, "max_tokens"]
        return answer

    async def _ask(
        self, call: EngineCall, model: str, body: Mapping[str, Any], asks: Sequence[Mapping[str, Any]]
    ) -> EngineAnswer:
        """Ask for everything that the engine is known to tell, and for less where it refuses."""
        for level in range(min(self._level(call.dialect, model), len(asks) - 1), len(asks)):
            asked, added = add_asked(body, asks[level])
            status, raw, retry_after = await self._post(call, asked)
            if status in REFUSALS and added:
                self._probe.see_refusal(by_refusal(_json(raw)), self.findings)
                # Our additions may be the reason. The bare request, tried last, names its own fault best.
                continue
            if status != 200:
                return self._refused(status, raw, model, added, retry_after)
            answer, raw = _parse(raw)
            self._remember(call.dialect, model, asks, level, added, answer)
            checked = check_answer(answer)
            facts = await self._facts(call, checked)
            hashed = self._tokenizer_hash(model)
            return EngineAnswer(status, raw, checked, model, added, tokenizer_hash=hashed, facts=facts)
        raise AssertionError("the last ask adds nothing")

    async def _facts(self, call: EngineCall, answer: Mapping[str, Any]) -> dict[str, Any]:
        """What the engine is, and the prompt's ids where it tells the text that it made them from."""
        facts = self._probe.facts()
        if (text := prompt_text(answer)) is not None:
            ids = await self._probe.tokenize(str(self._base_url), self._authorization(call.foreign_key), text)
            if ids is not None:
                facts["prompt_ids"] = ids
        return facts

    def _never_fits(self, max_tokens: Any, model: str) -> bool:
        """Whether an answer may not be that long even after no prompt at all, by the model's card."""
        known = (card.get("max_model_len") for card in self._probe.cards or () if card.get("id") == model)
        return any(isinstance(n, int) and isinstance(max_tokens, int) and max_tokens >= n for n in known)

    def _tokenizer_hash(self, model: str) -> str | None:
        """What the model's card says of its tokenizer; engines that ship here do, others may not."""
        cards = (card for card in self._probe.cards or () if card.get("id") == model)
        told = next((card.get("tokenizer_hash") for card in cards), None)
        return told if isinstance(told, str) else None

    def _refused(
        self, status: int, raw: bytes, model: str, added: Sequence[str], retry_after: str | None
    ) -> EngineAnswer:
        """An answer that is an error. 5xx and what is not JSON is the engine's fault and raised as such."""
        body = _json(raw)
        if not isinstance(body, dict) or (status >= 500 and status != 503) or status < 400:
            raise EngineError(
                f"engine {self.name!r} answered with status {status}: {_said(body, raw)}",
                upstream_status=status,
            )
        return EngineAnswer(status, raw, body, model, added, (), retry_after)

    async def _post(self, call: EngineCall, body: Mapping[str, Any]) -> tuple[int, bytes, str | None]:
        data = orjson.dumps(body)
        headers = {"Content-Type": "application/json", **call.headers, **self._authorization(call.foreign_key)}
        for attempt in (1, 2):
            session = await self._connections.session()
            try:
                async with session.post(
                    f"{self._base_url}/{call.dialect.path}",
                    data=data,
                    headers=headers,
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
                    allow_redirects=False,
                ) as response:
                    return response.status, await response.read(), response.headers.get("Retry-After")
            except aiohttp.ClientConnectorError as error:
                if self._ready is None or attempt == 2:
                    raise EngineError(
                        f"engine {self.name!r} at {self._base_url} can't be reached: {error.strerror or error}",
                        hint="start the engine or correct its base URL",
                    ) from error
                # A supervised engine that is gone gets started again.
                self._starting = None
                await self._wait_ready()
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                # An idle connection may be closed by the engine just when it is used: one new try tells.
                if attempt == 2:
                    raise EngineError(f"engine {self.name!r} closed the connection without an answer") from error
            except aiohttp.ClientError as error:
                raise EngineError(f"engine {self.name!r} broke off: {error}") from error
        raise AssertionError("unreachable")

    def _authorization(self, foreign_key: str | None) -> dict[str, str]:
        key = self.api_key or foreign_key
        return {"Authorization": f"Bearer {key}"} if key else {}

    def _model_for(self, asked: str | None) -> str:
        """The name to send: a one-model engine is asked for that model whatever the agent calls it."""
        served = [str(entry["id"]) for entry in self._probe.cards or () if "id" in entry]
        if len(served) == 1 or (asked is None and served):
            return served[0]
        if asked is not None:
            return asked
        plain = self.plain_models()
        return plain[0] if plain else "default"

    def _level(self, dialect: Dialect, model: str) -> int:
        """How much to ask for: what went through before, or everything."""
        level, until = self._levels.get((dialect.name, model), (0, math.inf))
        return level if self._clock() < until else 0

    def _remember(
        self,
        dialect: Dialect,
        model: str,
        asks: Sequence[Mapping[str, Any]],
        level: int,
        added: Sequence[str],
        answer: Any,
    ) -> None:
        key = (dialect.name, model)
        known = self._levels.get(key)
        if known is not None and known[0] <= level:
            return
        if len(self._levels) >= _MAX_REMEMBERED:
            self._levels.clear()
        # A refusal may have been about that one request, so only success is remembered for good.
        self._levels[key] = (level, math.inf if level == 0 else self._clock() + ASK_AGAIN_S)
        found = extract_tokens(answer, 0, dialect.name) if isinstance(answer, dict) else None
        self.findings[f"{dialect.name}:{model}" if len(self._levels) > 1 else dialect.name] = {
            "asked": list(added),
            "refused": sorted(set(asks[0]) - set(asks[level])),
            "token_ids": found is not None and found.response_ids is not None,
            "prompt_token_ids": found is not None and (found.prompt_ids is not None or prompt_text(answer) is not None),
            "logprobs": found is not None and found.response_logprobs is not None,
        }

    async def _look(self, foreign_key: str | None) -> None:
        """Find out once what the engine is."""
        await self._probe.run(self._base_url, self._authorization(foreign_key), self.findings)

    async def _wait_ready(self) -> None:
        if self._ready is None:
            return
        with self._start_lock:
            if self._starting is None or (self._starting.done() and self._starting.exception() is not None):
                self._starting = Future()
                threading.Thread(
                    target=self._start, args=(self._starting,), name=f"engine-{self.name}", daemon=True
                ).start()
            starting = self._starting
        if starting.done():
            starting.result()
        else:
            # Shielded: one call that gives up must not end the start that others wait for.
            await asyncio.shield(asyncio.wrap_future(starting))

    def _start(self, started: Future[None]) -> None:
        assert self._ready is not None
        try:
            base_url = self._ready()
        except Exception as error:
            self.ok, self.error = False, str(error)
            started.set_exception(EngineError(f"engine {self.name!r} did not start: {error}"))
            return
        if base_url:
            self._base_url = base_url.rstrip("/")
        self._probe.forget()
        if self._base_url is None:
            started.set_exception(EngineError(f"engine {self.name!r} started without a base URL"))
        else:
            started.set_result(None)


def _parse(raw: bytes) -> tuple[Any, bytes]:
    """The parsed body, and the body as strict JSON."""
    try:
        return orjson.loads(raw), raw
    except orjson.JSONDecodeError:
        pass
    try:
        # Some engines write NaN or Infinity for a log-prob. They become null: marked, not guessed.
        strict = orjson.dumps(json.loads(raw))
    except (ValueError, RecursionError, TypeError) as error:
        raise EngineError(f"the engine's answer is not JSON: {error}") from error
    return orjson.loads(strict), strict


def _json(raw: bytes) -> Any:
    """The parsed body; None where it is no JSON."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None


def _said(body: Any, raw: bytes) -> str:
    if isinstance(body, dict):
        inner = body.get("error")
        message = inner.get("message") if isinstance(inner, dict) else body.get("message") or inner
        if message:
            return str(message)[:500]
    return raw[:200].decode("utf-8", "replace") or "nothing"
