from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from starlette.applications import Starlette

from core.config import Settings
from core.gateway.access.admission import Admission
from core.gateway.access.hosts import Hosts
from core.gateway.app import GatewayDeps, create_gateway
from core.gateway.calls.identity import KeyStore
from core.gateway.calls.policy import PolicyState
from core.gateway.engines.registry import EngineSet
from core.gateway.http.server import GatewayServer
from core.gateway.telemetry.stats import GatewayStats
from core.gateway.transport.connection import Bounds
from core.gateway.transport.connection_pool import Timeouts
from core.journal import Journal, read_records
from core.records import parse
from core.serving.process import EngineProcess
from tests.conftest import PATIENCE_S
from tests.gateway.upstream import Upstream


class Gateway:
    """A whole gateway on a free port, its journal readable as dicts."""

    def __init__(
        self,
        directory: Path,
        *,
        timeout_s: float = 20.0,
        timeouts: Timeouts | None = None,
        bounds: Bounds | None = None,
        limits: dict[str, Any] | None = None,
        journal: Callable[[Path], Journal] = Journal,
        **settings: Any,
    ) -> None:
        self.directory = directory
        self.journal = journal(directory)
        self.engines = EngineSet(timeout_s=timeout_s, timeouts=timeouts, bounds=bounds)
        self.keys = KeyStore()
        self.policy = PolicyState()
        self.stats = GatewayStats(clock=time.time)
        self.deps = deps = GatewayDeps(
            settings=Settings(**settings),
            journal=self.journal,
            engines=self.engines,
            keys=self.keys,
            policy=self.policy,
            stats=self.stats,
            **(limits or {}),
        )
        app = Admission(
            Starlette(routes=create_gateway(deps)),
            hosts=Hosts("127.0.0.1"),
            api_key=deps.settings.api_key,
            keys=self.keys,
            stats=self.stats,
            open_paths={"/health"},
        )
        self.server = GatewayServer(app)
        self.root = f"http://127.0.0.1:{self.server.start()}"
        self.http = httpx.Client(base_url=self.root, timeout=PATIENCE_S)

    def records(self) -> list[dict[str, Any]]:
        return [parse(record.payload) for record in read_records(self.directory, {})]

    def wait_records(self, count: int, timeout_s: float = PATIENCE_S) -> list[dict[str, Any]]:
        deadline = time.monotonic() + timeout_s
        while len(self.records()) < count and time.monotonic() < deadline:
            time.sleep(0.02)
        records = self.records()
        assert len(records) == count
        return records

    def sdk(self, key: str = "unused", prefix: str = "", **kwargs: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.root}{prefix}/v1", api_key=key, max_retries=0, **kwargs)

    def chat(self, headers: dict[str, str] | None = None, prefix: str = "", **body: Any) -> httpx.Response:
        body = {"model": "policy", "messages": [{"role": "user", "content": "hi"}], **body}
        return self.http.post(f"{prefix}/v1/chat/completions", json=body, headers=headers)

    def stop(self, timeout_s: float = 5.0) -> None:
        self.http.close()
        self.server.stop(timeout_s)
        self.journal.close()


@pytest.fixture(scope="session")
def shared_upstream() -> Iterator[Upstream]:
    server = Upstream().start()
    yield server
    server.stop()


@pytest.fixture
def upstream(shared_upstream: Upstream) -> Upstream:
    shared_upstream.reset()
    return shared_upstream


@pytest.fixture(scope="session")
def stopping() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Servers that stop while the next test runs: each needs some tenths of a second of mere waiting."""
    with ThreadPoolExecutor(8) as pool:
        stops: list[Future[None]] = []
        yield lambda stop: stops.append(pool.submit(stop))
    for stop in stops:
        stop.result()


@pytest.fixture
def make_gateway(tmp_path: Path, stopping: Callable[[Callable[[], None]], None]) -> Iterator[Callable[..., Gateway]]:
    made: list[Gateway] = []

    def make(upstream: Upstream | None = None, *, streaming: str = "auto", **kwargs: Any) -> Gateway:
        gateway = Gateway(tmp_path / f"journal{len(made)}", **kwargs)
        made.append(gateway)
        if upstream is not None:
            gateway.engines.add("engine", upstream.base_url, streaming=streaming)
        return gateway

    yield make
    for gateway in made:
        stopping(gateway.stop)


@pytest.fixture(scope="module")
def process() -> Iterator[EngineProcess]:
    """The scripted engine that ships, in a process of its own."""
    with EngineProcess.start("scripted") as running:
        yield running


@pytest.fixture
def scripted(make_gateway: Callable[..., Gateway], process: EngineProcess) -> Gateway:
    """A gateway whose engine is ``process``."""
    gateway = make_gateway()
    gateway.engines.add("scripted", str(process.base_url))
    return gateway


def script(process: EngineProcess, *rules: dict[str, Any], **more: Any) -> httpx.Client:
    """Give the scripted engine its rules; returns a client of the engine."""
    engine = httpx.Client(base_url=str(process.base_url).removesuffix("/v1"), timeout=30)
    engine.put("/__script", json={"rules": list(rules), **more}).raise_for_status()
    return engine


@pytest.fixture
def gateway(make_gateway: Callable[..., Gateway], upstream: Upstream) -> Gateway:
    return make_gateway(upstream)
