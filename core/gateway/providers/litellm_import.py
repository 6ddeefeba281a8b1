"""Imports LiteLLM once, in the background; the import takes seconds and creates hundreds of thousands of objects."""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Final

from core.errors import EngineError
from core.garbage import freeze_objects

_SWITCH_S: Final = 0.0005
"""Thread switch interval during the import, seconds. With Python's default of 5 ms each step of a call would wait so
long.
"""


class LiteLLM:
    """The library, imported once for all users of this object. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._importing: Future[Any] | None = None

    def begin(self) -> Future[Any]:
        """Start the import in a thread unless it is done or running; a failed one is repeated."""
        with self._lock:
            if self._importing is None or (self._importing.done() and self._importing.exception() is not None):
                self._importing = Future()
                threading.Thread(target=_run, args=(self._importing,), name="litellm-import", daemon=True).start()
            return self._importing

    async def get(self) -> Any:
        """The module; waits for its import. Raises EngineError."""
        importing = self.begin()
        # Shielded: cancelling one call must not cancel the import that others wait for.
        return importing.result() if importing.done() else await asyncio.shield(asyncio.wrap_future(importing))


def load_litellm() -> Any:
    """Import LiteLLM with an offline price map and without telemetry, retries and prints. Blocks for seconds.

    For some providers it would fetch images and files that a body names, so a caller could make the service request any
    address. Fetching is disabled and such calls are refused. What it reads from providers is limited
    (``core.gateway.providers.read_limits``).
    """
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    os.environ["MAX_IMAGE_URL_DOWNLOAD_SIZE_MB"] = "0"
    # Only one of its transports is limited.
    os.environ["DISABLE_AIOHTTP_TRANSPORT"] = os.environ["LITELLM_HTTP2"] = "False"
    with _beside_calls():
        import litellm

        # Most providers need it; otherwise the first call would import it.
        importlib.import_module("openai.resources")
    urls: Any = importlib.import_module("litellm.litellm_core_utils.url_utils")

    def refuse(url: str) -> tuple[str, str]:
        raise urls.SSRFError(f"{url} is not fetched: send what it holds as a data: URL")

    # All of its fetches are checked here; its own setting only separates public from private addresses.
    urls.validate_url = refuse
    litellm.user_url_validation = True
    from core.gateway.providers.read_limits import bounded

    transport: Any = importlib.import_module("litellm.llms.custom_httpx.aiohttp_transport").LiteLLMAiohttpTransport
    if transport.handle_async_request.__module__ != bounded.__module__:
        # A second registry of engines in this process must not count each byte twice.
        transport.handle_async_request = bounded(transport.handle_async_request)
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    # Fields that a provider does not support are dropped; the step lists them.
    litellm.drop_params = True
    return litellm


def _run(done: Future[Any]) -> None:
    try:
        done.set_result(load_litellm())
    except Exception as error:
        done.set_exception(EngineError(f"LiteLLM can't be imported: {type(error).__name__}: {error}"))


@contextmanager
def _beside_calls() -> Iterator[None]:
    """Let other threads run during a long import.

    Imported objects stay for good, so garbage collection would only walk through all of them repeatedly while calls
    wait. It takes more than half of the import's time, in pauses of up to a third of a second.
    """
    collecting, switch = gc.isenabled(), sys.getswitchinterval()
    gc.disable()
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(switch)
        freeze_objects()
        if collecting:
            gc.enable()
