"""Loads new weights into an engine, in the way of its kind, and checks the version that it has then.

``vllm`` needs ``VLLM_SERVER_DEV_MODE=1`` and reports no version. A weights hook is for all other engines: the studio
posts ``{path, policy_version, engine}`` to it, and it answers ``{policy_version}`` when the engine has the weights.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from core.errors import EngineError
from core.gateway.engines.flavours import CLAW_STUDIO, SGLANG, VLLM

Manage = Callable[[str, str, Mapping[str, Any] | None], Awaitable[tuple[int, Any]]]
"""Sends a request that is no model call: method, path beside ``/v1``, body. Returns status and parsed JSON (None if the
body is not JSON)."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights that an engine has.

    Attributes:
        version: policy version.
        path: their folder.
    """

    version: int
    path: str


@dataclass(frozen=True, slots=True)
class WeightsApi:
    """How one kind of engine loads weights.

    Attributes:
        load: loads the weights; returns the version that the engine reports then, None if it reports none. Raises
            EngineError.
        now: the weights that it has; None if it does not report them.
    """

    load: Callable[[Manage, Weights], Awaitable[int | None]]
    now: Callable[[Manage], Awaitable[Weights | None]]


async def load_and_check(name: str, api: WeightsApi, manage: Manage, weights: Weights) -> bool:
    """Load weights.

    Returns:
        Whether the engine reported the version; False if its kind reports none.

    Raises:
        EngineError: it refused, or reports another version.
    """
    reported = await api.load(manage, weights)
    if reported is None:
        return False
    if reported != weights.version:
        raise EngineError(
            f"engine {name!r} was to load version {weights.version}, but reports version {reported}",
            field="version",
            hint="another program may have loaded weights; sync again",
        )
    return True


async def _done(manage: Manage, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    """The JSON of a request that succeeded. Raises EngineError."""
    status, answer = await manage(method, path, body)
    if status >= 400:
        raise EngineError(f"{method} {path} gave HTTP {status}: {_reason(answer)}")
    return answer


def _reason(answer: Any) -> str:
    error = answer.get("error", answer) if isinstance(answer, Mapping) else answer
    text = error.get("message", error) if isinstance(error, Mapping) else error
    return str(text)[:500]


async def _load_claw_studio(manage: Manage, weights: Weights) -> int | None:
    await _done(manage, "POST", "/reload_weights", {"path": weights.path, "policy_version": weights.version})
    now = await _claw_studio_now(manage)
    return None if now is None else now.version


async def _claw_studio_now(manage: Manage) -> Weights | None:
    answer = await _done(manage, "GET", "/policy_version")
    return Weights(answer["policy_version"], answer["path"])


async def _load_vllm(manage: Manage, weights: Weights) -> int | None:
    status, answer = await manage("POST", "/pause?mode=wait", None)
    if status == 404:
        raise EngineError("it has no /pause", hint="start vLLM with VLLM_SERVER_DEV_MODE=1, or set a weights hook")
    if status >= 400:
        raise EngineError(f"POST /pause gave HTTP {status}: {_reason(answer)}")
    try:
        reload = {"method": "reload_weights", "kwargs": {"weights_path": weights.path}}
        await _done(manage, "POST", "/collective_rpc", reload)
        # Cached keys and values of the old weights would be used for prompts that begin alike.
        reset = await _done(manage, "POST", "/reset_prefix_cache")
        if isinstance(reset, Mapping) and reset.get("success") is False:
            raise EngineError("its prefix cache could not be reset", hint="sync again when no call is in flight")
    finally:
        await manage("POST", "/resume", None)
    return None


async def _load_sglang(manage: Manage, weights: Weights) -> int | None:
    body = {"model_path": weights.path, "weight_version": str(weights.version), "flush_cache": True}
    answer = await _done(manage, "POST", "/update_weights_from_disk", body)
    if not (isinstance(answer, Mapping) and answer.get("success")):
        raise EngineError(f"POST /update_weights_from_disk failed: {_reason(answer)}")
    now = await _sglang_now(manage)
    return None if now is None else now.version


async def _sglang_now(manage: Manage) -> Weights | None:
    for path in ("/model_info", "/get_model_info"):
        status, answer = await manage("GET", path, None)
        if status == 200 and isinstance(answer, Mapping) and str(answer.get("weight_version", "")).isdecimal():
            return Weights(int(answer["weight_version"]), str(answer.get("model_path", "")))
    return None


async def _unknown(manage: Manage) -> Weights | None:
    return None


WEIGHTS_APIS: Mapping[str, WeightsApi] = {
    CLAW_STUDIO.name: WeightsApi(_load_claw_studio, _claw_studio_now),
    VLLM.name: WeightsApi(_load_vllm, _unknown),
    SGLANG.name: WeightsApi(_load_sglang, _sglang_now),
}
"""By the engine's flavour."""


def hook_api(name: str, url: str, post: Callable[[str, Mapping[str, Any]], Awaitable[tuple[int, Any]]]) -> WeightsApi:
    """The API of an engine with a weights hook at ``url``; ``post`` sends JSON to a whole URL."""

    async def load(manage: Manage, weights: Weights) -> int | None:
        body = {"path": weights.path, "policy_version": weights.version, "engine": name}
        status, answer = await post(url, body)
        if status >= 400:
            raise EngineError(f"its weights hook gave HTTP {status}: {_reason(answer)}")
        reported = answer.get("policy_version") if isinstance(answer, Mapping) else None
        if not isinstance(reported, int):
            raise EngineError(
                "its weights hook did not answer with a policy_version",
                hint='answer {"policy_version": N} when the engine has the weights',
            )
        return reported

    return WeightsApi(load, _unknown)
