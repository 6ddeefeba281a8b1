"""Shared parts of all route handlers: dependencies, the request as a ``Call``, JSON and error responses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson
from starlette.convertors import PathConvertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from core.api.annotationqueue import AnnotationQueue
from core.batch.leases import Leases
from core.config import Settings
from core.dialects.errors import openai_error
from core.errors import InvalidInput, NotFound, StudioError
from core.gateway.calls.identity import KeyStore
from core.gateway.calls.policy import PolicyState
from core.gateway.engines.registry import EngineSet
from core.gateway.telemetry.stats import GatewayStats
from core.ingest import Ingest
from core.journal import Journal
from core.packs import Pack
from core.packs.library import PackEntry, PackLibrary
from core.pool import Pool
from core.records import MAX_DEPTH, too_deep
from core.rewards.policy import Missing
from core.rollouts import Attempt, Outcome, Run, RunSettings, RunStore, WorkspaceStore
from core.rollouts.planning import Wish
from core.synthesis import Choice, SynthesisRun, SynthesisSettings, SynthesisStore
from core.synthesis.behaviour import SameAs
from core.synthesis.difficulty import Difficulty
from core.synthesis.state import State

log = logging.getLogger(__name__)

CATCH_UP_S = 5.0
"""How long a write request waits until its data is in the pool, seconds."""

_JSON_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NAIVE_UTC | orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS


class AnyUid(PathConvertor):
    """Path parameter for a uid, which may contain any characters, including slashes and line breaks."""

    regex = r"[\s\S]+"


class LearningDemo(Protocol):
    """Starts, stops and describes the learning demo (``core.learn_host``)."""

    def start(self, *, updates: int = 15, seed: int = 0, max_staleness: int = 0, control: str | None = None) -> None:
        """Start a run. Conflict if one runs."""
        ...

    def status(self) -> dict[str, Any]:
        """Progress of the newest run."""
        ...

    def events(self) -> list[dict[str, Any]]:
        """Its progress messages."""
        ...

    def stop(self) -> None:
        """End the run."""
        ...


class Rollouts(Protocol):
    """Starts and describes runs of rollouts (``core.rollout_host``)."""

    packs: PackLibrary
    runs: RunStore
    workspaces: WorkspaceStore

    def plan(self, pack: str, wish: Wish, *, run: str | None = None) -> tuple[Pack, RunSettings]:
        """The settings of a run, checked."""
        ...

    def start(self, pack: str, wish: Wish, *, run: str | None = None) -> Run:
        """Start a run."""
        ...

    def resume(self, run: str, *, workers: int | None = None, retry: Sequence[Outcome] = ("lost",)) -> Run:
        """Go on with a run."""
        ...

    def cancel(self, run: str) -> bool:
        """End a run."""
        ...

    def status(self, run: Run) -> dict[str, Any]:
        """Settings and progress."""
        ...

    def attempt(self, run: Run, task_id: str, number: int, retry: int | None = None) -> Attempt:
        """One attempt."""
        ...


class Synthesis(Protocol):
    """Starts and describes runs of the synthesis (``core.synthesis_host``)."""

    store: SynthesisStore

    def plan(self, fields: Mapping[str, Any]) -> tuple[SynthesisSettings, dict[str, Any]]:
        """The settings of a run, checked, and what it would cost."""
        ...

    def start(
        self, fields: Mapping[str, Any], *, until: str | None = None, prompts: Mapping[str, str] | None = None
    ) -> SynthesisRun:
        """Create a run and work on it."""
        ...

    def resume(self, name: str, *, until: str | None = None, budget: Mapping[str, Any] | None = None) -> SynthesisRun:
        """Go on with a run."""
        ...

    def cancel(self, name: str) -> bool:
        """Have a run stop."""
        ...

    def status(self, run: SynthesisRun) -> dict[str, Any]:
        """Settings and progress."""
        ...

    def state(self, run: SynthesisRun) -> State:
        """Rows, decisions and calls."""
        ...

    def difficulty(self, run: SynthesisRun) -> dict[str, Difficulty]:
        """What rollouts show of its tasks."""
        ...

    def same_behaviour(self, measured: Mapping[str, Difficulty]) -> dict[str, SameAs]:
        """Tasks that are solved by the same actions."""
        ...

    def pack(self, run: SynthesisRun, choice: Choice) -> Pack:
        """The pack of a run."""
        ...

    def keep_pack(self, run: SynthesisRun, choice: Choice, name: str = "") -> PackEntry:
        """Store the pack of a run."""
        ...


class Rescorings(Protocol):
    """Scores trajectories again (``core.rescore_host``); its errors are StudioErrors."""

    def all(self) -> list[dict[str, Any]]:
        """All re-scorings, newest first."""
        ...

    def start(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Create and run one."""
        ...

    def show(self, name: str) -> dict[str, Any]:
        """One with its comparison."""
        ...

    def results(self, name: str, trajectory_uid: str) -> list[dict[str, Any]]:
        """Results of one trajectory."""
        ...

    def resume(self, name: str) -> dict[str, Any]:
        """Go on with one."""
        ...

    def stop(self, name: str) -> None:
        """Stop one."""
        ...

    def adopt(
        self,
        name: str,
        *,
        author: str = "api",
        combine: str | Mapping[str, float] | None = None,
        code: str = "complete",
        missing: Missing = "unscored",
    ) -> dict[str, Any]:
        """Adopt its rewards."""
        ...

    def discard(self, name: str) -> None:
        """Remove one."""
        ...


@dataclass(frozen=True)
class ApiDeps:
    """The parts of the service that routes use.

    ``problems`` returns the current problems of capture and ingest (``core.health``). ``n_ends`` counts restarts of
    threads by name. ``unshipped`` returns the bytes that the journal's target has not confirmed yet, and since when in
    seconds. ``drain_workers`` waits, at most so many seconds, until the gateway workers' calls have ended.
    ``cluster`` returns the state of the cluster, None on one machine, and ``forget_node`` drops one of its nodes.
    ``gateways`` returns those of this machine, as ``core.workers.fleet.Fleet.workers`` has them.
    ``unreachable`` names the nodes that have not applied the last change of keys or of the policy.
    """

    settings: Settings
    journal: Journal
    pool: Pool
    ingest: Ingest
    keys: KeyStore
    policy: PolicyState
    stats: GatewayStats
    engines: EngineSet
    leases: Leases
    annotations: AnnotationQueue
    base_url: Callable[[], str]
    clock: Callable[[], float]
    new_uid: Callable[[], str]
    problems: Callable[[], list[dict[str, Any]]]
    learning: LearningDemo
    rescoring: Rescorings
    rollouts: Rollouts
    synthesis: Synthesis
    n_ends: Mapping[str, int]
    unshipped: Callable[[], tuple[int, float]] = lambda: (0, 0.0)
    drain_workers: Callable[[float], bool] = lambda _: True
    cluster: Callable[[], dict[str, Any] | None] = lambda: None
    gateways: Callable[[], list[dict[str, Any]]] = list
    forget_node: Callable[[str], bool] = lambda _: False
    unreachable: Callable[[], list[str]] = list


@dataclass(frozen=True)
class Call:
    """One request with its body, as passed to a handler."""

    deps: ApiDeps
    path: dict[str, str]
    query: dict[str, str]
    raw: bytes
    host: str | None = None

    @property
    def base_url(self) -> str:
        """Root URL of the service for the caller. With a wildcard address, it has the host of the request."""
        if self.host and self.deps.settings.host in ("0.0.0.0", "::"):
            return f"{self.deps.settings.scheme}://{self.host}"
        return self.deps.base_url()

    def json(self) -> Any:
        """The body as JSON; an empty one is ``{}``. Raises InvalidInput."""
        if not self.raw:
            return {}
        try:
            body = orjson.loads(self.raw)
        except orjson.JSONDecodeError as err:
            raise InvalidInput(f"the body is not JSON: {err}", field="body") from err
        if too_deep(body, self.raw):
            raise InvalidInput(f"the body is nested more than {MAX_DEPTH} levels deep", field="body")
        return body

    def int_query(self, name: str, default: int, *, low: int, high: int) -> int:
        """A bounded integer from the query string."""
        text = self.query.get(name)
        if text is None:
            return default
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise InvalidInput(f"{text!r} is not a whole number from {low} to {high}", field=name)
        return value


def json_response(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON response. Times are UTC, NumPy arrays are allowed, NaN becomes null."""
    body = orjson.dumps(content, option=_JSON_OPTIONS, default=_to_plain)
    return Response(body, status_code=status, media_type="application/json", headers=headers)


def _to_plain(value: Any) -> Any:
    if hasattr(value, "as_py"):
        return value.as_py()
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def error_response(err: StudioError) -> Response:
    """The error response of the HTTP contract."""
    wait_s = getattr(err, "retry_after_s", None)
    return json_response(err.as_dict(), err.http_status, {"Retry-After": f"{wait_s:.0f}"} if wait_s else None)


async def no_such_route(request: Request, error: Exception) -> Response:
    """The router's 404 and 405 as JSON, in the error format of the path's API."""
    assert isinstance(error, HTTPException)
    refused = NotFound(
        f"{request.method} {request.url.path} is not a route of this service", hint="GET /docs lists them"
    )
    refused.http_status = error.status_code
    if error.status_code != 404:
        refused.type = "method_not_allowed"
    in_dialect = "/v1/" in request.url.path and not request.url.path.startswith("/api/")
    body = openai_error(refused) if in_dialect else refused.as_dict()
    return json_response(body, error.status_code, dict(error.headers or {}))


EXCEPTION_HANDLERS: Mapping[Any, Any] = {404: no_such_route, 405: no_such_route}
