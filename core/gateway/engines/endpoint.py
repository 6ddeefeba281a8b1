"""The HTTP endpoint of one OpenAI-compatible engine: base URL, authorization, requests, and its start on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from core.errors import EngineError
from core.gateway.engines.base import EngineOptions, EngineUnreachable, basic
from core.gateway.engines.starter import EngineStarter
from core.gateway.transport.connection import ConnectError, Disconnected, HttpError
from core.gateway.transport.http1 import HttpAnswer


class EngineEndpoint:
    """Sends requests to one engine.

    Args:
        base_url: ``http://host:port/v1``; None if ``ready`` returns it.
        login: ``user:password`` of a Basic authorization, percent-encoded as in a URL. It precedes all keys.
        ready: starts the engine, see ``EngineSet.add``; None: the engine is not started by the gateway.
        started: called after each start: earlier findings may not hold for the new process.
        not_started: called with the reason of a failed start.

    Attributes:
        base_url: as the argument, without a slash at its end; None before a started engine has reported it.
        starter: starts the engine; None if the gateway does not start it.
    """

    def __init__(
        self,
        options: EngineOptions,
        base_url: str | None,
        *,
        login: str | None,
        ready: Callable[[], str | None] | None,
        started: Callable[[], None],
        not_started: Callable[[str], None],
    ) -> None:
        self.base_url = base_url.rstrip("/") if base_url else None
        self.starter = EngineStarter(options.name, ready, self._started, not_started) if ready is not None else None
        self._name = options.name
        self._api_key = options.api_key
        self._login = login
        self._pool = options.pool
        self._timeouts = options.timeouts
        self._on_start = started

    async def wait_started(self) -> None:
        """Return when the engine runs. Raises EngineError if it can't be started."""
        if self.starter is not None:
            await self.starter.wait()

    def authorization(self, foreign_key: str | None) -> dict[str, str]:
        """The Authorization header: the login, else the configured key, else the agent's own key."""
        if self._login:
            return {"Authorization": f"Basic {basic(self._login)}"}
        key = self._api_key or foreign_key
        return {"Authorization": f"Bearer {key}"} if key else {}

    def url(self, path: str) -> str:
        """The URL of a path. Paths outside ``/v1`` are beside it."""
        base = str(self.base_url)
        return base + path[3:] if path.startswith("/v1/") else base.removesuffix("/v1") + path

    async def get(self, path: str) -> HttpAnswer:
        """``GET`` of a path; the body is not read yet. Raises HttpError."""
        client = await self._pool.client()
        return await client.request("GET", self.url(path), headers=self.authorization(None))

    async def send(
        self, path: str, body: Mapping[str, Any], foreign_key: str | None, passed_on: Mapping[str, str]
    ) -> HttpAnswer:
        """``POST`` a request; the body of the answer is not read yet.

        Args:
            foreign_key: the agent's own key, for an engine without a configured one.
            passed_on: headers of the agent for the engine.

        Raises:
            EngineUnreachable: no byte of an answer arrived. EngineError: the answer broke off.
        """
        data = orjson.dumps(body)
        headers = {"Content-Type": "application/json", **passed_on, **self.authorization(foreign_key)}
        client = await self._pool.client()
        for attempt in (1, 2):
            try:
                return await client.request(
                    "POST",
                    self.url(path),
                    headers=headers,
                    body=data,
                    connect_timeout_s=self._timeouts.connect,
                )
            except ConnectError as error:
                if self.starter is None or attempt == 2:
                    raise EngineUnreachable(
                        f"engine {self._name!r} at {self.base_url} can't be reached: {error}",
                        hint="start the engine or correct its base URL",
                    ) from error
                # A supervised engine that is gone is started again.
                self.starter.forget()
                await self.starter.wait()
            except Disconnected as error:
                # The engine may have closed an idle connection just now, so one retry is made.
                if attempt == 2:
                    unreachable = EngineUnreachable(f"engine {self._name!r} closed the connection without an answer")
                    # The request itself may crash the engine, so it is not sent to it again.
                    unreachable.again = False
                    raise unreachable from error
            except HttpError as error:
                raise EngineError(f"engine {self._name!r} broke off: {error}") from error
        raise AssertionError("unreachable")

    async def read(self, response: HttpAnswer) -> tuple[int, bytes, str | None]:
        """Status, body and ``Retry-After``. Raises EngineError if the answer breaks off."""
        async with response:
            try:
                return response.status, await response.read(), response.headers.get("retry-after")
            except HttpError as error:
                raise EngineError(f"engine {self._name!r} broke off: {error}") from error

    def _started(self, base_url: str | None) -> None:
        if base_url:
            self.base_url = base_url.rstrip("/")
        self._on_start()
        if self.base_url is None:
            raise EngineError(f"engine {self._name!r} started without a base URL")
