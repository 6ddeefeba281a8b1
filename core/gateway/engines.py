"""The engines that answer: which there are, which one a model name means, what was found out about each."""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from core.errors import EngineError, EngineTimeout, InvalidInput
from core.gateway.asked import AUTO, RELAY, STREAMING, WHOLE
from core.gateway.connections import Connections, Timeouts
from core.gateway.dialects import Dialect
from core.gateway.gate import Gate
from core.gateway.health import CHECK_EVERY_S, Health, watch
from core.gateway.together import together

if TYPE_CHECKING:
    from core.gateway.streams import EngineStream

IMPLICIT_PROVIDER = "litellm"


class EngineUnreached(EngineError):
    """No byte of an answer came: asking again can't give two answers to one call.

    Attributes:
        again: whether the same engine is worth another try.
    """

    again = True


@dataclass(slots=True)
class EngineAnswer:
    """What an engine said.

    Attributes:
        status: HTTP status.
        raw: the body as it came, valid JSON.
        body: the same, parsed.
        model: the model name that the engine was asked for.
        added: names of request fields that the gateway added.
        dropped: names of request fields that the engine was not given.
        retry_after: the engine's ``Retry-After``, where it sent one.
        tokenizer_hash: SHA-256 (hex) of the tokenizer that made the ids, where the engine tells it.
        engine_dialect: the agent's own dialect, where the engine was asked and answered in it; None where ``body``
            is in the dialect that the call asked in.
        facts: what is known of the engine: ``flavour``, ``version``, ``logprobs`` (``raw`` or ``processed``), and
            ``prompt_ids`` where it encoded the prompt again that it says it read.
    """

    status: int
    raw: bytes
    body: Any
    model: str
    added: Sequence[str] = ()
    dropped: Sequence[str] = ()
    retry_after: str | None = None
    tokenizer_hash: str | None = None
    engine_dialect: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class EngineCall:
    """One request on its way to an engine.

    Attributes:
        body: the agent's request, parsed; not to be changed.
        model: the model that the agent named; None when it named none.
        foreign_key: the agent's own provider key.
        headers: harmless headers to pass on.
        native: the agent's own body where ``body`` is a translation of it, for engines that speak its dialect.
        native_dialect: the dialect that the agent speaks.
    """

    dialect: Dialect
    body: Mapping[str, Any]
    model: str | None
    foreign_key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    native: Mapping[str, Any] | None = None
    native_dialect: str | None = None


class Engine(ABC):
    """One source of answers. Subclasses: ``core.gateway.direct`` and ``core.gateway.providers``."""

    kind = ""

    def __init__(
        self,
        name: str,
        models: Sequence[str],
        api_key: str | None,
        timeouts: Timeouts,
        clock: Callable[[], float],
        concurrency: int | None = None,
    ) -> None:
        self.name = name
        self.models = tuple(models)
        self.api_key = api_key
        self.timeouts = timeouts
        self.ok: bool | None = None
        self.error: str | None = None
        self.n_calls = 0
        self.n_errors = 0
        self.findings: dict[str, Any] = {}
        self.gate = Gate(name, concurrency)
        self.health = Health(clock)
        self.replica_of: str | None = None

    async def complete(self, call: EngineCall) -> EngineAnswer:
        """Get the whole answer.

        Raises:
            EngineError: refused, broken off, not JSON. EngineTimeout: no answer in time. EngineUnreached: nothing of
                an answer came. EngineBusy: too many calls are waiting for it.
        """
        await self.gate.enter()
        try:
            return await self.ask(call)
        finally:
            self.gate.leave()

    async def open_stream(self, call: EngineCall) -> EngineStream | EngineAnswer:
        """Get the answer as it comes where that loses nothing, the whole answer elsewhere. Raises as ``complete``."""
        await self.gate.enter()
        try:
            answer = await self.ask_stream(call)
        except BaseException:
            self.gate.leave()
            raise
        if isinstance(answer, EngineAnswer):
            self.gate.leave()
        else:
            answer.when_closed(self.gate.leave)
        return answer

    @abstractmethod
    async def ask(self, call: EngineCall) -> EngineAnswer:
        """``complete`` without waiting for a place."""

    async def ask_stream(self, call: EngineCall) -> EngineStream | EngineAnswer:
        """``open_stream`` without waiting for a place."""
        return await self.ask(call)

    async def check(self) -> bool | None:
        """Whether it is alive; None where that can't be asked."""
        return None

    @abstractmethod
    async def list_models(self) -> list[dict[str, Any]]:
        """The models it serves, as ``GET models`` lists them. Raises EngineError."""

    async def count_tokens(self, prompt: Mapping[str, Any], model: str | None, foreign_key: str | None) -> int | None:
        """How many tokens ``{messages, tools}`` are; None where the engine can't be asked."""
        return None

    async def may_serve(self, model: str) -> bool:
        """True unless it is known that the model is not served here."""
        return any(fnmatchcase(model, glob) for glob in self.models)

    def plain_models(self) -> list[str]:
        """The configured names that are no globs."""
        return [glob for glob in self.models if not any(sign in glob for sign in "*?[")]

    def secrets(self) -> Sequence[str]:
        """Keys that it may send, and that must not be stored should an answer repeat them."""
        return (self.api_key,) if self.api_key else ()

    def streaming(self) -> dict[str, str]:
        """How streams are made: ``{"mode": ...}`` and, where it depends on it, each kind of call."""
        return {"mode": WHOLE}

    def status(self) -> dict[str, Any]:
        """What the pages show. ``ok`` is None until the first call."""
        return {
            "name": self.name,
            "kind": self.kind,
            "base_url": self.address,
            "models": list(self.models),
            "ok": self.ok,
            "error": self.error,
            "n_calls": self.n_calls,
            "n_errors": self.n_errors,
            "findings": dict(self.findings),
            "streaming": self.streaming(),
            "healthy": self.health.usable,
            "checked_at": self.health.checked_at,
            "in_flight": self.gate.n_inside,
            "waiting": self.gate.n_waiting,
            "concurrency": self.gate.limit,
            "replica_of": self.replica_of,
        }

    @property
    def address(self) -> str | None:
        """Where it is, for display."""
        return None

    def succeeded(self) -> None:
        """Note that it answered."""
        self.n_calls += 1
        self.ok, self.error = True, None
        self.health.succeeded()

    def failed(self, error: EngineError) -> EngineError:
        """Note a failure; hands the error back to be raised."""
        self.n_calls += 1
        self.n_errors += 1
        self.ok, self.error = False, error.message
        self.health.failed(gone=isinstance(error, EngineUnreached | EngineTimeout))
        return error


class EngineSet:
    """All engines by name. Thread-safe for adding and reading.

    Args:
        timeout_s: longest wait for one answer, start-up of the engine included, seconds.
        timeouts: that and the others; instead of ``timeout_s``.
        check_every_s: how often engines that share calls are asked after, seconds.

    Attributes:
        elsewhere: ``status`` of other processes that call the same engines; counted in where it is told.
    """

    def __init__(
        self,
        *,
        timeout_s: float = 900.0,
        timeouts: Timeouts | None = None,
        check_every_s: float = CHECK_EVERY_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.timeouts = timeouts or Timeouts(total=timeout_s)
        self.default: Engine | None = None
        self._check_every_s = check_every_s
        self._clock = clock
        self._engines: dict[str, Engine] = {}
        self._providers: Engine | None = None
        self._connections = Connections()
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
    ) -> Engine:
        """Make an engine known; one of the same name is replaced. The first one is the default.

        Args:
            base_url: ``http://host:port/v1`` of an OpenAI-compatible engine; for kind ``litellm`` the
                ``provider/model`` that stands behind every model name; None when ``ready`` tells it.
            kind: ``openai`` or ``litellm``.
            models: globs of the model names it serves.
            api_key: its key; never stored. Without one the agent's own key is passed on.
            ready: blocking; called in a thread before the first call, and again after the engine was found
                gone. Returns the base URL, or None to keep ``base_url``. Calls wait for it.
            default: answers the names that no glob matches.
            api_base: for kind ``litellm``: another address of the provider's API.
            streaming: ``auto``, ``whole`` or ``relay``, see ``core.gateway.asked.Streams``.
            concurrency: most calls at a time; more wait in line. None sets no limit.
            replica_of: name of the engine that it shares the calls of. Engines that name a model by the same glob
                share its calls as well.

        Raises:
            InvalidInput: an unknown kind or way to stream, or neither ``base_url`` nor ``ready``.
        """
        from core.gateway.direct import DirectEngine
        from core.gateway.providers import ProviderEngine

        if streaming not in STREAMING:
            raise InvalidInput(f"unknown streaming {streaming!r}", field="streaming", hint=", ".join(STREAMING))
        engine: Engine
        if kind == "openai":
            if base_url is None and ready is None:
                raise InvalidInput(f"engine {name!r} has no base URL", field="base_url")
            engine = DirectEngine(
                name,
                base_url,
                models=models,
                api_key=api_key,
                ready=ready,
                streaming=streaming,
                timeouts=self.timeouts,
                concurrency=concurrency,
                connections=self._connections,
                clock=self._clock,
            )
        elif kind == "litellm":
            if streaming == RELAY:
                raise InvalidInput(
                    "streams lose tokens on their way through LiteLLM", field="streaming", hint="auto or whole"
                )
            engine = ProviderEngine(
                name,
                base_url,
                models=models,
                api_key=api_key,
                api_base=api_base,
                timeouts=self.timeouts,
                concurrency=concurrency,
                connections=self._connections,
                clock=self._clock,
            )
        else:
            raise InvalidInput(f"unknown engine kind {kind!r}", field="kind", hint="openai, litellm")
        engine.replica_of = replica_of
        with self._lock:
            replaced = self._engines.get(name)
            self._engines[name] = engine
            if default or self.default is None or self.default is replaced:
                self.default = engine
        return engine

    def remove(self, name: str) -> None:
        """Forget an engine; calls on their way to it finish."""
        with self._lock:
            engine = self._engines.pop(name, None)
            if engine is not None and self.default is engine:
                self.default = next(iter(self._engines.values()), None)

    def resolve(self, model: str | None) -> Engine:
        """The engine that a model name means: first a glob that says more than ``*``, then the default.

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
        """Like ``resolve``, and ``provider/model`` names that the default does not serve mean LiteLLM."""
        from core.gateway.providers import ProviderEngine, names_provider

        if model is None or not names_provider(model):
            return self.resolve(model)
        engine = self.resolve(model) if self.default is not None else None
        if engine is not None and (engine.kind == ProviderEngine.kind or await engine.may_serve(model)):
            return engine
        with self._lock:
            if self._providers is None:
                self._providers = ProviderEngine(
                    IMPLICIT_PROVIDER,
                    None,
                    models=(),
                    api_key=None,
                    api_base=None,
                    timeouts=self.timeouts,
                    concurrency=None,
                    connections=self._connections,
                    clock=self._clock,
                )
            return self._providers

    async def candidates(self, model: str | None) -> list[Engine]:
        """Every engine that serves a model, at least one. Raises EngineError."""
        first = await self.pick(model)
        listed = list(self._engines.values())
        globs = [glob for glob in first.models if glob != "*" and model is not None and fnmatchcase(model, glob)]
        found = [
            engine
            for engine in listed
            if engine is not first and (engine.replica_of == first.name or any(glob in engine.models for glob in globs))
        ]
        if found:
            self._watch()
        return [first, *found]

    def _watch(self) -> None:
        """Ask after engines from now on; ends with the event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._watches:
            self._watches[loop] = loop.create_task(watch(self.engines, self._check_every_s))

    def engines(self) -> list[Engine]:
        """All of them, in order of their adding, the implicit LiteLLM one last if it was used."""
        with self._lock:
            return [*self._engines.values(), *([self._providers] if self._providers is not None else [])]

    def status(self) -> list[dict[str, Any]]:
        """``{name, kind, base_url, models, ok, error, n_calls, n_errors, findings, default}`` of each."""
        here = [{**engine.status(), "default": engine is self.default} for engine in self.engines()]
        return together([here, *self.elsewhere()]) if self.elsewhere is not None else here
