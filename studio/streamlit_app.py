"""Entry point of ``streamlit run studio``: the ASGI app whose lifespan opens and closes the service.

The lifespan starts before any browser connects and ends on SIGTERM and SIGINT, so capture does not depend on
a page. The service opens while browsers already load the pages' files; a page's script waits for it. If the service
can't open (port taken, folder in use by another process), the app keeps running and every page shows the failure and
how to fix it.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import streamlit as st
from starlette.middleware import Middleware

from core.garbage import freeze_objects
from core.logs import escape_all_handlers, set_up
from studio import lifecycle
from studio.access import AccessMiddleware
from studio.bundles import ROUTES
from studio.reruns import keep_pages

SETTLE_S = 4.0
"""After the service has opened, the processor is left to the first visitor's page for so long."""


@asynccontextmanager
async def lifespan(_: st.App) -> AsyncIterator[None]:
    """Open the service, hand over to Streamlit, close the service in order."""
    set_up(logging.WARNING, "text")
    escape_all_handlers()
    keep_pages()
    # Before the first request: they say which hosts and which key the pages accept.
    lifecycle.read_settings()
    closing = threading.Event()
    opening = asyncio.create_task(asyncio.to_thread(_open, closing))
    try:
        yield
    finally:
        closing.set()
        await opening
        await asyncio.to_thread(lifecycle.close_service)


def _open(closing: threading.Event) -> None:
    lifecycle.open_service()
    if not closing.wait(SETTLE_S):
        lifecycle.import_heavy()
        gc.collect()
        freeze_objects()


app = st.App(
    Path(__file__).parent / "main.py",
    lifespan=lifespan,
    routes=ROUTES,
    middleware=[Middleware(AccessMiddleware)],
)
