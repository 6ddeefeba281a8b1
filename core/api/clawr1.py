"""Claw-R1's endpoints in their original formats, so that its agents and clients run unchanged.

``POST /generate`` is not captured: its callers submit their steps, which would otherwise be stored twice. Like other
calls, it waits for weight syncs and returns the policy version that sampled.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from starlette.concurrency import run_in_threadpool

from core.api import wire
from core.api.handling import Call, json_response
from core.api.produce import complete_trajectory, register_trajectory, submit_steps
from core.api.routing import Router
from core.api.schemas import BOOL, INT, INT_OR_NULL, NUM, NUM_OR_NULL, OBJ, STR, TEXT_OR_NULL, array, obj, or_null
from core.dialects.errors import engine_refusal
from core.errors import EngineError, InvalidInput
from core.gateway.access.roles import Role
from core.gateway.calls.clawr1 import UID_PREFIX
from core.gateway.engines.answer import EngineCall
from core.gateway.engines.detokenize import detokenize
from core.gateway.served_dialects import COMPLETIONS
from core.rewards import TEXT_VERIFIERS, score
from core.tokens import extract_tokens

routes = Router("", "claw-r1")

SYNC_WAIT_S = 30.0
VERIFIERS: dict[str, str] = {"openai/gsm8k": "final_number"}
"""Default verifier of a ``data_source``."""
OWN_PARAMS = frozenset({"logprobs", "model", "prompt", "n", "stream"})
UNUSED = ("multi_modal_data", "routed_experts")
"""Claw-R1's step fields without an equivalent here; their values are stored in ``metadata``."""


class InitIn(wire.WireModel):
    """``POST /init_trajectory``; the body is optional."""

    prompt_uid: wire.CallUid | None = None


class GenerateIn(wire.WireModel):
    """``POST /generate``."""

    prompt_ids: Annotated[list[wire.TokenId], Field(min_length=1, max_length=10_000_000)]
    sampling_params: dict[str, Any] = Field(
        default_factory=dict, description="temperature, top_p, max_tokens, ...; logprobs true requests log-probs"
    )
    image_data: list[Any] | None = None
    video_data: list[Any] | None = None


class ComputeRewardIn(wire.WireModel):
    """``POST /compute_reward``: ``dataset_fields`` as in verl's data sets."""

    prompt_ids: list[wire.TokenId]
    response_ids: list[wire.TokenId]
    multi_modal_data: dict[str, Any] | None = None
    num_turns: wire.Count = 2
    extra_fields: dict[str, Any] = Field(default_factory=dict)
    dataset_fields: dict[str, Any] = Field(
        default_factory=dict, description="data_source, reward_model {ground_truth, verifier?}, ..."
    )


@routes("POST", "/init_trajectory", obj(trajectory_uid=STR, base_url=STR), reads_pool=False)
def init_trajectory(call: Call, body: InitIn) -> Any:
    """Create a trajectory.

    The path of the returned base URL identifies it.
    """
    deps = call.deps
    trajectory_uid = UID_PREFIX + deps.new_uid()
    # The prompt group is registered only if the caller gave one, because the caller may replace it in the URL.
    register_trajectory(deps, trajectory_uid, wire.RegisterIn(), prompt_uid=body.prompt_uid)
    prompt = body.prompt_uid or deps.new_uid()
    return {"trajectory_uid": trajectory_uid, "base_url": f"{call.base_url}/{trajectory_uid}/{prompt}/v1"}


@routes("POST", "/{t}/{p}/v1/register_trajectory", obj(status=STR, trajectory_uid=STR), reads_pool=False)
def register(call: Call, body: wire.RegisterIn) -> Any:
    """Register a trajectory's metadata."""
    body = body.model_copy(update={"metadata": _with_version(body.metadata)})
    register_trajectory(call.deps, call.path["t"], body, prompt_uid=call.path["p"])
    return {"status": "ok", "trajectory_uid": call.path["t"], "registered": True}


def _with_version(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Convert ``policy_version`` to int; it is stored with the trajectory's calls until the trajectory is complete."""
    complete = dict(metadata or {})
    if complete.get("policy_version") is None:
        return complete
    try:
        version = int(complete["policy_version"] or 0)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput("policy_version is not an integer", field="metadata.policy_version") from error
    if not 0 <= version < 2**63:
        raise InvalidInput("policy_version must be an integer >= 0", field="metadata.policy_version")
    return {**complete, "policy_version": version}


@routes("POST", "/{t}/{p}/v1/complete_trajectory", obj(status=STR, trajectory_uid=STR), reads_pool=False)
def complete_by_path(call: Call, body: wire.CompleteIn) -> Any:
    """Complete a trajectory."""
    return {"status": "ok", **complete_trajectory(call.deps, call.path["t"], body, prompt_uid=call.path["p"])}


@routes("POST", "/complete_trajectory/{t:uid}", obj(status=STR, trajectory_uid=STR), reads_pool=False)
def complete(call: Call, body: wire.CompleteIn) -> Any:
    """Complete a trajectory."""
    return {"status": "ok", **complete_trajectory(call.deps, call.path["t"], body)}


@routes("POST", "/submit_steps", obj(accepted=INT), query={"channel": STR}, statuses=(409,), body=wire.StepsIn)
def submit(call: Call) -> Any:
    """Submit steps."""
    body = call.json()
    if isinstance(body, dict) and isinstance(body.get("steps"), list):
        body = {**body, "steps": [_step(step) for step in body["steps"]]}
    result = submit_steps(call.deps, wire.check(wire.StepsIn, body), channel=call.query.get("channel"))
    return {"accepted": result["accepted"]}


def _step(step: Any) -> Any:
    """Convert a Claw-R1 step to the API's fields; empty strings and nulls in it mean unknown."""
    if not isinstance(step, Mapping):
        return step
    ours = {name: value for name, value in step.items() if name not in UNUSED}
    extra = {name: step[name] for name in UNUSED if step.get(name) is not None}
    if ours.get("prompt_uid") == "":
        del ours["prompt_uid"]
    if extra or ours.get("metadata") is None:
        ours["metadata"] = {**(ours.get("metadata") or {}), **extra}
    return ours


@routes(
    "POST",
    "/generate",
    obj(token_ids=array(INT), log_probs=or_null(array(NUM)), stop_reason=TEXT_OR_NULL, policy_version=INT_OR_NULL),
    statuses=(400, 404, 502, 503, 504),
)
async def generate(call: Call, body: GenerateIn) -> Any:
    """Sample by token ids.

    Not captured: the caller submits its steps. The ids are those that the engine sampled.
    """
    deps = call.deps
    if body.image_data or body.video_data:
        raise InvalidInput("images and videos can't be sent as token ids", field="image_data")
    params = body.sampling_params
    model = params.get("model")
    if not isinstance(model, str | None):
        raise InvalidInput("model is not a string", field="sampling_params.model")
    wanted = {name: value for name, value in params.items() if name not in OWN_PARAMS and value is not None}
    request = {"max_tokens": deps.settings.response_length, **wanted, "prompt": body.prompt_ids}
    engine = await deps.engines.pick(model)
    version = await deps.policy.start(SYNC_WAIT_S)
    try:
        answer = await engine.complete(EngineCall(COMPLETIONS, request, model))
    finally:
        deps.policy.finish()
    if answer.status != 200:
        raise engine_refusal(answer.status, answer.body if isinstance(answer.body, dict) else {})
    tokens = extract_tokens(answer.body, 0, COMPLETIONS.name)
    if tokens.response_ids is None:
        raise EngineError(
            f"engine {engine.name!r} returns no token ids, and encoding its text would not give the sampled ids",
            hint="use an engine that returns token ids (vLLM, SGLang, llama.cpp, the embedded one)",
        )
    return {
        "token_ids": tokens.response_ids,
        "log_probs": tokens.response_logprobs if params.get("logprobs") else None,
        "stop_reason": answer.body["choices"][0].get("finish_reason"),
        "policy_version": version,
    }


@routes("POST", "/compute_reward", obj(reward_score=NUM_OR_NULL, reward_extra_info=OBJ), statuses=(502, 504))
async def compute_reward(call: Call, body: ComputeRewardIn) -> Any:
    """Score a response.

    A score of null is unknown, not 0.
    """
    check = _check(body.dataset_fields)
    engine = call.deps.engines.resolve(None)
    text = await detokenize(engine, body.response_ids, None)
    if text is None:
        raise EngineError(
            f"engine {engine.name!r} can't decode token ids",
            hint="it needs POST /detokenize, as in vLLM, SGLang, llama.cpp and the embedded engine",
        )
    judged = await run_in_threadpool(score, Path(), {**check, "text": text})
    info = {"verifier": check["verifier"], **judged.details, **({"error": judged.error} if judged.error else {})}
    return {"reward_score": judged.value, "reward_extra_info": info}


def _check(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The verifier's specification from the fields of a data set."""
    model = fields.get("reward_model")
    check = dict(model) if isinstance(model, Mapping) else {}
    source = fields.get("data_source")
    name = check.pop("verifier", None) or fields.get("verifier") or VERIFIERS.get(str(source))
    if name not in TEXT_VERIFIERS:
        raise InvalidInput(
            f"nothing scores {name or source!r}",
            field="dataset_fields.data_source",
            hint=f"data_source {', '.join(VERIFIERS)}, or reward_model.verifier: {', '.join(sorted(TEXT_VERIFIERS))}",
        )
    answer = check.pop("ground_truth", fields.get("ground_truth"))
    return {**check, "verifier": name, "answer": answer}


@routes("GET", "/ready", obj(ready=BOOL), statuses=(503,), same_at=(503,), role=Role.OPEN)
def ready(call: Call) -> Any:
    """Whether calls are accepted."""
    is_ready = not call.deps.policy.syncing
    return json_response({"ready": is_ready}, 200 if is_ready else 503)
