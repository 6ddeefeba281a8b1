"""How a route is declared: path, body, answer and handler in one place, for the server and for its document.

A handler's docstring is the route's text in the document, and the annotation of its second argument is the model that
its body is checked with.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import getdoc, iscoroutinefunction
from typing import Any, TypeVar, get_type_hints

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from core.api.handling import CATCH_UP_S, ApiDeps, Call, error_response, json_response
from core.api.schemas import Schema
from core.api.wire import WireModel, check
from core.errors import InvalidInput, StudioError
from core.gateway.http.asgi import ClientDisconnected, read_request
from core.gateway.http.fast_router import decode_slashes

log = logging.getLogger(__name__)

PREFIX = "/api/v1"
HandlerT = TypeVar("HandlerT", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Operation:
    """One route.

    Attributes:
        path: as Starlette reads it, ``{uid:path}`` included.
        summary: one line.
        answer: schema of the 200 answer.
        handler: a function that runs in a worker thread, or a coroutine function for calls that wait: they must not
            hold a worker thread meanwhile. None where the route is the gateway's.
        model: what its body is checked with before the handler gets it.
        body: the schema of a body that the handler reads itself, or its model.
        query: its query parameters.
        statuses: what it answers beside 200, 401 and 422.
        same_at: of these, which have the form of the 200 answer.
        media: other forms of its 200 answer.
        example: of the body.
        note: further words.
        reads_pool: whether the handler waits until the pool holds what clients were told is stored.
    """

    method: str
    path: str
    tag: str
    summary: str
    answer: Schema
    handler: Callable[..., Any] | None = None
    model: type[WireModel] | None = None
    body: type[WireModel] | Schema | None = None
    query: Mapping[str, Schema] = field(default_factory=dict)
    statuses: Sequence[int] = ()
    same_at: Sequence[int] = ()
    media: Sequence[str] = ("application/json",)
    body_media: str = "application/json"
    example: Any = None
    note: str | None = None
    reads_pool: bool = True

    @property
    def documented_path(self) -> str:
        """As OpenAPI has it: without how a parameter is matched."""
        return re.sub(r":\w+}", "}", self.path)

    @property
    def needs_body(self) -> bool:
        """Whether an empty body is refused; it reads as ``{}``."""
        if self.model is None:
            return True
        try:
            check(self.model, {})
        except InvalidInput:
            return True
        return False


class Router:
    """Declares routes below a prefix: ``@routes("GET", "/steps", answer)`` above a handler.

    Attributes:
        operations: what was declared, in order.
    """

    def __init__(self, prefix: str = PREFIX, tag: str = "studio") -> None:
        self.operations: list[Operation] = []
        self._prefix, self._tag = prefix, tag

    def __call__(
        self,
        method: str,
        path: str,
        answer: Schema,
        *,
        body: type[WireModel] | Schema | None = None,
        query: Mapping[str, Schema] | None = None,
        statuses: Sequence[int] = (),
        same_at: Sequence[int] = (),
        media: Sequence[str] = ("application/json",),
        body_media: str = "application/json",
        example: Any = None,
        at_root: bool = False,
        reads_pool: bool = True,
    ) -> Callable[[HandlerT], HandlerT]:
        """Declare the handler below it as a route; see ``Operation``. ``at_root``: without the prefix as well."""

        def declare(handler: HandlerT) -> HandlerT:
            summary, _, note = (getdoc(handler) or "").partition("\n\n")
            model = get_type_hints(handler).get("body")
            note = " ".join(note.replace("``", "`").split())
            below = Operation(
                method, self._prefix + path, self._tag, summary.rstrip("."), answer, handler, model, model or body,
                query or {}, statuses, same_at, media, body_media, example, note or None, reads_pool,
            )  # fmt: skip
            self.operations.append(below)
            if at_root:
                self.operations.append(replace(below, path=path, tag="health"))
            return handler

        return declare


def endpoint(deps: ApiDeps, operation: Operation) -> Callable[[Request], Awaitable[Response]]:
    """What Starlette calls: read the body, check it, run the handler, give failures their shape."""
    handler, model = operation.handler, operation.model
    assert handler is not None

    def answer(call: Call) -> Any:
        if operation.reads_pool:
            deps.ingest.settle(CATCH_UP_S)
        return handler(call) if model is None else handler(call, check(model, call.json()))

    async def run(request: Request) -> Response:
        try:
            call = Call(
                deps,
                decode_slashes(request.path_params),
                dict(request.query_params),
                await read_request(request.receive, request.headers, deps.settings.max_body_bytes),
                request.headers.get("host"),
            )
            if iscoroutinefunction(handler):
                if operation.reads_pool and not deps.ingest.settled:
                    await run_in_threadpool(deps.ingest.settle, CATCH_UP_S)
                result = await answer(call)
            else:
                result = await run_in_threadpool(answer, call)
        except StudioError as err:
            return error_response(err)
        except ClientDisconnected:
            # Nobody is there to read it.
            return Response(status_code=400)
        except Exception:
            log.exception("%s %s failed", request.method, request.url.path)
            failure = StudioError("the studio failed on this call; its log has the trace")
            failure.http_status = 500
            return error_response(failure)
        return result if isinstance(result, Response) else json_response(result)

    return run
