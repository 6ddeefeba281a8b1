"""The learning routes: reward by policy version and channel, the updates, and the learning demo."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import Field

from core.api.handling import Call
from core.api.routing import Router
from core.api.schemas import BOOL, INT, INT_OR_NULL, NUM, NUM_OR_NULL, OBJ, STR, TEXT_OR_NULL, TIME, array, obj
from core.api.wire import Flag, Version, WireModel
from core.batch.learning import updates
from core.pool.learning import curves
from core.tasks.learn_process import MAX_STALENESS, MAX_UPDATES

routes = Router()

POINT = obj(
    version=INT, update=INT, n_trajectories=INT, n_groups=INT, mean=NUM, low=NUM_OR_NULL, high=NUM_OR_NULL,
    started_at=TIME, ended_at=TIME,
)  # fmt: skip
UPDATE = obj(
    batch_uid=STR, consumer=STR, version=INT_OR_NULL, update=INT_OR_NULL, stages=OBJ, staleness_max=INT_OR_NULL,
    reward_mean=NUM_OR_NULL, metrics=OBJ,
)  # fmt: skip
DEMO = obj(running=BOOL, updates=INT, update=INT, error=TEXT_OR_NULL)


class LearnIn(WireModel):
    """``POST learning/demo``."""

    updates: Annotated[int, Field(ge=1, le=MAX_UPDATES, strict=True)] = 15
    seed: Version = 0
    max_staleness: Annotated[int, Field(ge=0, le=MAX_STALENESS, strict=True)] = Field(
        0, description="Versions by which the rollouts of an update may be behind; above 0 they do not wait for it"
    )
    control: Literal["shuffle"] | None = Field(
        None, description="shuffle: a second run follows whose trainer exchanges rewards, and which only drifts"
    )
    dry_run: Flag = Field(False, description="Check the request and start nothing")


@routes(
    "GET",
    "/learning",
    obj(curves=array(obj(run=STR, channel=STR, about=OBJ, points=array(POINT))), updates=array(UPDATE), demo=DEMO),
    query={"channel": {**STR, "description": "Channel of the updates; by default train"}},
)
def learning(call: Call) -> Any:
    """Mean reward by policy version and channel, with a 95 % band, and the updates of one channel.

    A trajectory counts for the version that began it, if it is complete and scored. The band takes prompt groups as
    independent, not attempts.
    """
    pool = call.deps.pool
    drawn = [
        {
            "run": curve["run"].name,
            "channel": curve["channel"],
            "about": dict(curve["run"].about),
            "points": [{**asdict(point), "update": update} for point, update in curve["points"]],
        }
        for curve in curves(pool.learning.by_version(), pool.learning.runs())
    ]
    made = [one.to_json() for one in updates(pool, call.query.get("channel", "train"))]
    return {"curves": drawn, "updates": made, "demo": call.deps.learning.status()}


@routes("POST", "/learning/demo", DEMO, statuses=(409, 502), reads_pool=False, example={"updates": 15, "dry_run": True})
def start_demo(call: Call, body: LearnIn) -> Any:
    """Start the learning demo: a small policy that is trained through the studio, on this machine.

    Its engine, its rollouts and the reference trainer are processes of the service. A second start while it runs is
    refused.
    """
    if not body.dry_run:
        call.deps.learning.start(
            updates=body.updates, seed=body.seed, max_staleness=body.max_staleness, control=body.control
        )
    return call.deps.learning.status()


@routes("GET", "/learning/demo", {**DEMO, "properties": {**DEMO["properties"], "events": array(OBJ)}}, reads_pool=False)
def demo_state(call: Call) -> Any:
    """Progress of the learning demo, with all messages of its newest run."""
    return {**call.deps.learning.status(), "events": call.deps.learning.events()}


@routes("DELETE", "/learning/demo", DEMO, reads_pool=False)
def stop_demo(call: Call) -> Any:
    """Stop the learning demo; what was captured stays."""
    call.deps.learning.stop()
    return call.deps.learning.status()
