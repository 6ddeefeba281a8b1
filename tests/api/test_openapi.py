"""The OpenAPI document against the routes, and the routes against the document: schemathesis asks what it allows."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, cast

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from pydantic import BaseModel
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.routing import Route

from core.api import ApiDeps, create_api
from core.api.openapi import document, operations
from core.gateway.app import GatewayDeps, create_gateway
from tests.conftest import ServeProcess

N_EXAMPLES = int(os.environ.get("CLAW_FUZZ_EXAMPLES", "3"))
CHECKS = (status_code_conformance, content_type_conformance, response_schema_conformance, negative_data_rejection)
schemathesis.serializer.alias("application/jsonl", "text/plain")
schema = schemathesis.openapi.from_dict(document())
# Every keyword of every schema in turn takes its time: CI asks for it.
schema.config.phases.coverage.enabled = "CLAW_FUZZ_EXAMPLES" in os.environ


@schema.parametrize()
@settings(
    max_examples=N_EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_call_answers_as_documented(case: Any, service: ServeProcess) -> None:
    if isinstance(case.body, dict) and isinstance(wait_s := case.body.get("wait_s"), float | int) and wait_s <= 3600:
        case.body["wait_s"] = min(wait_s, 0)
    if case.operation.path.endswith(("/learning/demo", "/api/v1/synthesis")) and isinstance(case.body, dict):
        # A run takes minutes.
        case.body |= {} if case.body.get("dry_run", False) is not False else {"dry_run": True}
    answer = case.call_and_validate(base_url=service.base_url, checks=CHECKS, timeout=60)
    called = f"{case.operation.method} {case.operation.path}".lower()
    if answer.status_code == 200 and called in ("post /api/v1/steps", "post /api/v1/imports"):
        uids = answer.json()["step_uids"]
        known = service.http.post("/api/v1/steps/known", json={"step_uids": uids}).json()["known"]
        assert set(known) == set(uids), "what was accepted is there"
    if called == "post /api/v1/policy":
        # A weight sync that was begun would hold every call that follows.
        service.http.post("/api/v1/policy", json={"version": 1, "event": "registered"}).raise_for_status()


def loose_parts(schema: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where a pydantic core schema turns other types into numbers or booleans: ``false`` into 0, ``"1"`` into 1."""
    if isinstance(schema, dict):
        # A union takes a value as what it is, if one of its choices is that; what stands inside of a choice does not.
        chosen = "choices" in path[-2:]
        if schema.get("type") in ("float", "int", "bool") and not schema.get("strict") and not chosen:
            yield path
        for key, value in schema.items():
            yield from loose_parts(value, (*path, key))
    elif isinstance(schema, list | tuple):
        for index, value in enumerate(schema):
            yield from loose_parts(value, (*path, index))


BODIES = sorted({one.body for one in operations() if isinstance(one.body, type)}, key=lambda model: model.__name__)


@pytest.mark.parametrize("model", BODIES, ids=lambda model: model.__name__)
def test_no_number_is_made_of_something_else(model: type[BaseModel]) -> None:
    assert list(loose_parts(model.__pydantic_core_schema__)) == []


def paths_of(routes: Sequence[Route]) -> set[tuple[str, str]]:
    """(method, path) of routes as they are handed to the server."""
    return {
        (method, re.sub(r":\w+}", "}", route.path))
        for route in routes
        for method in (route.methods or set()) - {"HEAD"}
    }


def test_every_route_is_described_and_nothing_else(service: ServeProcess) -> None:
    described = service.http.get("/openapi.json").json()
    assert described["servers"] == [{"url": service.base_url}]
    paths = {(method.upper(), path) for path, methods in described["paths"].items() for method in methods}
    own = paths_of(create_api(cast("ApiDeps", None))) - {("GET", "/openapi.json"), ("GET", "/docs")}
    assert paths == own | paths_of(create_gateway(cast("GatewayDeps", None)))
    assert all(operation["summary"] for methods in described["paths"].values() for operation in methods.values())


def test_every_described_path_reaches_its_handler(service: ServeProcess) -> None:
    """No answer is the router's: what names nothing is refused by the handler, in its own words."""
    for operation in operations():
        path = re.sub(r"{\w+}", "x", operation.documented_path)
        answer = service.http.request(operation.method, path, content=b"[]" if operation.method != "GET" else None)
        assert answer.status_code != 405, path
        assert "is not a route" not in answer.text, path


def test_the_docs_page_needs_nothing_from_elsewhere(service: ServeProcess) -> None:
    answer = service.http.get("/docs")
    assert answer.headers["content-type"].startswith("text/html")
    for operation in operations():
        assert operation.documented_path in answer.text
        assert operation.summary.split("'")[0] in answer.text
    assert not re.search(r"(src|href)=\"?(https?:)?//|<script|@import|url\(", answer.text)


def test_what_is_no_call_says_so_in_its_readers_shape(service: ServeProcess) -> None:
    missing = service.http.get("/api/v1/nothing")
    assert (missing.status_code, missing.json()["type"]) == (404, "not_found")
    wrong = service.http.delete("/api/v1/stats")
    assert (wrong.status_code, wrong.json()["type"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"]
    agent = service.http.post("/t/p/v1/images/generations", json={})
    assert (agent.status_code, agent.json()["error"]["code"]) == (404, "not_found")


DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
MALFORMED = {
    "truncated": b'{"steps": [{"trajectory_uid": "t", "st',
    "invalid utf-8": b'{"steps": "\xff\xfe\x00"}',
    "deep": DEEP,
    "deep list": b"[" * 200_000,
    "nan": b'{"reward": NaN, "steps": [{"reward": Infinity}]}',
    "huge integer": b'{"version": ' + b"9" * 5000 + b', "max_tokens": 1e400, "n": 99999999999999999999}',
    "lone surrogate": b'{"model": "\\ud800", "messages": [{"role": "user", "content": "\\udfff"}]}',
    "a list": b"[]",
    "a text": b'"x"',
    "null": b"null",
    "nul": b"\x00",
    "empty": b"",
    "wrong types": b'{"messages": 1, "prompt": {}, "input": 3, "steps": {}, "feedback": "x", "tools": 4, "model": []}',
    "odd messages": b'{"model": "m", "messages": [1, null, {"role": 7}, {"content": {"x": []}}, []]}',
    "odd steps": b'{"steps": [null, 1, {"trajectory_uid": {}, "step_index": "0", "prompt_ids": [2147483648, -1]}]}',
    "binary": bytes(range(256)) * 4,
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_bodies_are_the_callers_mistake(name: str, service: ServeProcess) -> None:
    """Nothing that a caller can write makes a call fail inside."""
    odd = []
    for operation in operations():
        if operation.body is None:
            continue
        method, path = operation.method, re.sub(r"{\w+}", "x", operation.documented_path)
        headers = {"content-type": "application/json"}
        answer = service.http.request(method, path, content=MALFORMED[name], headers=headers)
        if answer.status_code in (500, 502) or (answer.status_code >= 400 and not isinstance(answer.json(), dict)):
            odd.append((method, path, answer.status_code, answer.text[:200]))
    assert odd == []
    assert httpx.get(f"{service.base_url}/healthz", timeout=120).json()["ok"] is True
