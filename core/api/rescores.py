"""The routes for scoring again: start, compare with the rewards in effect, adopt or discard."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field

from core.api.handling import Call
from core.api.routing import Router
from core.api.schemas import ANY, BOOL, INT, INT_OR_NULL, OBJ, STR, TEXT_OR_NULL, array, obj, or_null
from core.api.wire import Number, ViewIn, WireModel
from core.errors import InvalidInput
from core.rewards.policy import Missing
from core.scoring.results import MAX_REPEATS

routes = Router()

ABOUT: Final = {
    "name": STR, "settings": OBJ, "running": BOOL, "n_done": INT, "n_total": INT_OR_NULL, "error": TEXT_OR_NULL,
    "adopted": or_null(OBJ), "spending": or_null(OBJ),
}  # fmt: skip
SHOWN: Final = obj(**ABOUT, comparison=OBJ, reliability=OBJ)


class JudgeIn(WireModel):
    """How a judge is asked."""

    model: Annotated[str, Field(min_length=1)]
    temperature: Annotated[Number, Field(ge=0, le=10)] | None = None
    max_tokens: Annotated[int, Field(ge=1, strict=True)] = 512
    max_calls: Annotated[int, Field(ge=0, strict=True)] | None = Field(None, description="Budget of calls")
    max_usd: Annotated[Number, Field(ge=0)] | None = Field(
        None, description="Budget in US dollars, by the list price of the model"
    )
    timeout_s: Annotated[Number, Field(gt=0, le=3600)] = 120.0


class RescoreIn(WireModel):
    """``POST rescores``."""

    name: Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    view: ViewIn = Field(default_factory=ViewIn)
    verifier: str | dict[str, Any] = Field(
        "task", description="task (each task's own check), rubric (each task's rubric), or a check for all"
    )
    repeats: Annotated[int, Field(ge=1, le=MAX_REPEATS, strict=True)] = 1
    judge: JudgeIn | None = None
    isolation: str = Field("process", description="Lowest level of isolation of checks that run programs")
    author: Annotated[str, Field(min_length=1)] = "api"


class AdoptRescoreIn(WireModel):
    """``POST rescores/{name}/adopt``."""

    author: Annotated[str, Field(min_length=1)] = "api"
    combine: str | dict[str, Number] | None = Field(
        None,
        description="Combine the new rewards, as a rubric, with those of the source code: code_only, mean, "
        "code_0.7_rubric_0.3, or weights {code, rubric}. null: the new rewards count first",
    )
    code: Annotated[str, Field(min_length=1)] = Field("complete", description="Source of the rewards by code")
    missing: Missing = Field(
        "unscored",
        description="With combine, a trajectory of the channel that has only one of both rewards is unscored. With "
        "skip it keeps that one, such as at tasks without a rubric",
    )


@routes("GET", "/rescores", obj(rescores=array(obj(**ABOUT))))
def rescores(call: Call) -> Any:
    """All re-scorings, newest first."""
    return {"rescores": call.deps.rescoring.all()}


@routes(
    "POST", "/rescores", SHOWN, statuses=(404, 409), example={"name": "again", "view": {"filters": {"channel": "none"}}}
)
def start(call: Call, body: RescoreIn) -> Any:
    """Score the trajectories of a view again, in the background.

    Workspaces are those that rollouts have kept. No reward changes until the results are adopted.
    """
    fields = body.model_dump(exclude={"judge"})
    if isinstance(body.verifier, dict) and _names_files(body.verifier):
        raise InvalidInput(
            "the check names files of this machine",
            field="verifier",
            hint="checks with program or folder are those of a pack: use the verifier task",
        )
    judge = None if body.judge is None else body.judge.model_dump()
    return call.deps.rescoring.start({**fields, "judge": judge})


def _names_files(check: dict[str, Any]) -> bool:
    """Whether a check runs programs by their path, here or inside ``every``."""
    inner = check.get("checks")
    return bool({"program", "folder"} & check.keys()) or (
        isinstance(inner, list) and any(isinstance(one, dict) and _names_files(one) for one in inner)
    )


@routes("GET", "/rescores/{name}", SHOWN, statuses=(404,))
def show(call: Call) -> Any:
    """Old and new rewards side by side, and how reliable the verifier is."""
    return call.deps.rescoring.show(call.path["name"])


@routes("GET", "/rescores/{name}/results", obj(results=array(OBJ)), statuses=(404,), query={"trajectory_uid": STR})
def results(call: Call) -> Any:
    """All results of one trajectory, with their reasons."""
    return {"results": call.deps.rescoring.results(call.path["name"], call.query.get("trajectory_uid", ""))}


@routes("POST", "/rescores/{name}/resume", SHOWN, statuses=(404, 409))
def resume(call: Call) -> Any:
    """Go on with a re-scoring that was stopped or interrupted."""
    return call.deps.rescoring.resume(call.path["name"])


@routes("POST", "/rescores/{name}/stop", SHOWN, statuses=(404,))
def stop(call: Call) -> Any:
    """Stop a re-scoring after the scores that run now."""
    call.deps.rescoring.stop(call.path["name"])
    return call.deps.rescoring.show(call.path["name"])


@routes("POST", "/rescores/{name}/adopt", obj(**ABOUT), statuses=(404, 409))
def adopt(call: Call, body: AdoptRescoreIn) -> Any:
    """Give the new rewards to the trajectories, and adopt a reward policy that prefers them."""
    return call.deps.rescoring.adopt(
        call.path["name"], author=body.author, combine=body.combine, code=body.code, missing=body.missing
    )


@routes("DELETE", "/rescores/{name}", obj(discarded=ANY), statuses=(404,))
def discard(call: Call) -> Any:
    """Discard a re-scoring with its results; rewards that were adopted stay."""
    call.deps.rescoring.discard(call.path["name"])
    return {"discarded": call.path["name"]}
