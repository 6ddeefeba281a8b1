"""The registry of engines: configured ones, the default, and the engines for a model name."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from core.errors import EngineError, InvalidInput
from core.gateway.engines.base import Engine, EngineOptions
from core.gateway.engines.capabilities import AUTO, STREAMING
from core.gateway.engines.direct import DirectEngine
from core.gateway.engines.health import CHECK_EVERY_S, check_periodically
from core.gateway.engines.merged_status import merge_statuses
from core.gateway.providers.engine import ProviderEngine, names_provider
from core.gateway.providers.litellm_import import LiteLLM
from core.gateway.transport.connection import Bounds
from core.gateway.transport.connection_pool import ConnectionPool, Timeouts
from core.scrub import split_login

IMPLICIT_PROVIDER = "litellm"
PAUSED_RETRY_S = 10.0
"""``Retry-After`` of a call to a paused engine, seconds. Clients of OpenAI and Anthropic wait up to 60 s for it."""
AddEngine = Callable[[str, str, list[str]], None]
"""Registers an engine with all gateways: its name, base URL and globs of model names."""


class EnginePaused(EngineError):
    """Every engine that serves the model is paused: the call was not begun and is not recorded."""

    type = "engine_paused"
    http_status = 503

    def __init__(self, name: str) -> None:
        super().__init__(
            f"engine {name!r} is paused by the studio's operator",
            field="engine",
            hint=f"try again in {PAUSED_RETRY_S:.0f} s; Settings › Policy engines resumes it",
        )
        self.retry_after_s = PAUSED_RETRY_S


class EngineSet:
    """All engines by name. Adding and reading are thread-safe.

    Args:
        timeout_s: longest wait for one answer including the engine's start, seconds.
        timeouts: all timeouts, in place of ``timeout_s``.
        bounds: size limits of engine answers.
        check_every_s: interval of health checks of engines that share calls, seconds.

    Attributes:
        elsewhere: returns the ``status`` of other processes that call the same engines.
    """

    def __init__(
        self,
        *,
        timeout_s: float = 900.0,
        timeouts: Timeouts | None = None,
        bounds: Bounds | None = None,
        check_every_s: float = CHECK_EVERY_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.timeouts = timeouts or Timeouts(total=timeout_s)
        self.default: Engine | None = None
        self._check_every_s = check_every_s
        self._clock = clock
        self._engines: dict[str, Engine] = {}
        self._paused: frozenset[str] = frozenset()
        self._providers: Engine | None = None
        self._pool = ConnectionPool(bounds)
        self._litellm = LiteLLM()
        self._lock = threading.Lock()
        self._watches: dict[asyncio.AbstractEventLoop, asyncio.Task[None]] = {}
        self.elsewhere: Callable[[], Sequence[Sequence[dict[str, Any]]]] | None = None

    def add(
        self,
        name: str,
        base_url: str | None,
        *,
        kind: str = "openai",
        models: Sequence[str] = ("*",),
        api_key: str | None = None,
        ready: Callable[[], str | None] | None = None,
        default: bool = False,
        api_base: str | None = None,
        streaming: str = AUTO,
        concurrency: int | None = None,
        replica_of: str | None = None,
        weights_hook: str | None = None,
    ) -> Engine:
        """Add an engine; it replaces one of the same name. The first one is the default.

        Args:
            base_url: ``http://host:port/v1`` of an OpenAI-compatible engine, with ``user:password@`` before the host if
                it needs a login; for kind ``litellm`` the ``provider/model`` for all model names; None if ``ready``
                returns it.
            kind: ``openai`` or ``litellm``.
            models: globs of the model names it serves.
            api_key: its key; never stored. Without one the agent's own key is passed on.
            ready: blocking; called in a thread before the first call, and again after the engine was unreachable.
                Returns the base URL, or None to keep ``base_url``. Calls wait for it.
            default: serves the names that no glob matches.
            api_base: for kind ``litellm``: another address of the provider's API.
            streaming: ``auto``, ``whole`` or ``relay``, see ``core.gateway.engines.capabilities.StreamPolicy``.
            concurrency: most calls at a time; more are queued. None means no limit.
            replica_of: name of the engine whose calls it shares. Engines with the same glob for a model share calls as
                well.
            weights_hook: URL that loads new weights into it, see ``core.gateway.engines.weights``.

        Raises:
            InvalidInput: an unknown kind or streaming mode, a base URL with a query, two logins, or neither
                ``base_url`` nor ``ready``.
        """
        if streaming not in STREAMING:
            raise InvalidInput(f"unknown streaming {streaming!r}", field="streaming", hint=", ".join(STREAMING))
        options = self._options(name, models, api_key=api_key, streaming=streaming, concurrency=concurrency)
        engine: Engine
        if kind == "openai":
            if base_url is None and ready is None:
                raise InvalidInput(f"engine {name!r} has no base URL", field="base_url")
            base_url, login = split_login(base_url) if base_url is not None else (None, None)
            if base_url is not None and ("?" in base_url or "#" in base_url):
                raise InvalidInput(
                    f"the base URL of engine {name!r} has a query",
                    field="base_url",
                    hint="leave out what follows ? or #: paths are added to it; a key has its own setting",
                )
            if login is not None and api_key:
                raise InvalidInput(
                    f"engine {name!r} has a login in its base URL and a key as well",
                    field="base_url",
                    hint="one of both: an engine is asked with one Authorization header",
                )
            engine = DirectEngine(options, base_url, ready=ready, login=login)
        elif kind == "litellm":
            engine = ProviderEngine(options, base_url, api_base=api_base, litellm=self._litellm)
        else:
            raise InvalidInput(f"unknown engine kind {kind!r}", field="kind", hint="openai, litellm")
        engine.replica_of = replica_of
        engine.weights_hook = weights_hook
        with self._lock:
            replaced = self._engines.get(name)
            self._engines[name] = engine
            if default or self.default is None or self.default is replaced:
                self.default = engine
        return engine

    def _options(
        self,
        name: str,
        models: Sequence[str],
        *,
        api_key: str | None = None,
        streaming: str = AUTO,
        concurrency: int | None = None,
    ) -> EngineOptions:
        return EngineOptions(
            name, models, api_key, streaming, concurrency, timeouts=self.timeouts, pool=self._pool, clock=self._clock
        )

    def prepare(self) -> None:
        """Import LiteLLM in the background if an engine needs it, so that its first call does not wait.

        For processes that serve for long. LiteLLM takes 150 MB of memory, so it is not imported where only a model name
        could request it.
        """
        if any(engine.kind == "litellm" for engine in self.engines()):
            self._litellm.begin()

    def remove(self, name: str) -> None:
        """Remove an engine; its calls in flight finish."""
        with self._lock:
            engine = self._engines.pop(name, None)
            if engine is not None and self.default is engine:
                self.default = next(iter(self._engines.values()), None)

    def pause(self, names: Iterable[str]) -> None:
        """Set which engines take no new calls, by name; calls in flight finish. Others with the same models go on."""
        self._paused = frozenset(names)

    @property
    def paused(self) -> frozenset[str]:
        """Names of the engines that take no new calls."""
        return self._paused

    def resolve(self, model: str | None) -> Engine:
        """The engine for a model name: the first with a matching glob other than ``*``, else the default.

        Raises:
            EngineError: there is no engine.
        """
        if model is not None:
            for engine in list(self._engines.values()):
                if any(glob != "*" and fnmatchcase(model, glob) for glob in engine.models):
                    return engine
        if self.default is None:
            raise EngineError("no engine is configured", field="engine", hint="set CLAW_STUDIO_ENGINE")
        return self.default

    async def pick(self, model: str | None) -> Engine:
        """The first of ``candidates``. Raises as it does."""
        return (await self.candidates(model))[0]

    async def _first(self, model: str | None) -> Engine:
        """Like ``resolve``; ``provider/model`` names that the default does not serve go to LiteLLM."""
        if model is None or not names_provider(model):
            return self.resolve(model)
        engine = self.resolve(model) if self.default is not None else None
        if engine is not None and (engine.kind == ProviderEngine.kind or await engine.may_serve(model)):
            return engine
        with self._lock:
            if self._providers is None:
                options = self._options(IMPLICIT_PROVIDER, ())
                self._providers = ProviderEngine(options, None, api_base=None, litellm=self._litellm)
            return self._providers

    async def candidates(self, model: str | None) -> list[Engine]:
        """All engines that serve a model and are not paused, at least one.

        Raises:
            EngineError: there is no engine. EnginePaused: all of them are paused.
        """
        first = await self._first(model)
        listed = list(self._engines.values())
        globs = [glob for glob in first.models if glob != "*" and model is not None and fnmatchcase(model, glob)]
        others = [
            engine
            for engine in listed
            if engine is not first and (engine.replica_of == first.name or any(glob in engine.models for glob in globs))
        ]
        if others:
            self._watch()
        serving = [engine for engine in (first, *others) if engine.name not in self._paused]
        if not serving:
            raise EnginePaused(first.name)
        return serving

    def _watch(self) -> None:
        """Start periodic health checks; they end with the event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._watches:
            self._watches[loop] = loop.create_task(check_periodically(self.engines, self._check_every_s))

    def of_policy(self) -> list[Engine]:
        """The engines that serve the policy: the default engine, its replicas, and engines with a weights hook."""
        default = self.default
        return [
            engine
            for engine in self.engines()
            if engine is default
            or engine.weights_hook is not None
            or (default is not None and engine.replica_of == default.name)
        ]

    def engines(self) -> list[Engine]:
        """All engines in order of addition, the implicit LiteLLM one last if it was used."""
        with self._lock:
            return [*self._engines.values(), *([self._providers] if self._providers is not None else [])]

    def status(self) -> list[dict[str, Any]]:
        """``{name, kind, base_url, models, ok, error, n_calls, n_errors, findings, default, paused}`` of each."""
        statuses = [
            {**engine.status(), "default": engine is self.default, "paused": engine.name in self._paused}
            for engine in self.engines()
        ]
        return merge_statuses([statuses, *self.elsewhere()]) if self.elsewhere is not None else statuses
