"""A gateway alone: ``python -m tests.gateway.serve_alone JOURNAL_DIR UPSTREAM_URL``; stops at stdin's end."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from starlette.applications import Starlette

from core.config import Settings
from core.gateway.app import GatewayDeps, create_gateway
from core.gateway.calls.identity import KeyStore
from core.gateway.calls.policy import PolicyState
from core.gateway.engines.registry import EngineSet
from core.gateway.http.fast_router import FastRouter
from core.gateway.http.server import GatewayServer
from core.gateway.telemetry.stats import GatewayStats
from core.journal import Journal


def main() -> None:
    journal, engines = Journal(Path(sys.argv[1])), EngineSet()
    engines.add("engine", sys.argv[2])
    deps = GatewayDeps(
        settings=Settings(),
        journal=journal,
        engines=engines,
        keys=KeyStore(),
        policy=PolicyState(),
        stats=GatewayStats(clock=time.time),
    )
    routes = create_gateway(deps)
    server = GatewayServer(FastRouter(Starlette(routes=routes), routes))
    print(json.dumps({"port": server.start()}), flush=True)
    sys.stdin.read()
    server.stop(5.0)
    journal.close()


if __name__ == "__main__":
    main()
