"""Declares routes: path, body, response and handler in one place, for the server and for its OpenAPI document.

The handler's docstring is the route's description in the document. The annotation of its second argument is the model
with which the body is validated.
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
from core.gateway.access.roles import Role
from core.gateway.http.asgi import ClientDisconnected, read_request
from core.gateway.http.fast_router import decode_slashes

log = logging.getLogger(__name__)

PREFIX = "/api/v1"
HandlerT = TypeVar("HandlerT", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Operation:
    """One route.

    Attributes:
        role: which key the route accepts.
        path: in Starlette's syntax, for example ``{uid:path}``.
        summary: one line.
        answer: schema of the 200 response.
        handler: a function that runs in a worker thread. Calls that wait are coroutine functions, so that they do not
            occupy a worker thread. None if the gateway serves the route.
        model: validates the body before the handler is called.
        body: the schema or model of a body that the handler parses.
        query: query parameters.
        statuses: possible statuses besides 200, 401 and 422.
        same_at: those of ``statuses`` whose body has the schema of the 200 response.
        media: media types of the 200 response.
        example: example of the body.
        note: further description.
        reads_pool: whether the request first waits until all acknowledged writes are in the pool.
    """

    method: str
    path: str
    tag: str
    summary: str
    answer: Schema
    handler: Callable[..., Any] | None = None
    role: Role = Role.ADMIN
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
        """The path in OpenAPI's syntax, without Starlette's parameter types."""
        return re.sub(r":\w+}", "}", self.path)

    @property
    def needs_body(self) -> bool:
        """Whether an empty body, which is parsed as ``{}``, is refused."""
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
        operations: the declared routes, in order.
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
        role: Role = Role.ADMIN,
        at_root: Role | None = None,
        reads_pool: bool = True,
    ) -> Callable[[HandlerT], HandlerT]:
        """Declare the decorated function as a route; see ``Operation``.

        ``at_root``: the role of the same route without the prefix; None: it is not served there.
        """

        def declare(handler: HandlerT) -> HandlerT:
            summary, _, note = (getdoc(handler) or "").partition("\n\n")
            model = get_type_hints(handler).get("body")
            note = " ".join(note.replace("``", "`").split())
            below = Operation(
                method, self._prefix + path, self._tag, summary.rstrip("."), answer, handler, role, model,
                model or body, query or {}, statuses, same_at, media, body_media, example, note or None, reads_pool,
            )  # fmt: skip
            self.operations.append(below)
            if at_root is not None:
                self.operations.append(replace(below, path=path, tag="health", role=at_root))
            return handler

        return declare


def endpoint(deps: ApiDeps, operation: Operation) -> Callable[[Request], Awaitable[Response]]:
    """The Starlette endpoint of a route: reads and validates the body, runs the handler, converts errors to JSON."""
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
            # The client is gone, so this response is not read.
            return Response(status_code=400)
        except Exception:
            log.exception("%s %s failed", request.method, request.url.path)
            failure = StudioError("internal error; see the studio's log for the traceback")
            failure.http_status = 500
            return error_response(failure)
        return result if isinstance(result, Response) else json_response(result)

    return run
