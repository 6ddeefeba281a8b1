"""Probes an engine once: its models, flavour, version and kind of log-probs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from core.errors import EngineError
from core.gateway.engines.flavours import (
    OLLAMA,
    OPENAI,
    TEMPERATURES,
    Flavour,
    by_owner,
    logprobs_mode,
    logprobs_question,
)
from core.gateway.transport.connection import HttpError
from core.gateway.transport.connection_pool import ConnectionPool

PROBE_TIMEOUT_S = 5.0
PROBE_AGAIN_S = 30.0
PROBE_AFTER_TIMEOUT_S = 900.0
TOKENIZE_TIMEOUT_S = 10.0
MEASURE_TIMEOUT_S = 60.0
"""An engine may compile before its first answer; calls wait at most ``PROBE_TIMEOUT_S`` for the measurement."""

Headers = Mapping[str, str]


class Probe:
    """What is known of one engine.

    Attributes:
        cards: its model list; None while unknown.
        flavour: its kind.
        version: as it reports it.
        logprobs: ``raw``, ``processed`` or None, see ``core.gateway.engines.flavours``.
        measured: whether ``logprobs`` was measured; otherwise it is the flavour's default.
    """

    def __init__(self, name: str, pool: ConnectionPool, clock: Callable[[], float]) -> None:
        self.cards: list[dict[str, Any]] | None = None
        self.flavour: Flavour = OPENAI
        self.version: str | None = None
        self.logprobs: str | None = None
        self.measured = False
        self._name = name
        self._pool = pool
        self._clock = clock
        self._again_at = 0.0
        self._running: asyncio.Lock | None = None
        self._measuring: asyncio.Task[None] | None = None

    def forget(self) -> None:
        """Probe again; the engine was restarted."""
        self.cards, self._again_at = None, 0.0

    def facts(self) -> dict[str, Any]:
        """The facts for a call's record."""
        known = {"flavour": self.flavour.name, "version": self.version, "logprobs": self.logprobs}
        return {name: value for name, value in known.items() if value is not None}

    def never_fits(self, max_tokens: Any, model: str) -> bool:
        """Whether ``max_tokens`` reaches the context length on the model's card."""
        known = (card.get("max_model_len") for card in self.cards or () if card.get("id") == model)
        return any(isinstance(n, int) and isinstance(max_tokens, int) and max_tokens >= n for n in known)

    def tokenizer_hash(self, model: str) -> str | None:
        """The tokenizer's hash on the model's card; shipped engines report it."""
        cards = (card for card in self.cards or () if card.get("id") == model)
        digest = next((card.get("tokenizer_hash") for card in cards), None)
        return digest if isinstance(digest, str) else None

    def see_refusal(self, flavour: Flavour | None, findings: dict[str, Any]) -> None:
        """Note the flavour that a refusal reveals, unless the engine reported one itself."""
        if flavour is not None and self.flavour is OPENAI:
            self.flavour = flavour
            findings["flavour"] = flavour.name

    async def run(self, base_url: str | None, headers: Headers, findings: dict[str, Any]) -> None:
        """Probe the engine once; a failed probe is repeated later."""
        if self._known():
            return
        if self._running is None:
            self._running = asyncio.Lock()
        async with self._running:
            if self._known():
                return
            try:
                async with asyncio.timeout(PROBE_TIMEOUT_S):
                    cards = await self.fetch_models(base_url, headers)
            except TimeoutError:
                # Calls wait for the probe, so one that timed out is not repeated soon.
                self._again_at = self._clock() + PROBE_AFTER_TIMEOUT_S
                findings["models"] = "unknown: no answer"
                return
            except EngineError as error:
                self._again_at = self._clock() + PROBE_AGAIN_S
                findings["models"] = f"unknown: {error}"
                return
            findings["models"] = [entry.get("id") for entry in cards]
            await self._look_closer(str(base_url), headers, cards)
            # Set last, so that no call sees a partial result.
            self.cards = cards
            owner = next((str(entry.get("owned_by")) for entry in cards), None)
            findings["flavour"] = owner if self.flavour is OPENAI else self.flavour.name
            for name, value in (("version", self.version), ("logprobs", self.logprobs)):
                if value:
                    findings[name] = value
            if self.flavour.measurable and self.version is not None and cards:
                work = self._measure(str(base_url), headers, str(cards[0].get("id")), findings)
                self._measuring = asyncio.create_task(work)
                await asyncio.wait({self._measuring}, timeout=PROBE_TIMEOUT_S)

    def _known(self) -> bool:
        return self.cards is not None or self._clock() < self._again_at

    async def fetch_models(self, base_url: str | None, headers: Headers) -> list[dict[str, Any]]:
        """``GET /v1/models``. Raises EngineError."""
        try:
            status, raw = await self._pool.request_aside("GET", f"{base_url}/models", headers)
        except (HttpError, ValueError) as error:
            raise EngineError(f"engine {self._name!r} does not list its models: {error}") from error
        try:
            data = orjson.loads(raw)["data"] if status == 200 else None
        except (orjson.JSONDecodeError, KeyError, TypeError):
            data = None
        if not isinstance(data, list) or not all(isinstance(entry, dict) for entry in data):
            raise EngineError(f"engine {self._name!r} does not list its models (status {status})")
        return data

    async def _look_closer(self, base_url: str, headers: Headers, cards: list[dict[str, Any]]) -> None:
        """Probe flavour and version; what is not answered in time stays unknown."""
        flavour = by_owner(cards)
        # Ollama lists the owners of its models, so owned_by is arbitrary; its own path identifies it.
        guess = OLLAMA if flavour is None else flavour
        self.version, self.measured = None, False
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                self.version = await self._version(base_url.removesuffix("/v1"), headers, guess)
        except TimeoutError:
            pass
        if guess is OLLAMA:
            flavour = OLLAMA if self.version is not None else None
        self.flavour = flavour or OPENAI
        self.logprobs = self.flavour.logprobs

    async def _version(self, root: str, headers: Headers, flavour: Flavour) -> str | None:
        for path, name in flavour.version:
            answer = await self._ask("GET", root + path, headers)
            if isinstance(answer, dict) and isinstance(answer.get(name), str):
                return str(answer[name])
        return None

    async def _measure(self, base_url: str, headers: Headers, model: str, findings: dict[str, Any]) -> None:
        """Measure the kind of log-probs, which a start option of the engine decides."""
        questions = (logprobs_question(model, temperature) for temperature in TEMPERATURES)
        try:
            async with asyncio.timeout(MEASURE_TIMEOUT_S):
                answers = [await self._ask("POST", f"{base_url}/completions", headers, body) for body in questions]
        except TimeoutError:
            return
        mode = logprobs_mode(answers)
        if mode is not None:
            self.logprobs, self.measured = mode, True
            findings.update(logprobs=mode, measured=True)

    async def tokenize(self, base_url: str, headers: Headers, text: str) -> list[int] | None:
        """Ids of a rendered prompt, encoded as the engine encodes it; None if it can't."""
        if not self.flavour.tokenize:
            return None
        body = {"content": text, **self.flavour.tokenize}
        try:
            async with asyncio.timeout(TOKENIZE_TIMEOUT_S):
                answer = await self._ask("POST", f"{base_url.removesuffix('/v1')}/tokenize", headers, body)
        except TimeoutError:
            return None
        ids = answer.get("tokens") if isinstance(answer, dict) else None
        return ids if isinstance(ids, list) and all(type(token) is int for token in ids) else None

    async def _ask(self, method: str, url: str, headers: Headers, body: Mapping[str, Any] | None = None) -> Any:
        """The parsed response; None for any failure."""
        try:
            status, raw = await self._pool.request_aside(method, url, headers, body)
            return orjson.loads(raw) if status == 200 else None
        except (HttpError, ValueError):
            return None
