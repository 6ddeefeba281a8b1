"""Base class of all engines: concurrency limit, health, counters and status."""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final
from urllib.parse import unquote

from core.errors import EngineError, EngineTimeout, NotFound
from core.gateway.engines.answer import EngineAnswer, EngineCall, EngineStream
from core.gateway.engines.capabilities import WHOLE
from core.gateway.engines.concurrency import ConcurrencyLimit
from core.gateway.engines.health import EngineHealth
from core.gateway.engines.weights import Weights
from core.gateway.transport.connection_pool import ConnectionPool, Timeouts
from core.scrub import scrubbed

BUSY: Final = frozenset({429, 503})
"""Statuses of an engine without capacity; the call may be repeated."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What an engine of any kind is made with.

    Attributes:
        name: the engine's name.
        models: globs of the model names it serves.
        api_key: its key; None: the agent's own key is passed on.
        streaming: ``auto``, ``whole`` or ``relay``, see ``core.gateway.engines.capabilities.StreamPolicy``.
        concurrency: most calls at a time; more are queued. None means no limit.
        timeouts: of its calls.
        pool: connections to engines.
        clock: unix seconds.
    """

    name: str
    models: Sequence[str]
    api_key: str | None
    streaming: str
    concurrency: int | None
    timeouts: Timeouts
    pool: ConnectionPool
    clock: Callable[[], float]


class EngineUnreachable(EngineError):
    """No byte of an answer arrived, so repeating the call can't give two answers.

    Attributes:
        again: whether the same engine may be tried again.
    """

    again = True


def basic(login: str) -> str:
    """``user:password``, percent-encoded as in a URL, as the value of a Basic authorization header."""
    return base64.b64encode(unquote(login).encode()).decode()


class Engine(ABC):
    """One engine. Subclasses: ``core.gateway.engines.direct`` and ``core.gateway.providers.engine``."""

    kind = ""

    def __init__(self, options: EngineOptions, login: str | None = None) -> None:
        self.name = options.name
        self.models = tuple(options.models)
        self.api_key = options.api_key
        self.login = login
        self.timeouts = options.timeouts
        self.ok: bool | None = None
        self.error: str | None = None
        self.n_calls = 0
        self.n_errors = 0
        self.findings: dict[str, Any] = {}
        self.concurrency = ConcurrencyLimit(options.name, options.concurrency)
        self.health = EngineHealth(options.clock)
        self.replica_of: str | None = None
        self.weights_hook: str | None = None

    async def complete(self, call: EngineCall) -> EngineAnswer:
        """Get the whole answer.

        Raises:
            EngineError: refused, broken off, not JSON. EngineTimeout: no answer in time. EngineUnreachable: no byte of
                an answer. EngineBusy: too many calls are waiting for it.
        """
        await self.concurrency.enter()
        try:
            return await self.ask(call)
        finally:
            self.concurrency.leave()

    async def open_stream(self, call: EngineCall) -> EngineStream | EngineAnswer:
        """Get a stream where it loses nothing, else the whole answer. Raises as ``complete``."""
        await self.concurrency.enter()
        try:
            answer = await self.ask_stream(call)
        except BaseException:
            self.concurrency.leave()
            raise
        if isinstance(answer, EngineAnswer):
            self.concurrency.leave()
        else:
            answer.when_closed(self.concurrency.leave)
        return answer

    @abstractmethod
    async def ask(self, call: EngineCall) -> EngineAnswer:
        """``complete`` without the concurrency limit."""

    async def ask_stream(self, call: EngineCall) -> EngineStream | EngineAnswer:
        """``open_stream`` without the concurrency limit."""
        return await self.ask(call)

    async def check(self) -> bool | None:
        """Whether the engine is alive; None if it can't be checked."""
        return None

    @abstractmethod
    async def list_models(self) -> list[dict[str, Any]]:
        """Its models, as ``GET models`` lists them. Raises EngineError."""

    async def count_tokens(self, prompt: Mapping[str, Any], model: str | None, foreign_key: str | None) -> int | None:
        """The token count of ``{messages, tools}``; None if the engine can't count."""
        return None

    async def pass_on(
        self, path: str, body: Mapping[str, Any], model: str | None, foreign_key: str | None
    ) -> tuple[int, str, bytes]:
        """Pass a request through that is no model call.

        Args:
            path: ``/v1/embeddings``, ``/tokenize`` or ``/detokenize``.

        Returns:
            Status, content type and body of the response.

        Raises:
            NotFound: engines of this kind do not have the path. EngineError: no response.
        """
        raise NotFound(
            f"engine {self.name!r} has no {path}",
            field="model",
            hint="name a model of an engine that is called directly",
        )

    async def load_weights(self, weights: Weights) -> bool:
        """Load new weights; returns when the engine has them.

        Returns:
            Whether the engine reported their version; False if its kind reports none.

        Raises:
            EngineError: it did not load them, or reports another version; the message names the engine.
        """
        raise EngineError(
            f"engine {self.name!r} can't load weights",
            field="engines",
            hint="its provider serves a fixed model; name other engines in the sync",
        )

    async def weights(self) -> Weights | None:
        """The weights that the engine reports; None if its kind reports none. Raises EngineError."""
        return None

    async def may_serve(self, model: str) -> bool:
        """False if the engine is known not to serve the model."""
        return any(fnmatchcase(model, glob) for glob in self.models)

    def plain_models(self) -> list[str]:
        """The configured model names that are no globs."""
        return [glob for glob in self.models if not any(sign in glob for sign in "*?[")]

    def secrets(self) -> Sequence[str]:
        """The engine's keys; they are removed from answers and records."""
        keys = [self.api_key] if self.api_key else []
        if self.login:
            plain = unquote(self.login)
            keys += [basic(self.login), self.login, plain, plain.partition(":")[2], self.login.partition(":")[2]]
        return [key for key in dict.fromkeys(keys) if key]

    def streaming(self) -> dict[str, str]:
        """How streams are made: ``{"mode": ...}``, and each kind of call if it differs by kind."""
        return {"mode": WHOLE}

    def status(self) -> dict[str, Any]:
        """The engine's state for pages and health. ``ok`` is None until the first call."""
        status: dict[str, Any] = {
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
            "in_flight": self.concurrency.n_inside,
            "waiting": self.concurrency.n_waiting,
            "concurrency": self.concurrency.limit,
            "replica_of": self.replica_of,
        }
        # Engines may repeat keys in what they report and in error messages.
        return {**status, **scrubbed({name: status[name] for name in ("error", "findings")}, self.secrets())}

    @property
    def address(self) -> str | None:
        """Its address, for display."""
        return None

    def succeeded(self) -> None:
        """Count a success."""
        self.n_calls += 1
        self.ok, self.error = True, None
        self.health.succeeded()

    def failed(self, error: EngineError) -> EngineError:
        """Count a failure; returns the error."""
        self.n_calls += 1
        self.n_errors += 1
        self.ok, self.error = False, error.message
        self.health.failed(gone=isinstance(error, EngineUnreachable | EngineTimeout))
        return error
