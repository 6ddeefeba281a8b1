"""Starts and restarts gateway workers, and sends them changes. Runs in the owner process.

All workers listen on one port; the kernel distributes connections. Each writes separate segments into the shared
journal folder. A call that changes keys or the policy returns after every worker has applied the change. A worker that
ends is restarted; the calls that it has answered are in its segments.

Workers on other machines are started there, and served here over a connection (``serve_remote``). They hold calls while
the owner can't be reached (``core.workers.fence``), so a change is in force there too when its call returns.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from core.config import Settings
from core.errors import KeySpent, StudioError
from core.gateway.access.keys import KeyStore
from core.gateway.access.ledger import Ledger
from core.gateway.calls.policy import PolicyState
from core.gateway.http.server import bind, check_tls
from core.gateway.telemetry.stats import GatewayStats
from core.journal import LOCAL, incarnation
from core.journal.lock import is_held
from core.workers.fence import LEASE_S
from core.workers.lost import LostWorkers
from core.workers.pipe import messages
from core.workers.process import GatewayProcess, WorkerProcess
from core.workers.spawn import worker_process

START_TIMEOUT_S: Final = 90.0
ACK_TIMEOUT_S: Final = 5.0
STOP_TIMEOUT_S: Final = 30.0
BACKOFF_S: Final = (0.1, 0.5, 2.0, 10.0)
HUNG_LOOKS: Final = 240
"""Looks after which a silent worker is killed and restarted."""
STEADY_S: Final = 30.0
"""A worker that ran longer than this is restarted at once, seconds."""

log = logging.getLogger(__name__)


class Fleet:
    """Gateway workers on one port.

    Args:
        settings: settings of the workers, and their number; ``port`` 0 takes a free port.
        owner: root URL of the owner's server, which serves everything but model calls.
        token: proves to that server that a worker forwarded a request.
        open_paths: paths that need no key.
        keys, policy: of the owner; changes are sent to the workers.
        stats: counters to which those of the workers are added.
        ledger: budgets of keys; workers ask it before each call.
        on_journalled: called when a worker has synced records.
        used: names of the segments that were read, see ``Journal``.
        local_engine: returns the embedded engine's address and starts it if needed; called in a thread.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        owner: str,
        token: str,
        open_paths: Collection[str],
        keys: KeyStore,
        policy: PolicyState,
        stats: GatewayStats,
        ledger: Ledger,
        on_journalled: Callable[[], None],
        used: Callable[[], Sequence[str]],
        local_engine: Callable[[], str],
    ) -> None:
        self.names = [f"g{number}" for number in range(1, settings.gateways + 1)]
        self.restarts: Counter[str] = Counter()
        """How often each worker of this machine was started again."""
        self.port = 0
        self._settings = settings
        self._owner = owner
        self._token = token
        self._open_paths = sorted(open_paths)
        self._keys = keys
        self._policy = policy
        self._stats = stats
        self._ledger = ledger
        self._on_journalled = on_journalled
        self._used = used
        self._local_engine = local_engine
        self._engines: list[dict[str, Any]] = []
        self._paused: list[str] = []
        self._engine_status: dict[str, list[dict[str, Any]]] = {}
        self._journal_errors: dict[str, str] = {}
        self._unshipped: dict[str, tuple[int, float]] = {}
        self._lost = LostWorkers()
        self._late: dict[str, int] = {}
        """Workers that did not apply a change in time, and its number."""
        self._reserved: socket.socket | None = None
        self._processes: dict[str, WorkerProcess] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._n_sent = 0
        self._n_drains = 0
        self._stopping = threading.Event()
        self._state_changed = threading.Condition()

    def start(self) -> int:
        """Start all workers and wait until each accepts calls.

        Returns:
            The workers' port.

        Raises:
            StudioError: the address is in use or not local, or a worker did not start.
        """
        # Binding without SO_REUSEPORT first shows whether another program has the port.
        check_tls(self._settings.tls)
        bind(self._settings.host, self._settings.port).close()
        self._reserved = bind(self._settings.host, self._settings.port, shared=True)
        self.port = int(self._reserved.getsockname()[1])
        self._keys.listen(lambda row: self._broadcast({"do": "key", "row": row}))
        self._policy.listen(
            lambda event: self._broadcast({"do": "policy", "event": asdict(event)}),
            on_ended=lambda: self._broadcast({"do": "sync_ended"}),
        )
        self._await_writers()
        self.revive()
        deadline = time.monotonic() + START_TIMEOUT_S
        with self._state_changed:
            while len(ready := [p for p in self._processes.values() if p.ready]) < len(self.names):
                failed = next((p.failure for p in self._processes.values() if p.failure), None)
                if failed is not None or not self._state_changed.wait(max(0.0, deadline - time.monotonic())):
                    break
        if len(ready) < len(self.names):
            self.stop()
            raise StudioError(f"a gateway process did not start: {failed or 'see its log'}", field="gateways")
        return self.port

    def _await_writers(self) -> None:
        """Wait while workers of an owner that was killed finish their calls: each holds its journal until then."""

        def held() -> list[str]:
            return [name for name in self.names if is_held(self._settings.journal_dir, name)]

        deadline = time.monotonic() + STOP_TIMEOUT_S
        if names := held():
            log.warning("waiting for calls in flight of gateway processes %s, whose studio ended", ", ".join(names))
        while held() and time.monotonic() < deadline and not self._stopping.wait(0.1):
            pass

    @property
    def running(self) -> bool:
        """Whether every worker has a running thread."""
        return self._stopping.is_set() or all(thread.is_alive() for thread in self._threads.values())

    def revive(self) -> None:
        """Restart the threads that have ended."""
        for name in self.names:
            if name not in self._threads or not self._threads[name].is_alive():
                thread = threading.Thread(target=self._keep, args=(name,), name=f"worker-{name}", daemon=True)
                self._threads[name] = thread
                thread.start()

    def look(self) -> None:
        """Count the looks since each worker's last sign of life, and kill one that hangs. Call it twice a second.

        Looks are counted, not seconds: while this process is stopped, it can't hear a worker.
        """
        with self._state_changed:
            running = [process for process in self._processes.values() if process.ready]
        for process in running:
            process.n_missed += 1
            if process.n_missed == HUNG_LOOKS:
                log.error("gateway process %s (%d) hangs; it is killed", process.name, process.popen.pid)
                process.popen.kill()

    def problems(self) -> list[str]:
        """One line for each worker of this machine that can't write its journal, hangs, or does not accept calls."""
        with self._state_changed:
            away = [name for name in self.names if name not in self._processes or not self._processes[name].ready]
            here = [p for p in self._processes.values() if p.node is None]
            silent = [p for p in here if p.ready and p.silent]
        problems = [f"gateway process {name} does not accept calls" for name in away if not self._stopping.is_set()]
        problems += [f"gateway process {p.name} ({p.popen.pid}) is stopped or hangs" for p in silent]
        errors = dict(self._journal_errors)
        return problems + [f"gateway process {name}: {errors[name]}" for name in self.names if name in errors]

    def add_engine(self, name: str, base_url: str | None, *, models: Sequence[str], **how: Any) -> None:
        """Add an engine to every worker, including those that start later. ``how``: arguments of ``EngineSet.add``."""
        engine = {"name": name, "base_url": base_url, "models": list(models), **how}
        if engine.get("concurrency") is not None:
            engine["concurrency"] = _part(engine["concurrency"], self._settings.gateways)
        with self._state_changed:
            self._engines = [one for one in self._engines if one["name"] != name] + [engine]
        self._broadcast({"do": "engine", "engine": engine})

    def remove_engine(self, name: str) -> None:
        """Remove an engine that was added from every worker."""
        with self._state_changed:
            self._engines = [one for one in self._engines if one["name"] != name]
        self._broadcast({"do": "engine_removed", "name": name})

    def pause_engines(self, names: Collection[str]) -> None:
        """Set which engines take no new calls, in every worker, including those that start later."""
        with self._state_changed:
            self._paused = sorted(names)
        self._broadcast({"do": "engines_paused", "names": sorted(names)})

    def drain(self, timeout_s: float) -> bool:
        """Wait until the calls that the workers had in flight have ended, while a weight sync holds new ones back.

        Returns:
            Whether they have ended within ``timeout_s``.
        """
        with self._state_changed:
            self._n_drains += 1
            number = self._n_drains
        self._broadcast({"do": "drain", "number": number})
        deadline = time.monotonic() + timeout_s
        with self._state_changed:
            while any(p.ready and p.drained < number for p in self._processes.values()):
                if not self._state_changed.wait(max(0.0, deadline - time.monotonic())):
                    return False
        return True

    def engine_status(self) -> list[list[dict[str, Any]]]:
        """The last reported ``EngineSet.status()`` of each worker."""
        return list(self._engine_status.values())

    def unshipped(self) -> list[tuple[int, float]]:
        """What each worker's journal target has not confirmed for a second: bytes, seconds."""
        return list(self._unshipped.values())

    def pids(self) -> dict[str, int]:
        """Process ids of this machine's workers that accept calls."""
        with self._state_changed:
            return {name: p.popen.pid for name, p in self._processes.items() if p.ready and p.node is None}

    def workers(self, node: str | None) -> list[dict[str, Any]]:
        """The workers of a machine, None for this one.

        Each is ``{gateway, writer, pid, port, state, ready, silent, n_restarts, problem, journal_error,
        unshipped_bytes, unshipped_s}``. ``state`` is ``up``, ``silent``, ``starting`` or ``restarting``. Unshipped are
        bytes that the journal's target has not confirmed, and for how many seconds; None with the target ``local``.
        """
        copied = self._settings.journal_target != LOCAL
        listed = []
        with self._state_changed:
            for p in self._processes.values():
                if p.node != node:
                    continue
                n_bytes, waited_s = self._unshipped.get(p.name, (0, 0.0)) if copied else (None, None)
                listed.append(
                    {
                        "gateway": p.slot,
                        "writer": p.name,
                        "pid": p.popen.pid,
                        "port": p.port if p.node is not None else self.port,
                        "state": p.state,
                        "ready": p.ready,
                        "silent": p.silent,
                        "n_restarts": self.restarts[p.name] if p.node is None else None,
                        "problem": p.failure,
                        "journal_error": self._journal_errors.get(p.name),
                        "unshipped_bytes": n_bytes,
                        "unshipped_s": waited_s,
                    }
                )
        return listed

    def unreachable(self) -> list[str]:
        """Machines with a worker that has not applied the last change. It holds calls until it has."""
        with self._state_changed:
            serving = {p.node for p in self._processes.values() if p.ready and not p.silent}
            lost = self._lost.nodes() - serving
            late = {
                p.node for p in self._processes.values() if p.node is not None and p.acked < self._late.get(p.name, 0)
            }
        return sorted(late | lost)

    def forget(self, node: str) -> None:
        """A machine is gone: it is not named any more."""
        with self._state_changed:
            self._lost.forget(node)

    def serve_remote(
        self,
        node: str,
        slot: str,
        popen: GatewayProcess,
        *,
        owner: str,
        settings: Mapping[str, Any],
        on_begin: Callable[[str], None],
    ) -> None:
        """Serve a worker on another machine until its connection ends; returns then.

        Args:
            node: name of the machine: letters, digits and ``_``.
            slot: which of the machine's workers it is.
            popen: its connection.
            owner: root URL under which the worker reaches the owner's server.
            settings: that differ on its machine.
            on_begin: called with the worker's name before it can write its journal.
        """
        name = incarnation(f"node.{node}.{slot}")
        on_begin(name)
        with self._state_changed:
            if self._stopping.is_set():
                popen.kill()
                return
            # Under the lock, so that the worker gets every later change.
            begin = self._begin(name, owner=owner, **settings)
            process = self._processes[name] = WorkerProcess(name, popen, begin, node, slot)
            process.drained = self._n_drains
        with contextlib.suppress(OSError):
            self._listen(process)
        with self._state_changed:
            del self._processes[name]
            process.ready = False
            self._lost.forget(node)
            if not process.ended:
                self._lost.add(name, node)
            self._state_changed.notify_all()
        process.sender.close(0.0)
        self._engine_status.pop(name, None)
        self._after(name)

    def stop(self) -> None:
        """Stop all workers after their calls in flight. May be called twice."""
        self._stopping.set()
        with self._state_changed:
            processes = list(self._processes.values())
        for process in processes:
            process.sender.send({"do": "stop"})
            process.sender.close(1.0)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for process in processes:
            try:
                process.popen.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                log.error("gateway process %s did not end in time", process.name)
                process.popen.kill()
                process.popen.wait()
        for thread in self._threads.values():
            thread.join(5.0)
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None

    def _begin(self, name: str, *, owner: str | None = None, **settings: Any) -> dict[str, Any]:
        """The first message to a worker. ``owner`` is given for one on another machine."""
        remote = owner is not None
        return {
            "do": "begin",
            "settings": {**_worker_settings(self._settings).model_dump(mode="json"), **settings},
            "writer": name if remote or self._settings.journal_target == LOCAL else incarnation(name),
            "used": [segment for segment in self._used() if segment.startswith(f"{name}-")],
            "port": settings.get("port", self.port),
            "owner": owner or self._owner,
            "lease_s": LEASE_S if remote else None,
            "token": self._token,
            "open_paths": self._open_paths,
            "keys": self._keys.rows(),
            "policy": [asdict(event) for event in self._policy.history],
            "sync": self._policy.sync_json(),
            "engines": self._engines,
            "paused_engines": self._paused,
            "log_level": logging.getLogger().getEffectiveLevel(),
        }

    def _keep(self, name: str) -> None:
        """Start a worker, read its messages, and restart it when it has ended."""
        failures = 0
        while True:
            with self._state_changed:
                if self._stopping.is_set():
                    return
                # Under the lock, so that the worker gets every later change.
                process = self._started(name)
            if process is None:
                if self._stopping.wait(BACKOFF_S[-2]):
                    return
                continue
            self._listen(process)
            code = process.popen.wait()
            with self._state_changed:
                was_ready, process.ready = process.ready, False
                process.ended = True
                if not was_ready and process.failure is None:
                    process.failure = f"it ended with code {code}"
                self._state_changed.notify_all()
            self._after(name)
            if self._stopping.is_set():
                return
            failures = 0 if time.monotonic() - process.started_at > STEADY_S else failures + 1
            log.error("gateway process %s (%d) ended with code %d; restarting it", name, process.popen.pid, code)
            if self._stopping.wait(BACKOFF_S[min(failures, len(BACKOFF_S)) - 1] if failures else 0.0):
                return
            self.restarts[name] += 1

    def _after(self, name: str) -> None:
        """A worker has ended."""
        self._stats.absorb(name, {"in_flight": 0})
        self._journal_errors.pop(name, None)
        self._unshipped.pop(name, None)
        self._on_journalled()

    def _started(self, name: str) -> WorkerProcess | None:
        """A new process; None if the system has no resources for one."""
        try:
            process = self._processes[name] = WorkerProcess(name, worker_process(), self._begin(name))
            # It has no calls from before.
            process.drained = self._n_drains
        except OSError as error:
            log.error("gateway process %s can't be started: %s", name, error)
            return None
        return process

    def _listen(self, process: WorkerProcess) -> None:
        assert process.popen.stdout is not None
        with process.popen.stdout as pipe:
            for message in messages(pipe):
                if "changes" in message:
                    self._stats.absorb(process.name, message["changes"])
                    self._on_journalled()
                elif "drained" in message:
                    with self._state_changed:
                        process.drained = max(process.drained, message["drained"])
                        self._state_changed.notify_all()
                elif "beat" in message:
                    process.n_missed = 0
                elif "fence" in message:
                    process.sender.send({"do": "fence", "fence": message["fence"]})
                elif "ended" in message:
                    process.ended = True
                elif "engines" in message:
                    self._engine_status[process.name] = message["engines"]
                elif "journal_error" in message:
                    self._journal_errors.pop(process.name, None)
                    if message["journal_error"] is not None:
                        self._journal_errors[process.name] = message["journal_error"]
                elif "unshipped" in message:
                    n_bytes, waited_s = message["unshipped"]
                    self._unshipped[process.name] = n_bytes, waited_s
                elif message.get("want") == "call":
                    # The first call of a key queries the pool; other messages must not wait for it.
                    threading.Thread(target=self._may_call, args=(process, message), daemon=True).start()
                elif "spent" in message:
                    self._ledger.spend(message["spent"], message["n_tokens"])
                elif "want" in message:
                    threading.Thread(target=self._lend_engine, args=(process,), daemon=True).start()
                else:
                    with self._state_changed:
                        process.ready = process.ready or "ready" in message
                        process.port = message.get("ready", process.port)
                        process.acked = max(process.acked, message.get("ack", 0))
                        process.failure = message.get("failed", process.failure)
                        self._state_changed.notify_all()

    def _may_call(self, process: WorkerProcess, message: Mapping[str, Any]) -> None:
        binding = self._keys.binding(message["key"])
        answer: dict[str, Any] = {}
        try:
            if binding is not None:
                self._ledger.take(binding)
        except KeySpent as error:
            answer = {"refused": error.message, "retry_after_s": error.retry_after_s}
        except Exception as error:
            # A worker waits for this answer, so it is always sent.
            log.exception("the usage of a session key could not be determined")
            answer = {"refused": f"the key's usage is unknown: {type(error).__name__}", "retry_after_s": 1.0}
        process.sender.send({"do": "may", "id": message["id"], **answer})

    def _lend_engine(self, process: WorkerProcess) -> None:
        try:
            answer = {"base_url": self._local_engine()}
        except StudioError as error:
            answer = {"error": error.message}
        process.sender.send({"do": "local_engine", **answer})

    def _broadcast(self, message: Mapping[str, Any]) -> None:
        """Send a change to all workers and wait until each has applied it."""
        with self._state_changed:
            self._n_sent += 1
            number = self._n_sent
            processes = list(self._processes.values())
            for process in processes:
                process.sender.send({**message, "n": number})
            deadline = time.monotonic() + ACK_TIMEOUT_S
            while late := [p for p in processes if p.ready and p.acked < number]:
                if not self._state_changed.wait(max(0.0, deadline - time.monotonic())):
                    names = ", ".join(p.name for p in late)
                    log.error("gateway processes %s did not apply %r in time", names, message["do"])
                    break
            self._late = {p.name: number for p in late}
            while (left_s := self._lost.left_s()) > 0:
                # A worker whose connection was lost may take calls until its last answer has ended.
                self._state_changed.wait(left_s)


def _part(limit: int, n_workers: int) -> int:
    """A limit of concurrent calls, of one worker."""
    return max(1, limit // n_workers)


def _worker_settings(settings: Settings) -> Settings:
    """Settings of one worker: limits of concurrent calls are divided by the number of workers."""

    def part(limit: int | None) -> int | None:
        return None if limit is None else _part(limit, settings.gateways)

    engines = tuple(one.model_copy(update={"concurrency": part(one.concurrency)}) for one in settings.engines)
    return settings.model_copy(update={"engines": engines, "engine_concurrency": part(settings.engine_concurrency)})
