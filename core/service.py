"""Opens and closes everything in the right order; the one place that owns threads and child processes.

Order of opening: data folder lock, pool, journal, ingest, engines, gateway. Closing goes the other way: the gateway
finishes its calls, the journal is flushed, ingest takes what is left, the pool closes, the lock goes last.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from starlette.applications import Starlette

from core.api import ApiDeps, create_api
from core.api.handling import EXCEPTION_HANDLERS
from core.api.produce import mint_session
from core.api.wire import SessionIn, check
from core.batch.leases import Leases
from core.config import Settings
from core.doctor import diagnose
from core.engine_host import LocalEngineHost, add_configured_engines, timeouts_of
from core.errors import StudioError
from core.gateway.app import GatewayDeps, create_gateway
from core.gateway.calllog import log_call
from core.gateway.engines import EngineSet
from core.gateway.front import Front
from core.gateway.identity import KeyStore
from core.gateway.policy import PolicyState
from core.gateway.server import GatewayServer
from core.gateway.stats import GatewayStats
from core.ingest import Ingest
from core.journal import Journal, read_records
from core.owner import OwnerLock
from core.pool import Pool
from core.pool.warming import Warming
from core.serving.process import EngineProcess
from core.tasks.demo import DemoRun, demo_script_path
from core.tasks.demo_load import load_demo
from core.workers import Fleet

log = logging.getLogger(__name__)

DEMO_ENGINE = "demo"
DEMO_MODELS = ["demo-*"]
STOP_TIMEOUT_S = 20.0


class Service:
    """A running studio without its screen. Build one with ``Service.open``."""

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.time) -> None:
        if not settings.is_loopback and settings.api_key is None:
            raise StudioError(
                f"{settings.host} is open to the network without a key",
                field="api_key",
                hint="set CLAW_STUDIO_API_KEY, or listen on 127.0.0.1",
            )
        self.settings = settings
        self.clock = clock
        self._closing = ExitStack()
        self._demo: DemoRun | None = None
        self._demo_engine: EngineProcess | None = None
        self._demo_lock = threading.Lock()
        with ExitStack() as opened:
            self._open(opened)
            self._closing = opened.pop_all()

    @classmethod
    def open(cls, settings: Settings, *, clock: Callable[[], float] = time.time) -> Service:
        """Open all parts; a failure closes what was opened. Raises AlreadyOwned, PoolError, JournalError."""
        return cls(settings, clock=clock)

    def _open(self, opened: ExitStack) -> None:
        settings = self.settings
        lock = OwnerLock.acquire(settings.data_dir)
        opened.callback(lock.release)
        self.pool = Pool.open(
            settings.pool_path, memory=settings.pool_memory, threads=settings.pool_threads, clock=self.clock
        )
        opened.callback(self.pool.close)
        self.journal = Journal(settings.journal_dir, segment_bytes=settings.segment_bytes)
        self.ingest = Ingest(
            settings.journal_dir,
            self.pool,
            wait=self.journal.wait,
            clock=self.clock,
            tokenizers=settings.tokenizers,
        )
        self.ingest.start()
        opened.callback(self._drain)
        self.keys = KeyStore()
        self.keys.replay(record.payload for record in read_records(settings.journal_dir, self.pool.positions()))
        self.keys.load(self.pool.sessions())
        self.policy = PolicyState()
        self.policy.restore(list(self.pool.policy_events()))
        self.leases = Leases(self.pool, self.clock, lambda: uuid.uuid4().hex, lambda: self.policy.version)
        self.stats = GatewayStats(clock=self.clock)
        self.stats.listen(log_call)
        self.engines = EngineSet(timeouts=timeouts_of(settings), clock=self.clock)
        self.local_engine = LocalEngineHost(settings)
        opened.callback(self.local_engine.stop)
        add_configured_engines(self.engines, settings, self.local_engine)
        opened.callback(self._stop_demo)
        several = settings.gateways > 1
        # Beside workers, which pass on to it what is no model call, this server is theirs alone.
        app = self._app()
        self.server = GatewayServer(app) if several else GatewayServer(app, host=settings.host, port=settings.port)
        self.port = self.server.start()
        opened.callback(self.server.stop, STOP_TIMEOUT_S)
        self.fleet = self._start_fleet(opened) if several else None
        warming = Warming(self.pool.warm)
        warming.start()
        opened.callback(warming.stop)
        lock.announce(self.base_url)

    def _start_fleet(self, opened: ExitStack) -> Fleet:
        fleet = Fleet(
            self.settings,
            owner=f"http://127.0.0.1:{self.port}",
            keys=self.keys,
            policy=self.policy,
            stats=self.stats,
            on_journalled=self.journal.notice,
            local_engine=self.local_engine.ensure,
        )
        self.port = fleet.start()
        opened.callback(fleet.stop)
        self.engines.elsewhere = fleet.engine_status
        return fleet

    def _app(self) -> Front:
        gateway = create_gateway(
            GatewayDeps(
                settings=self.settings,
                journal=self.journal,
                engines=self.engines,
                keys=self.keys,
                policy=self.policy,
                stats=self.stats,
                clock=self.clock,
            )
        )
        self.api_deps = ApiDeps(
            settings=self.settings,
            journal=self.journal,
            pool=self.pool,
            ingest=self.ingest,
            keys=self.keys,
            policy=self.policy,
            stats=self.stats,
            engines=self.engines,
            leases=self.leases,
            base_url=lambda: self.base_url,
            clock=self.clock,
            new_uid=lambda: uuid.uuid4().hex,
        )
        app = Starlette(routes=[*create_api(self.api_deps), *gateway], exception_handlers=EXCEPTION_HANDLERS)
        return Front(app, gateway)

    @property
    def base_url(self) -> str:
        """Root of the gateway, ``http://host:port``; a wildcard address is named by loopback."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "::1": "[::1]"}.get(self.settings.host, self.settings.host)
        return f"http://{host}:{self.port}"

    def prepare_engines(self) -> None:
        """For who stays: begin in the background what an engine's first call would wait for."""
        if self.fleet is None:
            self.engines.prepare()

    def close(self) -> None:
        """Close all parts in order; harmless when already closed."""
        self._closing.close()

    def _drain(self) -> None:
        self.ingest.catch_up(STOP_TIMEOUT_S)
        self.ingest.stop(self.journal.notice)
        self.journal.close()

    def mint_session(self, **fields: Any) -> dict[str, Any]:
        """``{api_key, base_url, trajectory_uid, ...}`` for one agent attempt; fields as in ``POST sessions``."""
        return mint_session(self.api_deps, check(SessionIn, fields))

    def health(self) -> list[dict[str, Any]]:
        """The doctor's findings about this running service."""
        return [finding.as_dict() for finding in diagnose(self.settings, port_is_ours=True)]

    def load_demo(self) -> dict[str, Any]:
        """Append the shipped demo steps to the journal and wait until they are readable; twice changes nothing."""
        result = load_demo(self.journal, clock=self.clock)
        self.ingest.catch_up(60.0)
        return result

    def run_demo(self, n_rollouts: int = 4, *, seed: int = 0) -> DemoRun:
        """Start the demo agent live against the scripted demo engine; a run in progress is returned as it is."""
        with self._demo_lock:
            if self._demo is not None and self._demo.status()["running"]:
                return self._demo
            if self._demo_engine is None or not self._demo_engine.alive:
                engine = EngineProcess.start("scripted", args=["--script", str(demo_script_path())])
                engine.wait_ready()
                self._demo_engine = engine
                self.engines.add(DEMO_ENGINE, engine.base_url, models=DEMO_MODELS)
                if self.fleet is not None:
                    self.fleet.add_engine(DEMO_ENGINE, str(engine.base_url), models=DEMO_MODELS)
            self._demo = DemoRun(self.base_url, n_rollouts=n_rollouts, seed=seed, api_key=self.settings.api_key)
            self._demo.start()
            return self._demo

    def demo_status(self) -> dict[str, Any]:
        """``{running, done, total, error}`` of the newest demo run."""
        if self._demo is None:
            return {"running": False, "done": 0, "total": 0, "error": None}
        return self._demo.status()

    def _stop_demo(self) -> None:
        if self._demo is not None:
            self._demo.stop()
        if self._demo_engine is not None:
            self._demo_engine.stop()


_current: Service | None = None
_current_lock = threading.Lock()


def current() -> Service | None:
    """The service of this process, or None. Pages use this; they never open one."""
    return _current


def open_current(settings: Settings) -> Service:
    """Open the service of this process once; a second call (hot reload, second lifespan) returns the same."""
    global _current
    with _current_lock:
        if _current is None:
            _current = Service.open(settings)
        return _current


def close_current() -> None:
    """Close the service of this process, if there is one."""
    global _current
    with _current_lock:
        service, _current = _current, None
    if service is not None:
        service.close()
