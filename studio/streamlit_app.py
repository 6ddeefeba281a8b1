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
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import streamlit as st
from starlette.middleware import Middleware

from core.garbage import freeze_objects
from core.logs import escape_all_handlers, set_up
from studio import lifecycle
from studio.access import AccessMiddleware


@asynccontextmanager
async def lifespan(_: st.App) -> AsyncIterator[None]:
    """Open the service, hand over to Streamlit, close the service in order."""
    set_up(logging.WARNING, "text")
    escape_all_handlers()
    # Before the first request: they say which hosts and which key the pages accept.
    lifecycle.read_settings()
    opening = asyncio.create_task(asyncio.to_thread(_open))
    try:
        yield
    finally:
        await opening
        await asyncio.to_thread(lifecycle.close_service)


def _open() -> None:
    lifecycle.open_service()
    lifecycle.import_heavy()
    gc.collect()
    freeze_objects()


app = st.App(Path(__file__).parent / "main.py", lifespan=lifespan, middleware=[Middleware(AccessMiddleware)])
