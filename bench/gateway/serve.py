"""Runs a gateway without pool, for benchmarks; stops when stdin ends.

python bench/gateway/serve.py DATA_DIR UPSTREAM_URL [N_PROCESSES]
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from starlette.applications import Starlette

from core.config import Settings
from core.garbage import settle_memory
from core.gateway.access.ledger import Ledger
from core.gateway.app import GatewayDeps, create_gateway
from core.gateway.calls.identity import KeyStore
from core.gateway.calls.policy import PolicyState
from core.gateway.engines.registry import EngineSet
from core.gateway.http.fast_router import FastRouter
from core.gateway.http.server import GatewayServer
from core.gateway.telemetry.stats import GatewayStats
from core.journal import Journal
from core.workers import Fleet


def one(data: Path, upstream: str) -> Callable[[], None]:
    """In this process. Returns what ends it."""
    journal = Journal(data / "journal")
    engines = EngineSet()
    engines.add("bench", upstream)
    deps = GatewayDeps(
        settings=Settings(data_dir=data),
        journal=journal,
        engines=engines,
        keys=KeyStore(),
        policy=PolicyState(),
        stats=GatewayStats(clock=time.time),
    )
    routes = create_gateway(deps)
    server = GatewayServer(FastRouter(Starlette(routes=routes), routes))
    ready(server.start())

    def stop() -> None:
        server.stop(5.0)
        journal.close()

    return stop


def several(data: Path, upstream: str, n: int) -> Callable[[], None]:
    """Run the servers in separate processes."""
    fleet = Fleet(
        Settings(data_dir=data, engine=upstream, gateways=n, port=0),
        owner="http://127.0.0.1:9",
        token="bench",
        open_paths=(),
        keys=KeyStore(),
        policy=PolicyState(),
        stats=GatewayStats(clock=time.time),
        ledger=Ledger(),
        on_journalled=lambda: None,
        used=lambda: (),
        local_engine=lambda: "",
    )
    ready(fleet.start())
    return fleet.stop


def ready(port: int) -> None:
    settle_memory()
    print(json.dumps({"ready": True, "port": port}), flush=True)


def main() -> None:
    data, upstream, *n = sys.argv[1:]
    stop = several(Path(data), upstream, int(n[0])) if n else one(Path(data), upstream)
    sys.stdin.read()
    stop()


if __name__ == "__main__":
    main()
