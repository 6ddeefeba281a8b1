"""The HTTP server that both engines share: routing, JSON, event streams, the ready line, shutdown.

A handler is cancelled when its client disconnects, so that its resources are freed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson
from aiohttp import web

from core.errors import InvalidInput, NotFound, StudioError
from core.serving.protocol import error_body

MAX_BODY_BYTES = 256 << 20
STOP_GRACE_S = 0.3

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Routes = Mapping[tuple[str, str], Handler]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command-line arguments that every engine has."""
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    parser.add_argument("--exit-with-parent", action="store_true", help="end when stdin reaches end of file")


def json_response(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """A JSON response."""
    return web.Response(body=orjson.dumps(body), status=status, headers=headers, content_type="application/json")


def error_response(error: StudioError) -> web.Response:
    """An error response in OpenAI's format."""
    status, body = error_body(error)
    return json_response(body, status)


async def read_json(request: web.BaseRequest) -> dict[str, Any]:
    """The request's JSON object.

    Raises:
        InvalidInput: the body is not a JSON object.
    """
    raw = await request.read()
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"the body is not JSON: {error}", field="body") from None
    if not isinstance(body, dict):
        raise InvalidInput("the body must be a JSON object", field="body")
    return body


async def open_stream(request: web.BaseRequest) -> web.StreamResponse:
    """Send the headers of an event stream."""
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
    )
    await response.prepare(request)
    return response


def serve(
    routes: Routes,
    arguments: argparse.Namespace,
    *,
    model: str,
    on_start: Callable[[asyncio.AbstractEventLoop], None] | None = None,
    on_stop: Callable[[], None] | None = None,
) -> None:
    """Serve until SIGTERM, SIGINT or, if requested, the end of stdin. Prints one ready line of JSON to stdout.

    ``on_start`` is called on the loop before the port opens, ``on_stop`` after the last request has ended.
    """
    try:
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
    except ImportError:
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_serve(routes, arguments, model, on_start, on_stop))


async def _serve(
    routes: Routes,
    arguments: argparse.Namespace,
    model: str,
    on_start: Callable[[asyncio.AbstractEventLoop], None] | None,
    on_stop: Callable[[], None] | None,
) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    if on_start is not None:
        on_start(loop)
    server = web.Server(_dispatcher(routes), handler_cancellation=True, request_factory=_request, access_log=None)
    runner = web.ServerRunner(server, shutdown_timeout=STOP_GRACE_S)
    await runner.setup()
    site = web.TCPSite(runner, arguments.host, arguments.port, backlog=1024)
    await site.start()
    host, port = runner.addresses[0][:2]
    ready = {"ready": True, "base_url": f"http://{host}:{port}/v1", "model": model, "pid": os.getpid()}
    print(json.dumps(ready), flush=True)
    if arguments.exit_with_parent:
        threading.Thread(target=_watch_stdin, args=(loop, ended), daemon=True).start()
    await ended.wait()
    await runner.cleanup()
    if on_stop is not None:
        on_stop()


def _watch_stdin(loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
    while sys.stdin.buffer.read(4096):
        pass
    loop.call_soon_threadsafe(ended.set)


def _request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=MAX_BODY_BYTES)


def _dispatcher(routes: Routes) -> Handler:
    paths = {path for _, path in routes}

    async def dispatch(request: web.BaseRequest) -> web.StreamResponse:
        handler = routes.get((request.method, request.path))
        if handler is None:
            known = request.path in paths
            problem = f"{request.method} is not allowed here" if known else f"no route {request.path}"
            response = error_response(NotFound(problem, hint="see GET /v1/models for what is served"))
            response.set_status(405 if known else 404)
            return response
        try:
            return await handler(request)
        except StudioError as error:
            return error_response(error)

    return dispatch
