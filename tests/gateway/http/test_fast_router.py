"""The short way leads where the router would have led."""

from __future__ import annotations

import asyncio

import pytest
from starlette.applications import Starlette
from starlette.routing import Match, Route

from core.config import Settings
from core.gateway.app import GatewayDeps, create_gateway
from core.gateway.calls.identity import KeyStore
from core.gateway.calls.policy import PolicyState
from core.gateway.engines.registry import EngineSet
from core.gateway.http.fast_router import FastRouter
from core.gateway.telemetry.stats import GatewayStats
from core.journal import Journal

PATHS = [
    *("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/v1/messages/count_tokens"),
    *("/t/p/v1/chat/completions", "/api/v1/v1/messages", "/t/p/v1/responses/input_tokens", "/a b/ü/v1/completions"),
    *("/clawr1-1/p/v1/chat/completions", "/clawr1-1/p/v1/messages", "/clawr1-/p/v1/chat/completions"),
    *("/v1", "/v1/", "/v1/models", "/v1/nothing", "//p/v1/messages", "/t//v1/messages", "/t/p/q/v1/messages"),
    *("/v1/messages/", "/t/p/v1//messages", "/v1/v1/v1/messages", "chat/completions", "/"),
    *("/t/p/v2/messages", "/t/p/v1", "/v1/chat/completions/x", "messages", "/messages"),
]


@pytest.fixture
def routes(tmp_path):
    journal = Journal(tmp_path)
    yield create_gateway(
        GatewayDeps(
            settings=Settings(),
            journal=journal,
            engines=EngineSet(),
            keys=KeyStore(),
            policy=PolicyState(),
            stats=GatewayStats(clock=lambda: 0.0),
        )
    )
    journal.close()


def kind(endpoint):
    """Each prefix has endpoints of its own, which do the same."""
    dialect = getattr(endpoint, "_dialect", None) or endpoint.dialect
    return type(endpoint), dialect.name, dialect.relays


@pytest.mark.parametrize("method", ["POST", "GET", "PUT"])
@pytest.mark.parametrize("path", PATHS)
def test_every_path_reaches_the_endpoint_that_the_router_gives_it(routes, path, method):
    scope = {"type": "http", "method": method, "path": path, "headers": [], "root_path": ""}
    routed = None
    for route in routes:
        match, child_scope = route.matches(scope)
        if match is Match.FULL:
            routed = (route.endpoint, child_scope["path_params"])
            break

    reached = []

    async def rest(scope, receive, send):
        reached.append(routed)

    def spied(route):
        async def endpoint(scope, receive, send):
            reached.append((route.endpoint, scope["path_params"]))

        spy = Route(route.path, lambda request: None, methods=list(route.methods))
        spy.endpoint = endpoint
        return spy

    asyncio.run(FastRouter(rest, [spied(route) for route in routes])(scope, None, None))
    (got,) = reached
    if got is None or routed is None:
        assert got is routed is None
    else:
        assert kind(got[0]) == kind(routed[0]) and dict(got[1]) == routed[1]


def test_what_it_leaves_is_served_by_the_application(routes):
    front = FastRouter(Starlette(routes=routes), routes)
    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/nothing", "headers": [], "query_string": b"", "root_path": ""}
    asyncio.run(front(scope, None, send))
    assert sent[0]["status"] == 404
