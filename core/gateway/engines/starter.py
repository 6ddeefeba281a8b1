"""Starts engines on demand, and again after they are gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future

from core.errors import EngineError


class EngineStarter:
    """Starts one engine in a thread; all calls wait for the same start.

    Args:
        ready: blocking; returns the base URL, or None to keep the known one.
        started: called with the result of ``ready``; raises EngineError if it is not enough.
        failed: called with the reason of a failed start.
    """

    def __init__(
        self,
        name: str,
        ready: Callable[[], str | None],
        started: Callable[[str | None], None],
        failed: Callable[[str], None],
    ) -> None:
        self._name = name
        self._ready = ready
        self._started = started
        self._failed = failed
        self._starting: Future[None] | None = None
        self._lock = threading.Lock()

    def forget(self) -> None:
        """The engine is gone; the next call starts it again."""
        self._starting = None

    async def wait(self) -> None:
        """Return when the engine runs. Raises EngineError; the next call tries again."""
        with self._lock:
            if self._starting is None or (self._starting.done() and self._starting.exception() is not None):
                self._starting = Future()
                threading.Thread(
                    target=self._start, args=(self._starting,), name=f"engine-{self._name}", daemon=True
                ).start()
            starting = self._starting
        if starting.done():
            starting.result()
        else:
            # Shielded: cancelling one call must not cancel the start that others wait for.
            await asyncio.shield(asyncio.wrap_future(starting))

    def _start(self, done: Future[None]) -> None:
        try:
            self._started(self._ready())
        except EngineError as error:
            done.set_exception(error)
        except Exception as error:
            self._failed(str(error))
            done.set_exception(EngineError(f"engine {self._name!r} did not start: {error}"))
        else:
            done.set_result(None)
