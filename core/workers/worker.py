"""A gateway worker process: ``python -m core.workers.worker``, controlled by its owner over stdin.

It records model calls in the shared journal folder and forwards all other requests to the owner. It stops when the
owner requests it or has ended, after it has answered its calls in flight.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from starlette.applications import Starlette
from starlette.routing import Mount

from core.config import Settings
from core.engine_host import add_configured_engines, bounds_of, timeouts_of
from core.errors import EngineError, StudioError
from core.freememory import FreeMemory, limit_arenas
from core.garbage import settle_memory
from core.gateway.access.admission import Admission, Asgi
from core.gateway.access.hosts import Hosts
from core.gateway.app import GatewayDeps, create_gateway
from core.gateway.calls.identity import KeyStore
from core.gateway.calls.policy import PolicyState
from core.gateway.engines.registry import EngineSet
from core.gateway.http.asgi import Receive, Scope, Send, send_whole
from core.gateway.http.error_shapes import refusal
from core.gateway.http.fast_router import FastRouter, matched_path
from core.gateway.http.limits import ServerLimits, raise_descriptor_limit
from core.gateway.http.server import GatewayServer
from core.gateway.telemetry.call_log import log_call
from core.gateway.transport.connection import UNBOUND
from core.gateway.transport.http1 import HttpClient
from core.journal import Journal, open_target
from core.logs import set_up
from core.types import PolicyEvent
from core.workers.fence import Fence, OwnerSilent
from core.workers.forward import Forwarder
from core.workers.ledger_client import LedgerClient
from core.workers.pipe import Sender, messages
from core.workers.worker_stats import WorkerStats

REPORT_EVERY_S: Final = 0.05
ENGINES_EVERY_S: Final = 1.0
STOP_TIMEOUT_S: Final = 20.0
SERVER_ENDED: Final = 70
"""Exit code of a worker whose server has ended unexpectedly."""

OWNER_ENDED: Final = {"error": "the studio has ended, and the embedded engine with it"}

log = logging.getLogger(__name__)


class EngineClient:
    """Requests the address of the owner's embedded engine. For one caller at a time."""

    def __init__(self, ask: Callable[[], None]) -> None:
        self._ask = ask
        self._answers: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
        self._owner_ended = False

    def ensure(self) -> str:
        """Base URL of the running engine; waits for its start. Raises EngineError, also when the owner has ended."""
        self._ask()
        answer = OWNER_ENDED if self._owner_ended else self._answers.get()
        if answer.get("base_url") is None:
            raise EngineError(str(answer.get("error")))
        return str(answer["base_url"])

    def handle_answer(self, answer: Mapping[str, Any]) -> None:
        """Handle the owner's reply."""
        self._answers.put(answer)

    def owner_ended(self) -> None:
        """No reply can come any more; a caller that waits for one gets an error."""
        self._owner_ended = True
        self._answers.put(OWNER_ENDED)


class _FencedPolicy(PolicyState):
    """The policy's state in a worker: no call begins with a version that the owner may have replaced meanwhile."""

    def __init__(self, fence: Fence, *, sync_timeout_s: float) -> None:
        super().__init__(sync_timeout_s=sync_timeout_s)
        self._fence = fence

    async def start(self, max_wait_s: float) -> int | None:
        await self._fence.passed()
        return await super().start(max_wait_s)

    def finish(self, reported: int | None = None) -> int | None:
        version = super().finish(reported)
        # Without the owner's messages only the engine knows which weights sampled the end of the answer.
        return reported if self._fence.lease_ended else version


class _Fenced:
    """ASGI middleware: a request waits until the fence is open, or gets 503."""

    def __init__(self, app: Asgi, fence: Fence) -> None:
        self._app = app
        self._fence = fence

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                await self._fence.passed()
            except OwnerSilent as error:
                body, headers = refusal(matched_path(scope), scope["headers"], error)
                await send_whole(send, error.http_status, body, headers)
                return
        await self._app(scope, receive, send)


class Worker:
    """A gateway without a pool.

    Args:
        begin: the owner's first message, see ``Fleet``.
        send: sends a message to the owner.
    """

    def __init__(self, begin: Mapping[str, Any], send: Callable[[Mapping[str, Any]], None]) -> None:
        self._send = send
        self._done = threading.Event()
        self._stopping = False
        settings = Settings(**begin["settings"])
        self.journal = Journal(
            settings.journal_dir,
            writer=begin["writer"],
            segment_bytes=settings.segment_bytes,
            used=begin["used"],
            target=open_target(settings.journal_target, settings.journal_target_options),
        )
        self.keys = KeyStore()
        self.keys.load(begin["keys"])
        self.fence = Fence(send, lease_s=begin.get("lease_s"))
        self._free_memory = FreeMemory()
        self.policy = _FencedPolicy(self.fence, sync_timeout_s=settings.policy_sync_timeout_s)
        self.policy.restore(PolicyEvent(**event) for event in begin["policy"])
        self.policy.resume_sync(begin["sync"])
        self.stats = WorkerStats(clock=time.time)
        self.stats.listen(log_call)
        self.local = EngineClient(lambda: send({"want": "local_engine"}))
        self.engines = EngineSet(timeouts=timeouts_of(settings), bounds=bounds_of(settings))
        add_configured_engines(self.engines, settings, self.local)
        for engine in begin["engines"]:
            self.engines.add(**engine)
        self.engines.pause(begin["paused_engines"])
        self.ledger = LedgerClient(send)
        deps = GatewayDeps(
            settings=settings,
            journal=self.journal,
            engines=self.engines,
            keys=self.keys,
            policy=self.policy,
            stats=self.stats,
            ledger=self.ledger,
            max_body_bytes=settings.max_body_bytes,
        )
        routes = create_gateway(deps)
        rest = Mount("/", _LoopForwarder(begin["owner"], begin["token"], settings.max_body_bytes))
        # Uids may contain line breaks, which the framework's own pattern does not match.
        rest.path_regex = re.compile(r"^/(?P<path>[\s\S]*)\Z")
        app = Admission(
            FastRouter(Starlette(routes=[*routes, rest]), routes),
            hosts=Hosts(settings.host, settings.allowed_hosts),
            api_key=settings.api_key,
            keys=self.keys,
            stats=self.stats,
            open_paths=begin["open_paths"],
            cors_origins=settings.cors_origins,
        )
        raise_descriptor_limit()
        self.server = GatewayServer(
            _Fenced(app, self.fence),
            host=settings.host,
            port=begin["port"],
            shared=True,
            tls=settings.tls,
            limits=ServerLimits.of(settings),
            refused=self.stats.refused,
        )
        self._drain: asyncio.Future[None] | None = None
        self._reporter = threading.Thread(target=self._report, name="report", daemon=True)

    def start(self) -> None:
        """Accept calls."""
        port = self.server.start()
        self._reporter.start()
        self._send({"ready": port})

    def apply(self, message: Mapping[str, Any]) -> None:
        """Apply a message of the owner and acknowledge it."""
        action = message["do"]
        if action == "key":
            self.keys.load([message["row"]])
        elif action == "policy":
            event = message["event"]
            self.policy.apply(event["event"], event["version"], at=event["created_at"], metadata=event["metadata"])
        elif action == "sync_ended":
            self.policy.end_sync()
        elif action == "drain":
            self.server.call_soon(lambda: self._begin_drain(message["number"]))
        elif action == "engine":
            self.engines.add(**message["engine"])
        elif action == "engine_removed":
            self.engines.remove(message["name"])
        elif action == "engines_paused":
            self.engines.pause(message["names"])
        elif action == "fence":
            self.fence.handle_answer(message["fence"])
        elif action == "may":
            self.ledger.handle_answer(message)
        elif action == "local_engine":
            self.local.handle_answer(message)
        if "n" in message:
            self._send({"ack": message["n"]})

    def _begin_drain(self, number: int) -> None:
        async def drain() -> None:
            await self.policy.drained()
            self._send({"drained": number})

        self._drain = asyncio.ensure_future(drain())

    def stop(self) -> None:
        """Finish calls in flight, close the journal, send the last counts."""
        self._stopping = True
        self.local.owner_ended()
        self.ledger.owner_ended()
        self.server.stop(STOP_TIMEOUT_S)
        self.journal.close()
        self._done.set()
        self._reporter.join()

    def _report(self) -> None:
        last_sent: dict[str, Any] = {"engines": [], "journal_error": None, "unshipped": [0, 0]}
        looked_at = 0.0
        last = False
        while not last:
            last = self._done.wait(REPORT_EVERY_S)
            self.fence.tick()
            changes = self.stats.changes()
            if changes is not None:
                self._send({"changes": changes})
            if time.monotonic() - looked_at >= ENGINES_EVERY_S or last:
                looked_at = time.monotonic()
                if not last:
                    # Sent by the event loop, so that the owner notices one that hangs.
                    self.server.call_soon(self._beat)
                    self._look_after()
                    self._free_memory()
                n_bytes, waited_s = self.journal.unshipped
                for name, value in (
                    ("engines", self.engines.status()),
                    ("journal_error", self.journal.error),
                    # What is confirmed within a second is not worth a message.
                    ("unshipped", [n_bytes, round(waited_s)] if waited_s >= 1 else [0, 0]),
                ):
                    if last_sent[name] != value:
                        last_sent[name] = value
                        self._send({name: value})

    def _beat(self) -> None:
        self._send({"beat": True})

    def _look_after(self) -> None:
        """Revive the journal writer. If the server's thread has ended, exit, so that the owner restarts the worker."""
        self.journal.revive()
        if self.journal.error is not None:
            self.journal.probe()
        if not self.server.running and not self._done.is_set() and not self._stopping:
            log.error("the gateway's thread has ended; this process exits")
            os._exit(SERVER_ENDED)


class _LoopForwarder:
    """``Forwarder`` with a client that is created on the serving loop."""

    def __init__(self, address: str, token: str, max_body_bytes: int) -> None:
        self._address = address
        self._token = token
        self._max_body_bytes = max_body_bytes
        self._app: Forwarder | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is None:
            client = HttpClient(bounds=UNBOUND)
            self._app = Forwarder(self._address, client, token=self._token, max_body_bytes=self._max_body_bytes)
        await self._app(scope, receive, send)


def main() -> None:
    """Serve until stdin ends or a stop message arrives."""
    # Prints of libraries must not mix with messages on the pipe.
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sender = Sender(pipe, "to-owner")
    incoming = messages(sys.stdin.buffer)
    begin = next(incoming, None)
    if begin is None:
        return
    set_up(begin["log_level"], begin["settings"]["log_format"])
    worker: Worker | None = None
    limit_arenas()
    try:
        worker = Worker(begin, sender.send)
        worker.start()
        settle_memory()
        worker.engines.prepare()
        for message in incoming:
            if message["do"] == "stop":
                break
            worker.apply(message)
    except StudioError as error:
        sender.send({"failed": error.message, "field": error.field, "hint": error.hint})
        raise SystemExit(1) from None
    finally:
        if worker is not None:
            worker.stop()
        sender.close(5.0)


if __name__ == "__main__":
    main()
