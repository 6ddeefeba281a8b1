"""LiteLLM, imported once and beside the calls: seconds and hundreds of thousands of objects."""

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

_SWITCH_S: Final = 0.0005
"""How soon another thread gets its turn meanwhile. With Python's usual 5 ms each step of a call would wait so long."""


class LiteLLM:
    """The library, for all who share this object. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._importing: Future[Any] | None = None

    def begin(self) -> Future[Any]:
        """Import it in a thread unless that is done or under way; one that failed is tried again."""
        with self._lock:
            if self._importing is None or (self._importing.done() and self._importing.exception() is not None):
                self._importing = Future()
                threading.Thread(target=_run, args=(self._importing,), name="litellm-import", daemon=True).start()
            return self._importing

    async def get(self) -> Any:
        """The module; waits for its import. Raises EngineError."""
        importing = self.begin()
        # Shielded: a call that gives up must not end the import that others wait for.
        return importing.result() if importing.done() else await asyncio.shield(asyncio.wrap_future(importing))


def load_litellm() -> Any:
    """Import LiteLLM: offline price map, no telemetry, no retries and no prints of its own. Blocks for seconds.

    For some providers it would fetch the images and files that a body names. A body is a caller's, and who may call
    could make the service ask any address: it fetches none, and such a call is refused. What it reads of a provider is
    bounded (``core.gateway.providers.read_limits``).
    """
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    os.environ["MAX_IMAGE_URL_DOWNLOAD_SIZE_MB"] = "0"
    # Only one of its transports is bounded.
    os.environ["DISABLE_AIOHTTP_TRANSPORT"] = os.environ["LITELLM_HTTP2"] = "False"
    with _beside_calls():
        import litellm

        # Most providers are called through it; it would import the rest of itself in the midst of the first call.
        importlib.import_module("openai.resources")
    urls: Any = importlib.import_module("litellm.litellm_core_utils.url_utils")

    def refuse(url: str) -> tuple[str, str]:
        raise urls.SSRFError(f"{url} is not fetched: send what it holds as a data: URL")

    # All that it fetches for a caller asks here first; its own setting only tells public addresses from private ones.
    urls.validate_url = refuse
    litellm.user_url_validation = True
    from core.gateway.providers.read_limits import bounded

    transport: Any = importlib.import_module("litellm.llms.custom_httpx.aiohttp_transport").LiteLLMAiohttpTransport
    transport.handle_async_request = bounded(transport.handle_async_request)
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    # What a provider does not know is left out, and the step says so.
    litellm.drop_params = True
    return litellm


def _run(done: Future[Any]) -> None:
    try:
        done.set_result(load_litellm())
    except Exception as error:
        done.set_exception(EngineError(f"LiteLLM can't be imported: {type(error).__name__}: {error}"))


@contextmanager
def _beside_calls() -> Iterator[None]:
    """Let other threads go on while much is imported.

    What comes stays for good, so collecting garbage would only walk through all of it, again and again, while every
    call waits: it is more than half of the import's time, in pieces of up to a third of a second.
    """
    collecting, switch = gc.isenabled(), sys.getswitchinterval()
    gc.disable()
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(switch)
        gc.freeze()
        if collecting:
            gc.enable()
