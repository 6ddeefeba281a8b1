"""The producers' routes: sessions, steps, completion, annotations, imports.

Facts are written to the journal, like captured calls. They are on disk before the response, and read exactly once after
a crash. A completion returns when it is on disk; routes that read the pool wait until it is stored there. Opinions are
written to the pool and its opinions log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from core.api import wire
from core.api.handling import CATCH_UP_S, ApiDeps, Call
from core.api.routing import Router
from core.api.schemas import BOOL, INT, NUM_OR_NULL, STR, TEXT_OR_NULL, array, obj
from core.errors import Conflict, InvalidInput, NotFound, Overloaded
from core.gateway.access.keys import KeyLimits, key_id
from core.journal import Position
from core.records import complete_record, register_record, session_record, steps_record
from core.scrub import scrub_metadata, scrub_step

routes = Router()


def mint_session(deps: ApiDeps, session: wire.SessionIn, base_url: str | None = None) -> dict[str, Any]:
    """Create a key for one trajectory. The secret is returned once, and only its hash is stored."""
    trajectory_uid = session.trajectory_uid or deps.new_uid()
    channel = session.channel or deps.settings.channel
    metadata = scrub_metadata(session.metadata)
    limits = session.limits(deps.clock())
    key, key_sha256 = deps.keys.mint(
        trajectory_uid=trajectory_uid,
        prompt_uid=session.prompt_uid,
        channel=channel,
        agent=session.agent,
        metadata=metadata,
        limits=KeyLimits.of(limits),
    )
    deps.journal.append(
        session_record(
            at=deps.clock(),
            key_sha256=key_sha256,
            trajectory_uid=trajectory_uid,
            prompt_uid=session.prompt_uid,
            channel=channel,
            agent=session.agent,
            metadata=metadata,
            limits=limits,
        )
    ).result()
    root = base_url or deps.base_url()
    return {
        "api_key": key,
        "key_id": key_id(key_sha256),
        "base_url": f"{root}/v1",
        # Anthropic's clients append /v1.
        "anthropic_base_url": root,
        "trajectory_uid": trajectory_uid,
        "prompt_uid": session.prompt_uid,
        "channel": channel,
    }


@routes(
    "POST",
    "/sessions",
    obj(
        api_key=STR,
        key_id=STR,
        base_url=STR,
        anthropic_base_url=STR,
        trajectory_uid=STR,
        prompt_uid=TEXT_OR_NULL,
        channel=STR,
    ),
    reads_pool=False,
)
def sessions(call: Call, body: wire.SessionIn) -> Any:
    """Create a session key for one trajectory."""
    return mint_session(call.deps, body, call.base_url)


def submit_steps(deps: ApiDeps, body: wire.StepsIn, *, channel: str | None = None) -> dict[str, Any]:
    """Write steps to the journal and wait until they are in the pool. Stored steps are accepted again if unchanged."""
    now = deps.clock()
    steps = [scrub_step(step.wire(now=now, channel=channel or deps.settings.channel)) for step in body.steps]
    _refuse_contradictions(deps, steps)
    deps.journal.append(steps_record(at=now, steps=steps)).result()
    readable = deps.ingest.catch_up(CATCH_UP_S)
    return {"accepted": len(steps), "step_uids": [step["step_uid"] for step in steps], "ingested": readable}


def _refuse_contradictions(deps: ApiDeps, steps: list[dict[str, Any]]) -> None:
    """Raise Conflict if a uid has different facts in the request or in the pool: facts never change."""
    seen: dict[str, dict[str, Any]] = {}
    for index, step in enumerate(steps):
        uid = step["step_uid"]
        other = seen.setdefault(uid, step)
        if other is not step and not _same_facts(other, step):
            raise Conflict(f"two steps of this request share the uid {uid!r}", field=f"steps.{index}.step_uid")
    deps.ingest.catch_up(CATCH_UP_S)
    for uid in deps.pool.steps.existing(list(seen)):
        stored = deps.pool.steps.get(uid)
        if not _same_facts(stored, seen[uid]):
            raise Conflict(
                f"step {uid!r} is stored with different content",
                field="step_uid",
                hint="facts never change: send it under a new step_uid or step_index",
            )


def _same_facts(stored: dict[str, Any], step: dict[str, Any]) -> bool:
    def ids(value: Any) -> list[int] | None:
        return None if value is None else [int(x) for x in value]

    def mask(value: Any) -> list[int] | None:
        return None if value is None or all(value) else ids(value)

    return (
        stored["trajectory_uid"] == step["trajectory_uid"]
        and stored["step_index"] == step["step_index"]
        and ids(stored.get("prompt_ids")) == ids(step.get("prompt_ids"))
        and ids(stored.get("response_ids")) == ids(step.get("response_ids"))
        and mask(stored.get("response_mask")) == mask(step.get("response_mask"))
    )


@routes(
    "POST",
    "/steps",
    obj(accepted=INT, step_uids=array(STR), ingested=BOOL),
    statuses=(409,),
    example={"steps": [{"trajectory_uid": "t-1", "step_index": 0, "prompt_ids": [1, 2], "response_ids": [3]}]},
)
def steps(call: Call, body: wire.StepsIn) -> Any:
    """Submit steps. Atomic, and idempotent by step_uid."""
    return submit_steps(call.deps, body)


def complete_trajectory(
    deps: ApiDeps, trajectory_uid: str, body: wire.CompleteIn, *, prompt_uid: str | None = None
) -> dict[str, Any]:
    """Complete a trajectory; returns when this is on disk. Its steps may not be in the pool yet."""
    deps.ingest.expect([_journal_completion(deps, trajectory_uid, body, prompt_uid).result()])
    return {"trajectory_uid": trajectory_uid, "complete": True, "reward": body.reward}


def _journal_completion(
    deps: ApiDeps, trajectory_uid: str, body: wire.CompleteIn, prompt_uid: str | None = None
) -> Future[Position]:
    """Queue a completion's record; the future is done when it is on disk."""
    record = complete_record(
        at=deps.clock(),
        trajectory_uid=trajectory_uid,
        prompt_uid=prompt_uid,
        channel=body.channel,
        reward=body.reward,
        outcome=body.outcome,
    )
    return deps.journal.append(record)


@routes(
    "POST",
    "/trajectories/{uid:uid}/complete",
    obj(trajectory_uid=STR, complete=BOOL, reward=NUM_OR_NULL),
    statuses=(404, 503),
    reads_pool=False,
)
def complete(call: Call, body: wire.CompleteIn) -> Any:
    """Complete a trajectory.

    Returns when this is on disk; later requests see it. An unknown trajectory is refused.
    """
    uid = call.path["uid"]
    _refuse_unknown(call.deps, [uid], lambda _: "uid")
    return complete_trajectory(call.deps, uid, body)


@routes(
    "POST",
    "/trajectories/complete",
    obj(completed=INT),
    statuses=(404, 503),
    reads_pool=False,
    example={"completions": [{"trajectory_uid": "t-1", "reward": 1.0}, {"trajectory_uid": "t-2", "reward": 0.0}]},
)
def complete_many(call: Call, body: wire.CompletionsIn) -> Any:
    """Complete many trajectories.

    Like one call for each, but with a single disk sync. If one trajectory is unknown, all are refused.
    """
    deps, completions = call.deps, body.completions
    _refuse_unknown(deps, [one.trajectory_uid for one in completions], "completions.{}.trajectory_uid".format)
    stored = [_journal_completion(deps, one.trajectory_uid, one) for one in completions]
    deps.ingest.expect([future.result() for future in stored])
    return {"completed": len(stored)}


def _refuse_unknown(deps: ApiDeps, uids: Sequence[str], field: Callable[[int], str]) -> None:
    """Raise NotFound for the first trajectory without steps and session keys; ``field`` names its place in the body."""
    unregistered = [uid for uid in uids if not deps.keys.knows_trajectory(uid)]
    known = deps.pool.trajectories.known(unregistered) if unregistered else set()
    if len(known) < len(set(unregistered)):
        # The first call of a trajectory may not be in the pool yet.
        readable = deps.ingest.catch_up(CATCH_UP_S)
        known = deps.pool.trajectories.known(unregistered)
        if not readable and len(known) < len(set(unregistered)):
            raise Overloaded(
                f"ingest is more than {CATCH_UP_S:g} s behind, so it is not known whether the trajectory exists",
                hint="try again",
            )
    unknown = set(unregistered) - known
    for number, uid in enumerate(uids):
        if uid in unknown:
            raise NotFound(f"no trajectory {uid!r}", field=field(number), hint="POST /api/v1/sessions creates one")


def register_trajectory(
    deps: ApiDeps, trajectory_uid: str, body: wire.RegisterIn, *, prompt_uid: str | None = None
) -> None:
    """Register a trajectory's metadata before or during its calls."""
    deps.journal.append(
        register_record(
            at=deps.clock(),
            trajectory_uid=trajectory_uid,
            prompt_uid=prompt_uid,
            channel=body.channel,
            agent=body.agent,
            metadata=body.metadata,
        )
    ).result()


@routes("POST", "/annotations", obj(accepted=INT, action_uid=STR), statuses=(404,), reads_pool=False)
def annotate(call: Call, body: wire.AnnotationsIn) -> Any:
    """Append opinions.

    They are one transaction and one entry in the history.
    """
    now = call.deps.clock()
    action_uid = call.deps.annotations.append([a.annotation(now) for a in body.annotations])
    return {"accepted": len(body.annotations), "action_uid": action_uid}


@routes("POST", "/actions/{uid}/undo", obj(action_uid=STR, undone=BOOL), statuses=(404,))
def undo(call: Call) -> Any:
    """Undo an action: its opinions no longer count."""
    call.deps.pool.labels.undo(call.path["uid"])
    return {"action_uid": call.path["uid"], "undone": True}


@routes("POST", "/actions/{uid}/redo", obj(action_uid=STR, undone=BOOL), statuses=(404,))
def redo(call: Call) -> Any:
    """Redo an undone action."""
    call.deps.pool.labels.redo(call.path["uid"])
    return {"action_uid": call.path["uid"], "undone": False}


@routes("POST", "/steps/known", obj(known=array(STR)))
def known_steps(call: Call, body: wire.StepUidsIn) -> Any:
    """Which of these steps are stored.

    Imports skip those.
    """
    deps = call.deps
    deps.ingest.catch_up(CATCH_UP_S)
    return {"known": deps.pool.steps.existing(body.step_uids)}


@routes(
    "POST",
    "/imports",
    obj(accepted=INT, step_uids=array(STR), ingested=BOOL),
    query={"channel": STR},
    statuses=(409,),
    body_media="application/jsonl",
    body=STR,
)
def imports(call: Call) -> Any:
    """Submit steps as JSON lines.

    One step per line. If a line is invalid, the error names it and nothing is stored.
    """
    lines = [line for line in call.raw.splitlines() if line.strip()]
    if not lines:
        raise InvalidInput("the body has no lines", field="body", hint="send one JSON step per line")
    parsed = []
    for number, line in enumerate(lines, 1):
        body = Call(call.deps, {}, {}, line).json()
        if not isinstance(body, dict):
            raise InvalidInput("a line is not a JSON object", field=f"line {number}")
        parsed.append({"source": "import", **body})
    return submit_steps(call.deps, wire.check(wire.StepsIn, {"steps": parsed}), channel=call.query.get("channel"))
