"""Claw-R1's own endpoints in their shapes, so that its agents and clients run unchanged."""

from __future__ import annotations

from typing import Any

from core.api import wire
from core.api.app import Call, Handler, json_response, not_built
from core.api.produce import complete_trajectory, register_trajectory, submit_steps


def init_trajectory(call: Call) -> Any:
    """A fresh trajectory and the base URL that carries its identity in the path."""
    deps = call.deps
    body = call.json()
    prompt_uid = body.get("prompt_uid") if isinstance(body, dict) else None
    trajectory_uid = deps.new_uid()
    prompt = prompt_uid if isinstance(prompt_uid, str) and prompt_uid else deps.new_uid()
    register_trajectory(deps, trajectory_uid, wire.RegisterIn(), prompt_uid=prompt)
    return {"trajectory_uid": trajectory_uid, "base_url": f"{deps.base_url()}/{trajectory_uid}/{prompt}/v1"}


def register(call: Call) -> Any:
    """``POST /{t}/{p}/v1/register_trajectory``."""
    body = wire.check(wire.RegisterIn, call.json())
    register_trajectory(call.deps, call.path["t"], body, prompt_uid=call.path["p"])
    return {"trajectory_uid": call.path["t"], "registered": True}


def complete_by_path(call: Call) -> Any:
    """``POST /{t}/{p}/v1/complete_trajectory``; the body is optional."""
    body = wire.check(wire.CompleteIn, call.json())
    return complete_trajectory(call.deps, call.path["t"], body, prompt_uid=call.path["p"])


def complete(call: Call) -> Any:
    """``POST /complete_trajectory/{t}``."""
    return complete_trajectory(call.deps, call.path["t"], wire.check(wire.CompleteIn, call.json()))


def submit(call: Call) -> Any:
    """``POST /submit_steps?channel=`` → ``{accepted}``."""
    result = submit_steps(call.deps, call.json(), channel=call.query.get("channel"))
    return {"accepted": result["accepted"]}


def ready(call: Call) -> Any:
    """``GET /ready``: 200 or 503."""
    is_ready = not call.deps.policy.syncing
    return json_response({"ready": is_ready}, 200 if is_ready else 503)


ROUTES: list[tuple[str, str, Handler]] = [
    ("POST", "/init_trajectory", init_trajectory),
    ("POST", "/{t}/{p}/v1/register_trajectory", register),
    ("POST", "/{t}/{p}/v1/complete_trajectory", complete_by_path),
    ("POST", "/complete_trajectory/{t}", complete),
    ("POST", "/submit_steps", submit),
    ("POST", "/generate", not_built("token-in generation")),
    ("POST", "/compute_reward", not_built("the reward worker")),
    ("GET", "/ready", ready),
]
