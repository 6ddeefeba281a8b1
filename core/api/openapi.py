"""``GET /openapi.json`` and ``GET /docs``: the OpenAPI document of the declared routes, and its HTML page.

The page is a single file without scripts, so it works without access to other servers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from html import escape
from typing import Any, Final

import orjson
from pydantic.json_schema import models_json_schema
from starlette.responses import HTMLResponse

from core.api import (
    batches,
    clawr1,
    cluster,
    data,
    feedback,
    keys,
    learning,
    metrics,
    packs,
    produce,
    read,
    recipes,
    reports,
    rescores,
    rollouts,
    synthesis,
    train,
    views,
    weights,
)
from core.api.handling import Call
from core.api.routing import Operation, Router
from core.api.schemas import ANY, BOOL, INT, OBJ, STR, Schema, array, bounded_integer, obj
from core.gateway.access.roles import Role

SERVED: Final = tuple(
    operation
    for module in (
        produce,
        keys,
        feedback,
        read,
        metrics,
        train,
        weights,
        batches,
        recipes,
        rescores,
        learning,
        rollouts,
        synthesis,
        packs,
        reports,
        views,
        data,
        cluster,
        clawr1,
    )
    for operation in module.routes.operations
)
"""The API's routes."""

_REF: Final = "#/components/schemas/{model}"
REASONS: Final[Mapping[int, str]] = {
    400: "The request is invalid, or the engine refused it",
    401: "The key is missing or wrong",
    403: "The session key does not allow this, or the request came from a page of another origin",
    404: "Not found",
    409: "It contradicts stored data",
    413: "The request is too large",
    415: "The content type is not JSON",
    421: "The host name is not accepted",
    422: "A field is invalid; see field and hint",
    429: "Too many wrong keys, or the session key's rate or budget is used up",
    502: "The engine failed",
    503: "A weight sync is in progress, or the service is overloaded; see Retry-After",
    504: "The engine did not respond in time",
    507: "The call could not be written to disk",
}
ERROR: Final[Schema] = {
    **obj(type=STR, message=STR),
    "properties": {"type": STR, "message": STR, "field": STR, "hint": STR},
}
EVENT: Final[Schema] = {"type": "object", "properties": {"event": STR, "data": STR}}
DIALECT_ERROR: Final[Schema] = obj(error=obj(message=STR))


_ENGINE: Final = (400, 403, 404, 413, 502, 503, 504, 507)
_REQUEST: Final[Schema] = {
    "type": "object",
    "properties": {"model": {"type": ["string", "null"]}, "stream": {"description": "true requests an event stream"}},
}


def _model_call(path: str, summary: str, **needed: Schema) -> Operation:
    return Operation(
        "POST", path, "capture", summary, OBJ,
        body={**_REQUEST, "properties": {**_REQUEST["properties"], **needed}, "required": sorted(needed)},
        statuses=_ENGINE, media=("application/json", "text/event-stream"),
        note="Other fields are passed to the engine unchanged. Errors have the dialect's format.",
    )  # fmt: skip


def _passed_on(path: str, summary: str) -> Operation:
    note = "Forwarded to the engine and not recorded."
    return Operation("POST", path, "capture", summary, OBJ, body=_REQUEST, statuses=_ENGINE, note=note)


CAPTURE: Final = (
    _model_call("/chat/completions", "OpenAI chat", messages=array(OBJ)),
    _model_call("/completions", "OpenAI completions", prompt=ANY),
    _model_call("/responses", "OpenAI Responses"),
    _model_call("/messages", "Anthropic Messages", messages=array(OBJ)),
    Operation(
        "POST", "/messages/count_tokens", "capture", "Anthropic token count", obj(input_tokens=INT),
        body={**_REQUEST, "required": ["messages"]}, statuses=_ENGINE,
    ),
    Operation(
        "POST", "/responses/input_tokens", "capture", "OpenAI Responses token count", obj(input_tokens=INT),
        body=_REQUEST, statuses=_ENGINE,
    ),
    Operation("GET", "/responses/{response_id}", "capture", "An earlier response", OBJ, statuses=(400, 404)),
    Operation(
        "DELETE", "/responses/{response_id}", "capture", "Hide a response from later requests",
        obj(id=STR, deleted=BOOL), statuses=(400, 404), note="Its step stays in the pool.",
    ),
    Operation(
        "POST", "/responses/{response_id}/cancel", "capture", "Cancel a response", OBJ, statuses=(400, 404),
        note="Always refused: responses do not run in the background.",
    ),
    Operation(
        "GET", "/responses/{response_id}/input_items", "capture", "The input of an earlier response",
        obj(data=array(OBJ), has_more=BOOL), statuses=(400, 404),
        query={"limit": bounded_integer(1, 100), "order": {"enum": ["asc", "desc"]}, "after": STR},
    ),
    _passed_on("/embeddings", "Embeddings"),
    _passed_on("/tokenize", "Tokenize a text"),
    _passed_on("/detokenize", "Decode tokens"),
    Operation("GET", "/models", "capture", "Models of the engines", obj(data=array(OBJ)), statuses=_ENGINE),
    Operation("GET", "/models/{model}", "capture", "One model", obj(id=STR), statuses=_ENGINE),
)  # fmt: skip
"""Routes of agents, below ``/v1`` and ``/{trajectory_uid}/{prompt_uid}/v1``; ``core.gateway.app`` serves them."""
BESIDE_V1: Final = ("/tokenize", "/detokenize")
"""Those that are also served without ``/v1``."""
HEALTH: Final = Operation(
    "GET",
    "/health",
    "capture",
    "Whether the default engine is alive",
    obj(status=STR),
    role=Role.OPEN,
    statuses=(503,),
    same_at=(503,),
)


def operations() -> Iterator[Operation]:
    """All routes of the document."""
    yield from SERVED
    for operation in CAPTURE:
        for prefix in ("/v1", "/{trajectory_uid}/{prompt_uid}/v1"):
            yield replace(operation, path=prefix + operation.path, role=Role.SESSION)
            if operation.path in BESIDE_V1:
                yield replace(operation, path=prefix.removesuffix("/v1") + operation.path, role=Role.SESSION)
    yield HEALTH


def document(server: str | None = None) -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    models = {operation.body for operation in operations() if isinstance(operation.body, type)}
    ordered = sorted(models, key=lambda model: model.__name__)
    _, shared = models_json_schema([(model, "validation") for model in ordered], ref_template=_REF)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations():
        paths.setdefault(operation.documented_path, {})[operation.method.lower()] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Claw Studio",
            "version": "1",
            "description": "Capture of agents' model calls, the step pool, and batches for trainers. Errors are JSON "
            "with type, message, and if known field and hint; agents get them in their dialect's format.",
        },
        **({"servers": [{"url": server}]} if server else {}),
        "paths": paths,
        "components": {
            "schemas": {**shared.get("$defs", {}), "Error": ERROR, "DialectError": DIALECT_ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _described(operation: Operation) -> dict[str, Any]:
    is_capture = operation.tag == "capture"
    error = {"$ref": _REF.format(model="DialectError" if is_capture else "Error")}
    statuses = {401, 403, 421, 422, 429, *operation.statuses}
    if is_capture:
        statuses.add(400)
    elif operation.body is not None:
        statuses.add(415)
    path = operation.documented_path
    described: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{operation.method.lower()}{path}").strip("_"),
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": [
            *(
                {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
                for name in re.findall(r"{(\w+)}", path)
            ),
            *({"name": name, "in": "query", "schema": schema} for name, schema in operation.query.items()),
        ],
        "responses": {
            "200": {
                "description": "Done",
                "content": {media: {"schema": _answer(media, operation.answer)} for media in operation.media},
            },
            **{
                str(status): {
                    "description": REASONS[status],
                    "content": {
                        "application/json": {"schema": operation.answer if status in operation.same_at else error}
                    },
                }
                for status in sorted(statuses)
            },
        },
    }
    if operation.note:
        described["description"] = operation.note
    if operation.body is not None:
        body = operation.body
        schema = {"$ref": _REF.format(model=body.__name__)} if isinstance(body, type) else body
        content: dict[str, Any] = {"schema": schema}
        if operation.example is not None:
            content["example"] = operation.example
        described["requestBody"] = {"required": operation.needs_body, "content": {operation.body_media: content}}
    return described


def _answer(media: str, schema: Schema) -> Schema:
    """The schema of a response with this media type; for event streams, of one event."""
    if media == "text/event-stream":
        return EVENT
    return schema if media == "application/json" or schema.get("type") == "string" else STR


_own = Router("", "document")


@_own("GET", "/openapi.json", OBJ, role=Role.OPEN)
def openapi(call: Call) -> Any:
    """This document."""
    return document(call.base_url)


@_own("GET", "/docs", STR, role=Role.OPEN)
def docs(call: Call) -> Any:
    """The document as a page."""
    return HTMLResponse(page(document(call.base_url)))


_STYLE: Final = """
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}
summary{cursor:pointer;padding:.35rem .5rem;border-top:1px solid color-mix(in srgb,currentColor 18%,transparent)}
code,pre{font:13px/1.45 ui-monospace,monospace} pre{overflow-x:auto;padding:.75rem;border-radius:6px;
background:color-mix(in srgb,currentColor 7%,transparent)}
b.m{display:inline-block;width:4.2rem} h2{margin-top:2.5rem;text-transform:capitalize}
"""


def page(described: Mapping[str, Any]) -> str:
    """An HTML page of all routes with their parameters, bodies and responses."""
    by_tag: dict[str, list[str]] = {}
    schemas = described["components"]["schemas"]
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            parts = []
            if operation.get("description"):
                parts.append(f"<p>{escape(operation['description'])}</p>")
            if operation["parameters"]:
                named = (f"<code>{escape(p['name'])}</code> ({p['in']})" for p in operation["parameters"])
                parts.append(f"<p>Parameters: {', '.join(named)}</p>")
            if body := operation.get("requestBody"):
                (media, content), *_ = body["content"].items()
                parts.append(f"<p>Body, {escape(media)}:</p>{_pre(_resolved(content['schema'], schemas))}")
                if "example" in content:
                    parts.append(f"<p>For example:</p>{_pre(content['example'])}")
            for status, answer in operation["responses"].items():
                shown = _pre(next(iter(answer["content"].values()))["schema"]) if status == "200" else ""
                parts.append(f"<p><code>{status}</code> {escape(answer['description'])}</p>{shown}")
            head = f"<b class=m>{method.upper()}</b><code>{escape(path)}</code> — {escape(operation['summary'])}"
            by_tag.setdefault(operation["tags"][0], []).append(
                f"<details><summary>{head}</summary>{''.join(parts)}</details>"
            )
    body = "".join(f"<h2>{escape(tag)}</h2>{''.join(routes_html)}" for tag, routes_html in by_tag.items())
    title = escape(described["info"]["title"])
    intro = escape(described["info"]["description"])
    return (
        f'<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content="width=device-width">'
        f"<title>{title} API</title><style>{_STYLE}</style><h1>{title} API</h1><p>{intro}</p>"
        f'<p><a href="openapi.json">openapi.json</a></p>{body}</html>'
    )


def _resolved(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:
    name = schema.get("$ref", "").rpartition("/")[2]
    return schemas[name] if name else schema


def _pre(value: Any) -> str:
    return f"<pre>{escape(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())}</pre>"


OWN: Final = tuple(_own.operations)
"""The routes of the document itself."""


def open_paths() -> frozenset[str]:
    """Paths of all routes that need no key."""
    return frozenset(operation.path for operation in (*operations(), *OWN) if operation.role is Role.OPEN)
