"""Base class of all engines: concurrency limit, health, counters and status."""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final
from urllib.parse import unquote

from core.errors import EngineError, EngineTimeout, NotFound
from core.gateway.engines.answer import EngineAnswer, EngineCall, EngineStream
from core.gateway.engines.capabilities import WHOLE
from core.gateway.engines.concurrency import ConcurrencyLimit
from core.gateway.engines.health import Health
from core.gateway.transport.connection_pool import Timeouts
from core.scrub import scrubbed

BUSY: Final = frozenset({429, 503})
"""What an engine says that has no room now: asking again is right, and safe."""


class EngineUnreachable(EngineError):
    """No byte of an answer came: asking again can't give two answers to one call.

    Attributes:
        again: whether the same engine is worth another try.
    """

    again = True


def basic(login: str) -> str:
    """``user:password``, percent-encoded as in a URL, for a header of the scheme Basic."""
    return base64.b64encode(unquote(login).encode()).decode()


class Engine(ABC):
    """One source of answers. Subclasses: ``core.gateway.engines.direct`` and ``core.gateway.providers.engine``."""

    kind = ""

    def __init__(
        self,
        name: str,
        models: Sequence[str],
        api_key: str | None,
        timeouts: Timeouts,
        clock: Callable[[], float],
        concurrency: int | None = None,
        login: str | None = None,
    ) -> None:
        self.name = name
        self.models = tuple(models)
        self.api_key = api_key
        self.login = login
        self.timeouts = timeouts
        self.ok: bool | None = None
        self.error: str | None = None
        self.n_calls = 0
        self.n_errors = 0
        self.findings: dict[str, Any] = {}
        self.concurrency = ConcurrencyLimit(name, concurrency)
        self.health = Health(clock)
        self.replica_of: str | None = None

    async def complete(self, call: EngineCall) -> EngineAnswer:
        """Get the whole answer.

        Raises:
            EngineError: refused, broken off, not JSON. EngineTimeout: no answer in time. EngineUnreachable: nothing of
                an answer came. EngineBusy: too many calls are waiting for it.
        """
        await self.concurrency.enter()
        try:
            return await self.ask(call)
        finally:
            self.concurrency.leave()

    async def open_stream(self, call: EngineCall) -> EngineStream | EngineAnswer:
        """Get the answer as it comes where that loses nothing, the whole answer elsewhere. Raises as ``complete``."""
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

    async def pass_on(
        self, path: str, body: Mapping[str, Any], model: str | None, foreign_key: str | None
    ) -> tuple[int, str, bytes]:
        """Ask what is no model call.

        Args:
            path: ``/v1/embeddings``, ``/tokenize`` or ``/detokenize``.

        Returns:
            Status, content type and body of the answer.

        Raises:
            NotFound: this kind of engine has no such thing. EngineError: it did not answer.
        """
        raise NotFound(
            f"engine {self.name!r} has no {path}",
            field="model",
            hint="name a model of an engine that is called directly",
        )

    async def may_serve(self, model: str) -> bool:
        """True unless it is known that the model is not served here."""
        return any(fnmatchcase(model, glob) for glob in self.models)

    def plain_models(self) -> list[str]:
        """The configured names that are no globs."""
        return [glob for glob in self.models if not any(sign in glob for sign in "*?[")]

    def secrets(self) -> Sequence[str]:
        """Keys that it may send, and that must not be stored should an answer repeat them."""
        keys = [self.api_key] if self.api_key else []
        if self.login:
            plain = unquote(self.login)
            keys += [basic(self.login), self.login, plain, plain.partition(":")[2], self.login.partition(":")[2]]
        return [key for key in dict.fromkeys(keys) if key]

    def streaming(self) -> dict[str, str]:
        """How streams are made: ``{"mode": ...}`` and, where it depends on it, each kind of call."""
        return {"mode": WHOLE}

    def status(self) -> dict[str, Any]:
        """What the pages show. ``ok`` is None until the first call."""
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
        # Engines repeat keys in what they say of themselves and of their failures.
        return {**status, **scrubbed({name: status[name] for name in ("error", "findings")}, self.secrets())}

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
        self.health.failed(gone=isinstance(error, EngineUnreachable | EngineTimeout))
        return error
