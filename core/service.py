"""The running studio: opens and closes all parts in order, and owns all threads and child processes.

Opening order: data folder lock, pool, journal, ingest, engines, gateway. Closing is the reverse: the gateway finishes
its calls, the journal is flushed, ingest reads the rest, the pool closes, the lock is released.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette

from core.api import ApiDeps, create_api
from core.api.annotationqueue import AnnotationQueue
from core.api.cluster import topology
from core.api.handling import CATCH_UP_S, EXCEPTION_HANDLERS
from core.api.keys import revoke_keys
from core.api.openapi import open_paths
from core.api.produce import mint_session
from core.api.train import apply_report, end_unfinished_sync
from core.api.wire import PolicyIn, SessionIn, check
from core.backup import backup
from core.batch.leases import Leases
from core.config import Settings
from core.demo_host import DemoHost
from core.doctor import Finding, diagnose
from core.engine_changes import EngineChanges
from core.engine_host import LOCAL_ENGINE, LocalEngineHost, add_configured_engines, bounds_of, timeouts_of
from core.errors import PoolError, StudioError
from core.freememory import FreeMemory, limit_arenas
from core.gateway.access.admission import Admission
from core.gateway.access.hosts import Hosts
from core.gateway.access.ledger import Ledger
from core.gateway.access.wrong_keys import WrongKeys
from core.gateway.app import GatewayDeps, create_gateway
from core.gateway.calls.identity import KeyStore
from core.gateway.calls.policy import PolicyState, reported_events
from core.gateway.engines.registry import EngineSet
from core.gateway.http.fast_router import FastRouter
from core.gateway.http.limits import ServerLimits, raise_descriptor_limit
from core.gateway.http.server import GatewayServer
from core.gateway.telemetry.call_log import log_call
from core.gateway.telemetry.stats import GatewayStats
from core.health import Health
from core.ingest import Ingest
from core.ingest.deepcheck import DeepReport, Progress, deep_check
from core.journal import LOCAL, Journal, fetch_missing, incarnation, open_target, read_records
from core.learn_host import LearnHost
from core.owner import OwnerLock
from core.pool import Pool
from core.pool.cache.readahead import CacheWarmer
from core.pool.upkeep.compaction import Compaction
from core.pool.upkeep.recovery import check_recoverable
from core.pool.upkeep.trashedruns import uptime
from core.rebuild import restore_missing_opinions
from core.rescore_host import RescoreHost
from core.rollout_host import RolloutHost
from core.supervise import Supervisor
from core.synthesis_host import SynthesisHost
from core.tasks.demo_load import load_demo
from core.trash import TrashSweep, list_trash
from core.types import PolicyEventKind
from core.workers.fleet import Fleet

if TYPE_CHECKING:
    from core.cluster.hub import Hub
    from core.cluster.mirror import Mirror

log = logging.getLogger(__name__)

OWN_WRITER = "w0"
"""The writer's name of the main process."""
STOP_TIMEOUT_S = 20.0
HEALTH_MEND = "see the log for its start; free disk space and file descriptors, or restart the studio"
MIN_KEY_CHARS = 16


def check_key(settings: Settings) -> None:
    """StudioError if the address is reachable by others and the admin key is missing or weak."""
    nodes_are_open = settings.cluster_listen is not None and settings.node_host == "node"
    if (settings.is_loopback and not nodes_are_open) or len(settings.api_key or "") >= MIN_KEY_CHARS:
        return
    what = "without a key" if settings.api_key is None else f"with a key of fewer than {MIN_KEY_CHARS} characters"
    raise StudioError(
        f"{'each node of the cluster' if settings.is_loopback else settings.host} is open to the network {what}",
        field="api_key",
        hint="set CLAW_STUDIO_API_KEY to a long random key, or listen on 127.0.0.1",
    )


@contextmanager
def _folder_named(folder: Path) -> Iterator[None]:
    """PoolError if the system refuses a file in the data folder: read-only, wrong owner, out of inodes."""
    try:
        yield
    except OSError as error:
        where = Path(str(error.filename or "")).absolute()
        if not where.is_relative_to(folder.absolute()):
            raise
        raise PoolError(
            f"{where} can't be used: {error.strerror}",
            field="data_dir",
            hint="make the folder and its contents writable for this user, free disk space, or set "
            "CLAW_STUDIO_DATA_DIR to another folder",
        ) from error


class Service:
    """A running studio without pages. Created by ``Service.open``."""

    def __init__(
        self, settings: Settings, *, clock: Callable[[], float] = time.time, pages_address: str | None = None
    ) -> None:
        check_key(settings)
        self.settings = settings
        self.clock = clock
        self.wrong_keys = WrongKeys()
        self.pages_address = pages_address
        self._worker_token = secrets.token_hex(16)
        self._closing = ExitStack()
        with ExitStack() as opened, _folder_named(settings.data_dir):
            self._open(opened)
            self._closing = opened.pop_all()

    @classmethod
    def open(
        cls, settings: Settings, *, clock: Callable[[], float] = time.time, pages_address: str | None = None
    ) -> Service:
        """Open all parts; a failure closes what was opened. Raises AlreadyOwned, PoolError, JournalError.

        Args:
            pages_address: address at which this process serves pages, for the doctor.
        """
        return cls(settings, clock=clock, pages_address=pages_address)

    def _open(self, opened: ExitStack) -> None:
        settings = self.settings
        limit_arenas()
        lock = OwnerLock.acquire(settings.data_dir)
        opened.callback(lock.release)
        target = open_target(settings.journal_target, settings.journal_target_options)
        if target is not None and (n_bytes := fetch_missing(target, settings.journal_dir)):
            log.warning("%d bytes of the journal were missing here and copied from %s", n_bytes, target.address)
        check_recoverable(settings.pool_path, settings.journal_dir, settings.opinions_dir)
        self.pool = Pool.open(
            settings.pool_path,
            memory=settings.pool_memory,
            threads=settings.pool_threads,
            clock=self.clock,
            opinions=settings.opinions_dir,
            trash=settings.trash_dir,
            elapsed=lambda: uptime()[1],
        )
        opened.callback(self.pool.close)
        self.journal = Journal(
            settings.journal_dir,
            writer=OWN_WRITER if target is None else incarnation(OWN_WRITER),
            segment_bytes=settings.segment_bytes,
            used=self.pool.journal.positions(),
            target=target,
        )
        self.ingest = Ingest(
            settings.journal_dir,
            self.pool,
            wait=self.journal.wait,
            clock=self.clock,
            tokenizers=settings.tokenizers,
        )
        mirror = self._mirror(opened) if settings.cluster_listen is not None else None
        restore_missing_opinions(self.pool, self.ingest, settings.trash_dir)
        self.policy = PolicyState(sync_timeout_s=settings.policy_sync_timeout_s)
        unread = (record.payload for record in read_records(settings.journal_dir, self.pool.journal.positions()))
        # Before ingest starts: otherwise it would move reports from the journal to the pool meanwhile.
        self.policy.restore([*self.pool.journal.policy_events(), *reported_events(unread)])
        self.ingest.start()
        opened.callback(self._drain)
        self.fleet: Fleet | None = None
        self.cluster: Hub | None = None
        self.supervisor = Supervisor()
        self._health = Health(
            self.journal,
            self.ingest,
            pool_damage=lambda: self.pool.file.damage or self.pool.file.gone,
            ended=self.supervisor.problems,
            elsewhere=lambda: self.fleet.problems() if self.fleet is not None else (),
            nodes=lambda: self.cluster.problems() if self.cluster is not None else (),
        )
        self.supervisor.keep("the ingest thread", lambda: self.ingest.running, self.ingest.start)
        self.supervisor.keep("the journal's writer", lambda: self.journal.running, self.journal.revive)
        self.keys = KeyStore(clock=self.clock)
        self.ledger = Ledger(self._spent)
        self.keys.replay(record.payload for record in read_records(settings.journal_dir, self.pool.journal.positions()))
        self.keys.load(self.pool.journal.sessions())
        self.leases = Leases(self.pool, self.clock, lambda: uuid.uuid4().hex, self.pool.training.version_in_force)
        self.stats = GatewayStats(clock=self.clock)
        self.stats.listen(log_call)
        self.engines = EngineSet(timeouts=timeouts_of(settings), bounds=bounds_of(settings), clock=self.clock)
        self.local_engine = LocalEngineHost(settings, lambda: self.policy.weights_in_force(LOCAL_ENGINE))
        opened.callback(self.local_engine.stop)
        add_configured_engines(self.engines, settings, self.local_engine)
        self.engine_changes = EngineChanges(self.engines, settings, self.local_engine, lambda: self.fleet)
        self.engine_changes.restore()
        self.demo = DemoHost(settings, lambda: self.base_url, self._add_engine)
        opened.callback(self.demo.close)
        self.learning = LearnHost(settings, lambda: self.base_url, self._add_engine)
        self.rescoring = RescoreHost(settings, self.pool, lambda: self.base_url, self.clock)
        self.rollouts = RolloutHost(settings, lambda: self.base_url, self.clock)
        self.synthesis = SynthesisHost(
            settings,
            lambda: self.base_url,
            self.clock,
            self.rollouts.packs,
            self.rollouts.runs,
            self.pool.trajectories,
        )
        several = settings.gateways > 0
        raise_descriptor_limit()
        limits = ServerLimits.of(settings)
        # With workers this server receives only what they forward.
        app = self._app()
        self.server = (
            GatewayServer(app, limits=limits.with_workers(settings.gateways), refused=self.stats.refused)
            if several
            else GatewayServer(
                app,
                host=settings.host,
                port=settings.port,
                tls=settings.tls,
                limits=limits,
                refused=self.stats.refused,
            )
        )
        self.port = self.server.start()
        opened.callback(self.server.stop, STOP_TIMEOUT_S)
        owner_port = self.port
        self.fleet = self._start_fleet(opened) if several else None
        if mirror is not None and self.fleet is not None:
            self.cluster = self._start_hub(opened, owner_port, self.fleet, mirror)
        opened.callback(self.learning.close)
        opened.callback(self.rescoring.close)
        opened.callback(self.rollouts.close)
        opened.callback(self.synthesis.close)
        warming = CacheWarmer(self.pool.cache.warm)
        warming.start()
        opened.callback(warming.stop)
        self.supervisor.keep("the gateway's server", lambda: self.server.running, self.server.revive)
        self.supervisor.keep("the pool's warming", lambda: warming.running, warming.start)
        if (fleet := self.fleet) is not None:
            self.supervisor.keep("the gateway processes' keeper", lambda: fleet.running, fleet.revive)
        sweep = TrashSweep(settings.trash_dir, days=settings.trash_days, clock=self.clock)

        compaction = Compaction(self.pool.recovery.compact_log)
        free_memory = FreeMemory()

        def check_and_clean() -> None:
            if self.fleet is not None:
                self.fleet.look()
            self._health.check()
            sweep()
            compaction()
            free_memory()

        self.supervisor.start(check_and_clean)
        opened.callback(self.supervisor.stop)
        # Otherwise the gateway would wait for those requests.
        opened.callback(self.pool.sql.stop)
        lock.announce(self.base_url, pages_address=self.pages_address)

    def _spent(self, trajectory_uid: str) -> tuple[int, int]:
        """Calls and tokens of a trajectory in the pool, including calls answered just now."""
        self.ingest.catch_up(STOP_TIMEOUT_S)
        return self.pool.trajectories.spent(trajectory_uid)

    def _start_fleet(self, opened: ExitStack) -> Fleet:
        fleet = Fleet(
            self.settings,
            owner=f"http://127.0.0.1:{self.port}",
            token=self._worker_token,
            open_paths=open_paths(),
            keys=self.keys,
            policy=self.policy,
            stats=self.stats,
            ledger=self.ledger,
            on_journalled=self.journal.notice,
            used=lambda: list(self.pool.journal.positions()),
            local_engine=self.local_engine.ensure,
        )
        # Before they start, so that no call reaches an engine that is paused.
        self.engine_changes.tell(fleet)
        self.port = fleet.start()
        opened.callback(fleet.stop)
        self.engines.elsewhere = fleet.engine_status
        return fleet

    def _mirror(self, opened: ExitStack) -> Mirror:
        """Before ingest starts: it holds the names of writers of which more may come."""
        from core.cluster.mirror import Mirror

        settings = self.settings
        mirror = Mirror(
            settings.journal_dir,
            positions=self.pool.journal.positions,
            token=settings.cluster_token or "",
            target=open_target(settings.journal_target, settings.journal_target_options),
            on_copied=self.journal.notice,
            clock=self.clock,
        )
        opened.callback(mirror.close)
        return mirror

    def _start_hub(self, opened: ExitStack, owner_port: int, fleet: Fleet, mirror: Mirror) -> Hub:
        from core.cluster.hub import Hub

        hub = Hub(self.settings, owner_port=owner_port, fleet=fleet, mirror=mirror, clock=self.clock)
        opened.callback(hub.close)
        return hub

    def _app(self) -> Admission:
        gateway = create_gateway(
            GatewayDeps(
                settings=self.settings,
                journal=self.journal,
                engines=self.engines,
                keys=self.keys,
                policy=self.policy,
                stats=self.stats,
                ledger=self.ledger,
                clock=self.clock,
                max_body_bytes=self.settings.max_body_bytes,
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
            annotations=AnnotationQueue(self.pool.labels, lambda: self.ingest.catch_up(CATCH_UP_S)),
            base_url=lambda: self.base_url,
            clock=self.clock,
            new_uid=lambda: uuid.uuid4().hex,
            problems=self.problems,
            learning=self.learning,
            rescoring=self.rescoring,
            rollouts=self.rollouts,
            synthesis=self.synthesis,
            n_ends=self.supervisor.n_ends,
            unshipped=self.unshipped,
            cluster=lambda: None if self.cluster is None else self.cluster.status(),
            gateways=self.gateways,
            forget_node=lambda name: self.cluster is not None and self.cluster.forget(name),
            unreachable=lambda: [] if self.fleet is None else self.fleet.unreachable(),
            drain_workers=lambda timeout_s: self.fleet is None or self.fleet.drain(timeout_s),
        )
        app = Starlette(routes=[*create_api(self.api_deps), *gateway], exception_handlers=EXCEPTION_HANDLERS)
        # A path with one slash more is an item with an empty name (404), not the list's address.
        app.router.redirect_slashes = False
        return Admission(
            FastRouter(app, gateway),
            hosts=Hosts(self.settings.host, self.settings.allowed_hosts),
            api_key=self.settings.api_key,
            keys=self.keys,
            stats=self.stats,
            open_paths=open_paths(),
            cors_origins=self.settings.cors_origins,
            wrong_keys=self.wrong_keys,
            worker_token=self._worker_token,
        )

    def unshipped(self) -> tuple[int, float]:
        """Bytes that the journal's target has not confirmed yet, of all processes, and since when, seconds."""
        waiting = [self.journal.unshipped, *(self.fleet.unshipped() if self.fleet is not None else ())]
        return sum(n_bytes for n_bytes, _ in waiting), max(seconds for _, seconds in waiting)

    def gateways(self) -> list[dict[str, Any]]:
        """The gateways of this machine: its gateway processes (``Fleet.workers``), or this process without any."""
        if self.fleet is not None:
            return self.fleet.workers(None)
        copied = self.settings.journal_target != LOCAL
        n_bytes, waited_s = self.journal.unshipped if copied else (None, None)
        return [
            {
                "gateway": "studio",
                "writer": self.journal.writer,
                "pid": os.getpid(),
                "port": self.port,
                "state": "up" if self.server.running else "restarting",
                "ready": self.server.running,
                "silent": False,
                "n_restarts": self.supervisor.n_ends.get("the gateway's server", 0),
                "problem": None,
                "journal_error": self.journal.error,
                "unshipped_bytes": n_bytes,
                "unshipped_s": waited_s,
            }
        ]

    def topology(self) -> dict[str, Any]:
        """Nodes, gateways and writers, as ``GET /api/v1/cluster`` returns them: see ``core.api.cluster.topology``."""
        return topology(self.api_deps)

    @property
    def base_url(self) -> str:
        """Root URL of the gateway, ``scheme://host:port``; a wildcard address becomes loopback."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.settings.host, self.settings.host)
        host = f"[{host}]" if ":" in host else host
        return f"{self.settings.scheme}://{host}:{self.port}"

    def prepare_engines(self) -> None:
        """For long-running processes: prepare in the background what an engine's first call needs."""
        if self.fleet is None:
            self.engines.prepare()

    def close(self) -> None:
        """Close all parts in order; may be called twice."""
        self._closing.close()

    def _drain(self) -> None:
        self.ingest.catch_up(STOP_TIMEOUT_S)
        self.ingest.stop(self.journal.notice)
        self.journal.close()

    def mint_session(self, **fields: Any) -> dict[str, Any]:
        """``{api_key, base_url, trajectory_uid, ...}`` for one agent attempt; fields as in ``POST sessions``."""
        return mint_session(self.api_deps, check(SessionIn, fields))

    def revoke_keys(self, name: str) -> list[str]:
        """Revoke a session key by its key_id, or all keys of a trajectory; returns the ids of those in force."""
        return revoke_keys(self.api_deps, name)

    def backup(self, out: Path) -> dict[str, Any]:
        """Copy the data folder into a new folder: see ``core.backup.backup``."""
        settings = self.settings
        return backup(
            self.pool,
            settings.journal_dir,
            out,
            clock=self.clock,
            opinions_dir=settings.opinions_dir,
            data_dir=settings.data_dir,
        )

    def deep_check(self, progress: Progress | None = None) -> DeepReport:
        """Compare every step with its journal record and its hash: see ``core.ingest.deepcheck``."""
        settings = self.settings
        return deep_check(self.pool, settings.journal_dir, tokenizers=settings.tokenizers, progress=progress)

    def problems(self) -> list[dict[str, Any]]:
        """Current problems of capture and ingest: see ``Health.problems``."""
        return self._health.problems()

    def trash(self) -> list[dict[str, Any]]:
        """Retention runs that can be restored, newest first: see ``core.trash.list_trash``."""
        return list_trash(self.settings.trash_dir, days=self.settings.trash_days)

    def health(self) -> list[dict[str, Any]]:
        """The doctor's findings about this running service."""
        running = [
            Finding(one["part"], "bad" if one["stops"] else "warn", one["message"], HEALTH_MEND)
            for one in self.problems()
        ]
        sync = self.policy.sync_json()
        diagnosed = diagnose(self.settings, port_is_ours=True, sync=sync, pages_address=self.pages_address)
        return [finding.as_dict() for finding in [*running, *diagnosed]]

    def end_sync(self) -> None:
        """End an unfinished weight sync; the version before it stays active. Conflict if there is none."""
        end_unfinished_sync(self.api_deps)

    def finish_sync(self, version: int) -> None:
        """Report in place of a trainer that the weights of ``version`` are active."""
        apply_report(self.api_deps, PolicyIn(version=version, event=PolicyEventKind.SYNC_FINISHED))

    def load_demo(self) -> dict[str, Any]:
        """Append the shipped demo steps to the journal and wait until they are in the pool. Idempotent."""
        result = load_demo(self.journal, clock=self.clock)
        self.ingest.catch_up(60.0)
        return result

    def _add_engine(self, name: str, base_url: str, models: list[str]) -> None:
        self.engines.add(name, base_url, models=models)
        if self.fleet is not None:
            self.fleet.add_engine(name, base_url, models=models)


_current: Service | None = None
_current_lock = threading.Lock()


def current() -> Service | None:
    """The service of this process, or None. Pages use this function and never open a service."""
    return _current


def open_current(settings: Settings, *, pages_address: str | None = None) -> Service:
    """Open the service of this process once; a second call (hot reload, second lifespan) returns the same."""
    global _current
    with _current_lock:
        if _current is None:
            _current = Service.open(settings, pages_address=pages_address)
        return _current


def close_current() -> None:
    """Close the service of this process, if there is one."""
    global _current
    with _current_lock:
        service, _current = _current, None
    if service is not None:
        service.close()
