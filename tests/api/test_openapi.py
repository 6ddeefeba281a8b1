"""The OpenAPI document against the routes, and the routes against the document: schemathesis asks what it allows."""

from __future__ import annotations

import os
import re
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from core.api.openapi import document, operations
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
    answer = case.call_and_validate(base_url=service.base_url, checks=CHECKS, timeout=60)
    called = f"{case.operation.method} {case.operation.path}".lower()
    if answer.status_code == 200 and called in ("post /api/v1/steps", "post /api/v1/imports"):
        uids = answer.json()["step_uids"]
        known = service.http.post("/api/v1/steps/known", json={"step_uids": uids}).json()["known"]
        assert set(known) == set(uids), "what was accepted is there"
    if called == "post /api/v1/policy":
        # A weight sync that was begun would hold every call that follows.
        service.http.post("/api/v1/policy", json={"version": 1, "event": "registered"}).raise_for_status()


def routes_of(service: ServeProcess) -> set[tuple[str, str]]:
    from core.api import batches, clawr1, data, feedback, keys, produce, read, recipes, train, views
    from core.gateway.app import PREFIXES

    api = (batches, data, feedback, keys, produce, read, recipes, train, views)
    found = {(method, f"/api/v1{path}") for module in api for method, path, _ in module.ROUTES}
    found |= {
        (method, path) for module_routes in (read.ROOT_ROUTES, clawr1.ROUTES) for method, path, _ in module_routes
    }
    assert PREFIXES == ("/v1", "/{trajectory_uid}/{prompt_uid}/v1")
    return {(method, re.sub(r":\w+}", "}", path)) for method, path in found}


def test_every_route_is_described_and_nothing_else(service: ServeProcess) -> None:
    described = {(method, path) for method, path, _, tag in operations() if tag != "capture"}
    assert described == routes_of(service)
    served = service.http.get("/openapi.json").json()
    assert served["servers"] == [{"url": service.base_url}]
    assert {(method.upper(), path) for path, methods in served["paths"].items() for method in methods} == {
        (method, path) for method, path, _, _ in operations()
    }


def test_every_captured_path_is_served(service: ServeProcess) -> None:
    for method, path, _, tag in operations():
        if tag == "capture":
            asked = re.sub(r"{\w+}", "x", path)
            answer = service.http.request(method, asked, content=b"{}" if method == "POST" else None)
            assert answer.status_code != 405, path
            assert "is no call" not in answer.text, path


def test_the_docs_page_needs_nothing_from_elsewhere(service: ServeProcess) -> None:
    answer = service.http.get("/docs")
    assert answer.headers["content-type"].startswith("text/html")
    for _, path, operation, _ in operations():
        assert path in answer.text
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
    for method, path, operation, _ in operations():
        if operation.body is None:
            continue
        asked = re.sub(r"{\w+}", "x", path)
        headers = {"content-type": "application/json"}
        answer = service.http.request(method, asked, content=MALFORMED[name], headers=headers)
        if answer.status_code in (500, 502) or (answer.status_code >= 400 and not isinstance(answer.json(), dict)):
            odd.append((method, asked, answer.status_code, answer.text[:200]))
    assert odd == []
    assert httpx.get(f"{service.base_url}/healthz", timeout=120).json()["ok"] is True
