"""Which key each route accepts: a table as data, against what routes declare and what admission does."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import pytest

from core.api.openapi import OWN, open_paths, operations
from core.gateway.access.admission import Admission
from core.gateway.access.hosts import Hosts
from core.gateway.access.keys import KeyStore
from core.gateway.access.roles import Role
from core.gateway.telemetry.stats import GatewayStats

ADMIN_KEY = "an-admin-key-of-0123456789"
OPEN = """
GET /docs
GET /health
GET /healthz
GET /openapi.json
GET /ready
GET /readyz
"""
SESSION = """
GET /v1/models
GET /v1/models/{model}
GET /v1/responses/{response_id}
GET /v1/responses/{response_id}/input_items
GET /{trajectory_uid}/{prompt_uid}/v1/models
GET /{trajectory_uid}/{prompt_uid}/v1/models/{model}
GET /{trajectory_uid}/{prompt_uid}/v1/responses/{response_id}
GET /{trajectory_uid}/{prompt_uid}/v1/responses/{response_id}/input_items
POST /detokenize
POST /tokenize
POST /v1/chat/completions
POST /v1/completions
POST /v1/detokenize
POST /v1/embeddings
POST /v1/messages
POST /v1/messages/count_tokens
POST /v1/responses
POST /v1/responses/input_tokens
POST /v1/responses/{response_id}/cancel
POST /v1/tokenize
POST /{trajectory_uid}/{prompt_uid}/detokenize
POST /{trajectory_uid}/{prompt_uid}/tokenize
POST /{trajectory_uid}/{prompt_uid}/v1/chat/completions
POST /{trajectory_uid}/{prompt_uid}/v1/completions
POST /{trajectory_uid}/{prompt_uid}/v1/detokenize
POST /{trajectory_uid}/{prompt_uid}/v1/embeddings
POST /{trajectory_uid}/{prompt_uid}/v1/messages
POST /{trajectory_uid}/{prompt_uid}/v1/messages/count_tokens
POST /{trajectory_uid}/{prompt_uid}/v1/responses
POST /{trajectory_uid}/{prompt_uid}/v1/responses/input_tokens
POST /{trajectory_uid}/{prompt_uid}/v1/responses/{response_id}/cancel
POST /{trajectory_uid}/{prompt_uid}/v1/tokenize
DELETE /v1/responses/{response_id}
DELETE /{trajectory_uid}/{prompt_uid}/v1/responses/{response_id}
"""
ADMIN = """
GET /api/v1/agreement
GET /api/v1/batches
GET /api/v1/batches/{uid}
GET /api/v1/batches/{uid}/file
GET /api/v1/channels/{channel}/recipe
GET /api/v1/channels/{channel}/rewards
GET /api/v1/cluster
GET /api/v1/datasets
GET /api/v1/datasets/{name}
GET /api/v1/datasets/{name}/diff
GET /api/v1/datasets/{name}/verify
GET /api/v1/disagreements
GET /api/v1/feedback
GET /api/v1/feedback/{uid}
GET /api/v1/groups/{uid}
GET /api/v1/harnesses
GET /api/v1/healthz
GET /api/v1/learning
GET /api/v1/learning/demo
GET /api/v1/metrics
GET /api/v1/packs
GET /api/v1/packs/{pack}/task
GET /api/v1/packs/{pack}/tasks
GET /api/v1/policy
GET /api/v1/readyz
GET /api/v1/recipes
GET /api/v1/recipes/{name}
GET /api/v1/recipes/{name}/diff
GET /api/v1/reports/{run}
GET /api/v1/reports/{run}/compare
GET /api/v1/retention
GET /api/v1/rewards
GET /api/v1/rescores
GET /api/v1/rescores/{name}
GET /api/v1/rescores/{name}/results
GET /api/v1/rollouts
GET /api/v1/rollouts/{run}
GET /api/v1/rollouts/{run}/attempt
GET /api/v1/rollouts/{run}/attempts
GET /api/v1/sessions
GET /api/v1/sql
GET /api/v1/stats
GET /api/v1/steps
GET /api/v1/steps/{uid}
GET /api/v1/synthesis
GET /api/v1/synthesis/{run}
GET /api/v1/synthesis/{run}/difficulty
GET /api/v1/synthesis/{run}/prompts
GET /api/v1/synthesis/{run}/row
GET /api/v1/synthesis/{run}/rows
GET /api/v1/trajectories/{uid}
GET /api/v1/trash
GET /api/v1/values
GET /api/v1/views
GET /api/v1/views/{name}
GET /metrics
POST /api/v1/actions/{uid}/redo
POST /api/v1/actions/{uid}/undo
POST /api/v1/annotations
POST /api/v1/backup
POST /api/v1/batches/fetch
POST /api/v1/batches/{uid}/ack
POST /api/v1/batches/{uid}/metrics
POST /api/v1/batches/{uid}/release
POST /api/v1/batches/{uid}/renew
POST /api/v1/datasets
POST /api/v1/datasets/{name}/export
POST /api/v1/datasets/{name}/plan
POST /api/v1/exports
POST /api/v1/feedback
POST /api/v1/imports
POST /api/v1/integrity
POST /api/v1/learning/demo
POST /api/v1/packs
POST /api/v1/packs/{pack}/edit
POST /api/v1/packs/{pack}/split
POST /api/v1/plans
POST /api/v1/policy
POST /api/v1/policy/sync
POST /api/v1/retention
POST /api/v1/rewards/preview
POST /api/v1/rescores
POST /api/v1/rescores/{name}/adopt
POST /api/v1/rescores/{name}/resume
POST /api/v1/rescores/{name}/stop
POST /api/v1/rollouts
POST /api/v1/rollouts/{run}/cancel
POST /api/v1/rollouts/{run}/resume
POST /api/v1/sessions
POST /api/v1/sql
POST /api/v1/steps
POST /api/v1/steps/known
POST /api/v1/synthesis
POST /api/v1/synthesis/{run}/cancel
POST /api/v1/synthesis/{run}/pack
POST /api/v1/synthesis/{run}/resume
POST /api/v1/synthesis/{run}/row
POST /api/v1/trajectories/complete
POST /api/v1/trajectories/{uid}/complete
POST /api/v1/trash/empty
POST /api/v1/trash/{run_uid}/restore
POST /api/v1/values
POST /api/v1/values/compute
POST /complete_trajectory/{t}
POST /compute_reward
POST /generate
POST /init_trajectory
POST /submit_steps
POST /{t}/{p}/v1/complete_trajectory
POST /{t}/{p}/v1/register_trajectory
PUT /api/v1/channels/{channel}/recipe
PUT /api/v1/channels/{channel}/rewards
PUT /api/v1/recipes/{name}
PUT /api/v1/rewards/{name}
PUT /api/v1/synthesis/{run}/prompts/{name}
PUT /api/v1/views/{name}
DELETE /api/v1/cluster/nodes/{name}
DELETE /api/v1/learning/demo
DELETE /api/v1/policy/sync
DELETE /api/v1/rescores/{name}
DELETE /api/v1/sessions/{name}
DELETE /api/v1/views/{name}
"""
ROLES = {
    line: role for role, lines in ((Role.OPEN, OPEN), (Role.SESSION, SESSION), (Role.ADMIN, ADMIN))
    for line in lines.split("\n") if line
}  # fmt: skip


def declared() -> dict[str, Role]:
    return {f"{one.method} {one.documented_path}": one.role for one in (*operations(), *OWN)}


def status(method: str, path: str, *keys: str) -> int:
    """Status of a request at a service with an admin key; 200 if it is admitted."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    statuses: list[int] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    stats = GatewayStats(clock=time.time)
    admission = Admission(
        app, hosts=Hosts("127.0.0.1"), api_key=ADMIN_KEY, keys=STORE, stats=stats, open_paths=open_paths()
    )
    headers = [(b"host", b"127.0.0.1"), *((b"authorization", f"Bearer {key}".encode()) for key in keys)]
    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "headers": headers}
    asyncio.run(admission(scope, None, send))  # type: ignore[arg-type]
    return statuses[0]


STORE = KeyStore()
SESSION_KEY, _ = STORE.mint(trajectory_uid="t")


def test_every_route_declares_the_role_in_the_table() -> None:
    assert declared() == ROLES


@pytest.mark.parametrize("role", list(Role))
def test_admission_enforces_the_table(role: Role) -> None:
    """Statuses without a key, with a session key and with the admin key."""
    expected = {Role.OPEN: (200, 200, 200), Role.SESSION: (401, 200, 200), Role.ADMIN: (401, 403, 200)}[role]
    routes = [line.split() for line, own in ROLES.items() if own is role]
    for method, documented in routes:
        path = re.sub(r"{\w+}", "x", documented)
        answered = status(method, path), status(method, path, SESSION_KEY), status(method, path, ADMIN_KEY)
        assert answered == expected, (method, documented)


def test_paths_without_a_route_are_the_admins() -> None:
    for path in ("/", "/api/v1/nothing", "/healthz/", "/readyz/x", "/api/v1/healthz/x", "/x/y/z"):
        assert status("GET", path, SESSION_KEY) == 403, path
