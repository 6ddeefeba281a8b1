"""What each route takes and gives, in JSON Schema: the source of ``/openapi.json``.

Bodies are the very models that handlers check with; answers name what callers may rely on, and hold more.
``tests/api/test_openapi.py`` holds this table against the routes and the routes against this table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel

from core.api import clawr1, feedback, trainer_wire, wire
from core.api.trainer_wire import MAX_WAIT_S
from core.api.wire import FILTERS_NOTE, WHERE_NOTE
from core.types import FeedbackKind

Schema = Mapping[str, Any]

ANY: Final[Schema] = {}
STR: Final[Schema] = {"type": "string"}
TEXT_OR_NULL: Final[Schema] = {"type": ["string", "null"]}
INT: Final[Schema] = {"type": "integer"}
INT_OR_NULL: Final[Schema] = {"type": ["integer", "null"]}
NUM: Final[Schema] = {"type": "number"}
NUM_OR_NULL: Final[Schema] = {"type": ["number", "null"]}
BOOL: Final[Schema] = {"type": "boolean"}
OBJ: Final[Schema] = {"type": "object"}
VIEW: Final[Schema] = {"type": "object", "description": "filters, where"}
TIME: Final[Schema] = {"type": ["number", "null"], "description": "UTC seconds since the epoch"}


def array(items: Schema) -> Schema:
    """A list."""
    return {"type": "array", "items": items}


def or_null(schema: Schema) -> Schema:
    """The same, or unknown."""
    return {"anyOf": [schema, {"type": "null"}]}


def obj(**properties: Schema) -> Schema:
    """An object that has at least these."""
    return {"type": "object", "properties": properties, "required": sorted(properties)}


def whole(low: int, high: int) -> Schema:
    """A bounded integer of the query string."""
    return {"type": "integer", "minimum": low, "maximum": high}


LIMIT: Final = whole(1, 1000)
STEP_ROW: Final = obj(
    step_uid=STR, trajectory_uid=STR, prompt_uid=STR, step_index=INT, channel=STR, source=STR, agent=TEXT_OR_NULL,
    model=TEXT_OR_NULL, policy_version=INT_OR_NULL, token_source=STR, transition=TEXT_OR_NULL, call_kind=STR,
    identity_source=STR, reward=NUM_OR_NULL, trainable=BOOL, is_last=BOOL, finish_reason=TEXT_OR_NULL,
    n_prompt_tokens=INT_OR_NULL, n_response_tokens=INT_OR_NULL, created_at=STR, metadata=OBJ,
)  # fmt: skip
WHOLE_STEP: Final = {
    "allOf": [
        STEP_ROW,
        obj(
            prompt_ids=or_null(array(INT)), response_ids=or_null(array(INT)),
            response_logprobs=or_null(array(NUM_OR_NULL)), response_mask=or_null(array(INT)),
            messages=or_null(array(OBJ)), tools=or_null(array(OBJ)), response_message=or_null(OBJ),
            parent_step_uid=TEXT_OR_NULL, n_shared_tokens=INT,
        ),
    ]
}  # fmt: skip
NEXT: Final = obj(step_uid=STR, created_at=STR, messages=array(OBJ))
FEEDBACK: Final = obj(
    feedback_uid=STR, kind={"enum": [kind.value for kind in FeedbackKind]}, value=ANY, reward=NUM_OR_NULL, author=STR,
    source=STR, note=TEXT_OR_NULL, metadata=OBJ, given_at=TIME, received_at=TIME, target=OBJ, step_uid=TEXT_OR_NULL,
    trajectory_uid=TEXT_OR_NULL, state={"enum": ["applied", "pending", "withdrawn"]}, n_revisions=INT,
)  # fmt: skip
TOTALS: Final = obj(
    n_groups=INT, n_trajectories=INT, n_steps=INT, n_tokens=INT, n_packed_tokens=INT_OR_NULL, token_ratio=NUM_OR_NULL
)
POLICY: Final = obj(version=INT_OR_NULL, syncing=BOOL, sync=or_null(OBJ), history=array(OBJ))
SESSION: Final = obj(
    key_id=STR, trajectory_uid=STR, prompt_uid=TEXT_OR_NULL, channel=STR, agent=TEXT_OR_NULL, metadata=OBJ,
    limits=OBJ, created_at=TIME, revoked_at=TIME,
)  # fmt: skip
BATCH: Final = obj(batch_uid=STR, state=STR)
BINARY: Final[Schema] = {"type": "string", "format": "binary"}


@dataclass(frozen=True, slots=True)
class Operation:
    """One route.

    Attributes:
        summary: one line.
        answer: schema of the 200 answer.
        body: the model that its body is checked with, or a schema; None where it takes none.
        needs_body: False where an empty body means the defaults.
        query: its query parameters.
        statuses: what it answers beside 200, 401 and 422.
        media: other forms of its 200 answer.
        example: of the body.
        note: further words.
    """

    summary: str
    answer: Schema
    body: type[BaseModel] | Schema | None = None
    needs_body: bool = True
    query: Mapping[str, Schema] = field(default_factory=dict)
    statuses: Sequence[int] = ()
    media: Sequence[str] = ("application/json",)
    body_media: str = "application/json"
    example: Any = None
    note: str | None = None


_FEEDBACK_NOTE: Final = (
    "thumbs become a reward of 1 or 0, a score a reward (placed on its scale where one is given), a correction the "
    "text that should have been said and the tag `corrected`, a comment a note, an event the tag `event:NAME`. "
    "null withdraws. The same feedback_uid again revises: the latest by given_at counts, every word is kept. What "
    "names a step that has not arrived waits for it. One entry may also be the body itself."
)

API: Final[Mapping[tuple[str, str], Operation]] = {
    ("POST", "/sessions"): Operation(
        "Mint a key bound to one trajectory",
        obj(
            api_key=STR,
            key_id=STR,
            base_url=STR,
            anthropic_base_url=STR,
            trajectory_uid=STR,
            prompt_uid=TEXT_OR_NULL,
            channel=STR,
        ),
        wire.SessionIn,
        needs_body=False,
    ),
    ("GET", "/sessions"): Operation(
        "Session keys by id, newest first",
        obj(sessions=array(SESSION), n_sessions=INT),
        query={"trajectory_uid": STR, "limit": whole(1, 10_000)},
    ),
    ("DELETE", "/sessions/{name}"): Operation(
        "Take back a key (key_id) or all keys of a trajectory", obj(revoked=array(STR), n_keys=INT), statuses=(404,)
    ),
    ("POST", "/steps"): Operation(
        "Submit steps; all or nothing, idempotent by step_uid",
        obj(accepted=INT, step_uids=array(STR), ingested=BOOL),
        wire.StepsIn,
        statuses=(409,),
        example={"steps": [{"trajectory_uid": "t-1", "step_index": 0, "prompt_ids": [1, 2], "response_ids": [3]}]},
    ),
    ("POST", "/steps/known"): Operation("Which of these steps are stored", obj(known=array(STR)), wire.StepUidsIn),
    ("POST", "/imports"): Operation(
        "Submit steps as JSON lines",
        obj(accepted=INT, step_uids=array(STR), ingested=BOOL),
        STR,
        query={"channel": STR},
        statuses=(409,),
        body_media="application/jsonl",
    ),
    ("POST", "/trajectories/{uid}/complete"): Operation(
        "Close a trajectory",
        obj(trajectory_uid=STR, complete=BOOL, reward=NUM_OR_NULL),
        wire.CompleteIn,
        needs_body=False,
        statuses=(404,),
    ),
    ("POST", "/annotations"): Operation(
        "Append opinions", obj(accepted=INT, action_uid=STR), wire.AnnotationsIn, statuses=(404,)
    ),
    ("POST", "/actions/{uid}/undo"): Operation(
        "Take an action's opinions out of effect", obj(action_uid=STR, undone=BOOL), statuses=(404,)
    ),
    ("POST", "/actions/{uid}/redo"): Operation(
        "Let an undone action count again", obj(action_uid=STR, undone=BOOL), statuses=(404,)
    ),
    ("POST", "/feedback"): Operation(
        "Feedback of people and live services on answers",
        obj(accepted=INT, feedback=array(obj(feedback_uid=STR, state=STR))),
        feedback.FeedbackBatchIn,
        example=feedback.EXAMPLE,
        note=_FEEDBACK_NOTE,
    ),
    ("GET", "/feedback"): Operation(
        "Feedback in force, newest first",
        obj(
            feedback=array(FEEDBACK),
            counts=obj(n_feedback=INT, n_pending=INT, by_kind=OBJ, by_value=OBJ),
        ),
        query={
            "kind": {"enum": [kind.value for kind in FeedbackKind]},
            "state": {"enum": ["pending", "arrived"]},
            "step_uid": STR,
            "trajectory_uid": STR,
            "limit": LIMIT,
        },
    ),
    ("GET", "/feedback/{uid}"): Operation(
        "One feedback with every revision", {"allOf": [FEEDBACK, obj(revisions=array(OBJ))]}, statuses=(404,)
    ),
    ("GET", "/steps"): Operation(
        "A page of steps",
        obj(steps=array(STEP_ROW), next_cursor=TEXT_OR_NULL),
        query={
            "view": {**STR, "description": "A saved view, by its name"},
            "where": {**STR, "description": WHERE_NOTE},
            "filters": {**STR, "description": f"A JSON object. {FILTERS_NOTE}"},
            "order": STR,
            "limit": LIMIT,
            "cursor": STR,
            "trajectory_uid": STR,
            "prompt_uid": STR,
            "channel": STR,
        },
        statuses=(404,),
    ),
    ("GET", "/steps/{uid}"): Operation(
        "One step with tokens, messages, feedback and consumption",
        {"allOf": [WHOLE_STEP, obj(next_state=or_null(NEXT), feedback=array(FEEDBACK), consumption=ANY)]},
        statuses=(404,),
    ),
    ("GET", "/trajectories/{uid}"): Operation(
        "One trajectory with its steps in order",
        obj(
            trajectory_uid=STR,
            prompt_uid=TEXT_OR_NULL,
            channel=STR,
            complete=BOOL,
            reward=NUM_OR_NULL,
            steps=array(WHOLE_STEP),
            feedback=array(FEEDBACK),
        ),
        statuses=(404,),
    ),
    ("GET", "/groups/{uid}"): Operation(
        "One prompt group", obj(prompt_uid=STR, channels=array(OBJ), trajectories=array(OBJ)), statuses=(404,)
    ),
    ("GET", "/stats"): Operation(
        "Counts, rates, ingest lag, what was dropped",
        obj(
            n_steps=INT,
            n_trajectories=INT,
            n_groups=INT,
            n_dropped=INT,
            ingest_lag_s=NUM,
            problems=array(OBJ),
            journal_bytes=INT,
            rates=OBJ,
            n_calls=INT,
            n_errors=INT,
            engines=array(OBJ),
            policy_version=INT_OR_NULL,
        ),
    ),
    ("GET", "/healthz"): Operation(
        "Whether calls are captured and arrive; 503 when not", obj(ok=BOOL, problems=array(OBJ)), statuses=(503,)
    ),
    ("GET", "/readyz"): Operation("Whether calls can be taken", obj(ready=BOOL), statuses=(503,)),
    ("GET", "/metrics"): Operation("Prometheus metrics", STR, media=("text/plain",)),
    ("POST", "/plans"): Operation(
        "What would be trained, and what not and why",
        obj(totals=TOTALS, groups=array(OBJ), excluded=array(obj(reason=STR))),
        wire.PlanIn,
        needs_body=False,
        statuses=(404,),
    ),
    ("POST", "/exports"): Operation(
        "Write a plan's files on the service's machine",
        obj(path=STR, manifest_path=STR, n_rows=INT, n_tokens=INT),
        wire.ExportIn,
        statuses=(404, 409),
    ),
    ("POST", "/values"): Operation(
        "A critic's values of steps, computed elsewhere",
        obj(model=STR, accepted=INT),
        trainer_wire.ValuesIn,
        statuses=(404,),
    ),
    ("POST", "/values/compute"): Operation(
        "A critic's values of steps, by a model on the service's machine",
        obj(model=STR, accepted=INT),
        trainer_wire.ComputeValuesIn,
        statuses=(404,),
    ),
    ("GET", "/values"): Operation("Critics with stored values", OBJ),
    ("POST", "/policy"): Operation(
        "Report the policy's version or a weight sync",
        POLICY,
        wire.PolicyIn,
    ),
    ("GET", "/policy"): Operation("The policy's version, the weight sync under way, and the history", POLICY),
    ("DELETE", "/policy/sync"): Operation(
        "End a weight sync that nobody finishes: the version before it stays in force",
        POLICY,
        statuses=(409,),
        needs_body=False,
    ),
    ("POST", "/batches/fetch"): Operation(
        "Lease a batch",
        OBJ,
        trainer_wire.FetchIn,
        statuses=(404, 409),
        media=("application/json", "application/vnd.apache.arrow.stream"),
        note=f"Waits up to wait_s (at most {MAX_WAIT_S:g}) seconds until enough groups are ready.",
    ),
    ("GET", "/batches"): Operation(
        "Batches, newest first", obj(batches=array(BATCH)), query={"channel": STR, "limit": LIMIT}
    ),
    ("GET", "/batches/{uid}"): Operation("One batch", BATCH, statuses=(404,)),
    ("GET", "/batches/{uid}/file"): Operation(
        "One batch as a file", BINARY, query={"format": STR}, statuses=(404, 409), media=("application/octet-stream",)
    ),
    ("POST", "/batches/{uid}/ack"): Operation(
        "A batch was consumed", OBJ, trainer_wire.AckIn, False, statuses=(404, 409)
    ),
    ("POST", "/batches/{uid}/release"): Operation(
        "A batch goes back", OBJ, trainer_wire.ReleaseIn, False, statuses=(404, 409)
    ),
    ("POST", "/batches/{uid}/renew"): Operation(
        "More time for a batch", OBJ, trainer_wire.RenewIn, False, statuses=(404, 409)
    ),
    ("POST", "/batches/{uid}/metrics"): Operation(
        "What was measured on a batch", obj(accepted=INT), trainer_wire.MetricsIn, False, statuses=(404, 409)
    ),
    ("GET", "/views"): Operation("Saved views", obj(views=array(obj(name=STR, view=VIEW, created_at=TIME)))),
    ("GET", "/views/{name}"): Operation("One saved view", obj(name=STR, view=VIEW), statuses=(404,)),
    ("PUT", "/views/{name}"): Operation(
        "Keep a view under a name: steps, plans, fetches and recipes may then name it",
        obj(name=STR, view=VIEW),
        wire.ViewIn,
        False,
        statuses=(404,),
        example={"filters": {"agent": "coder"}, "where": "reward > 0.5"},
    ),
    ("DELETE", "/views/{name}"): Operation("Forget a saved view", obj(deleted=STR), statuses=(404,)),
    ("GET", "/recipes"): Operation("Recipes and which is active", obj(recipes=array(OBJ), active=OBJ)),
    ("GET", "/recipes/{name}"): Operation(
        "All versions of a recipe", obj(name=STR, versions=array(OBJ)), statuses=(404,)
    ),
    ("PUT", "/recipes/{name}"): Operation(
        "A new version of a recipe", obj(name=STR, version=INT, recipe=OBJ), trainer_wire.RecipeIn
    ),
    ("GET", "/recipes/{name}/diff"): Operation(
        "What differs between two versions",
        obj(name=STR, a=INT, b=INT, changes=ANY),
        query={"a": {"type": "integer", "minimum": 1}, "b": {"type": "integer", "minimum": 1}},
        statuses=(404,),
    ),
    ("PUT", "/channels/{channel}/recipe"): Operation(
        "Which recipe a channel uses", obj(channel=STR, active=ANY), trainer_wire.ActiveRecipeIn, False, statuses=(404,)
    ),
    ("GET", "/channels/{channel}/recipe"): Operation("The recipe of a channel", obj(channel=STR, active=ANY)),
}
"""The studio's own calls, below ``/api/v1``."""

ROOT: Final[Mapping[tuple[str, str], Operation]] = {
    ("GET", "/healthz"): API["GET", "/healthz"],
    ("GET", "/readyz"): API["GET", "/readyz"],
    ("GET", "/metrics"): API["GET", "/metrics"],
    ("POST", "/init_trajectory"): Operation(
        "Claw-R1: a fresh trajectory", obj(trajectory_uid=STR, base_url=STR), clawr1.InitIn, needs_body=False
    ),
    ("POST", "/{t}/{p}/v1/register_trajectory"): Operation(
        "Claw-R1: say what a trajectory is", obj(status=STR, trajectory_uid=STR), wire.RegisterIn, needs_body=False
    ),
    ("POST", "/{t}/{p}/v1/complete_trajectory"): Operation(
        "Claw-R1: close a trajectory", obj(status=STR, trajectory_uid=STR), wire.CompleteIn, needs_body=False
    ),
    ("POST", "/complete_trajectory/{t}"): Operation(
        "Claw-R1: close a trajectory", obj(status=STR, trajectory_uid=STR), wire.CompleteIn, needs_body=False
    ),
    ("POST", "/submit_steps"): Operation(
        "Claw-R1: submit steps", obj(accepted=INT), wire.StepsIn, query={"channel": STR}, statuses=(409,)
    ),
    ("POST", "/generate"): Operation(
        "Claw-R1: sample by token ids",
        obj(token_ids=array(INT), log_probs=or_null(array(NUM)), stop_reason=TEXT_OR_NULL, policy_version=INT_OR_NULL),
        clawr1.GenerateIn,
        statuses=(400, 404, 502, 503, 504),
        note="Not captured: who samples this way submits the steps itself.",
    ),
    ("POST", "/compute_reward"): Operation(
        "Claw-R1: score a response",
        obj(reward_score=NUM_OR_NULL, reward_extra_info=OBJ),
        clawr1.ComputeRewardIn,
        statuses=(502, 504),
    ),
    ("GET", "/ready"): Operation("Claw-R1: whether calls can be taken", obj(ready=BOOL), statuses=(503,)),
}
"""Calls at the root."""

_ENGINE: Final = (400, 403, 404, 413, 502, 503, 504, 507)
_REQUEST: Final[Schema] = {
    "type": "object",
    "properties": {"model": {"type": ["string", "null"]}, "stream": {"description": "true asks for events"}},
}


def _capture(summary: str, **needed: Schema) -> Operation:
    body = {**_REQUEST, "properties": {**_REQUEST["properties"], **needed}, "required": sorted(needed)}
    return Operation(
        summary,
        OBJ,
        body,
        statuses=_ENGINE,
        media=("application/json", "text/event-stream"),
        note="Further fields go to the engine as they are. Failures have the dialect's own shape.",
    )


CAPTURE: Final[Mapping[tuple[str, str], Operation]] = {
    ("POST", "/chat/completions"): _capture("OpenAI chat", messages=array(OBJ)),
    ("POST", "/completions"): _capture("OpenAI completions", prompt=ANY),
    ("POST", "/responses"): _capture("OpenAI Responses"),
    ("POST", "/messages"): _capture("Anthropic Messages", messages=array(OBJ)),
    ("POST", "/messages/count_tokens"): Operation(
        "Anthropic token count", obj(input_tokens=INT), {**_REQUEST, "required": ["messages"]}, statuses=_ENGINE
    ),
    ("GET", "/responses/{response_id}"): Operation("An answer of earlier", OBJ, statuses=(400, 404)),
    ("GET", "/models"): Operation("What the engines serve", obj(data=array(OBJ)), statuses=_ENGINE),
    ("GET", "/models/{model}"): Operation("One model", obj(id=STR), statuses=_ENGINE),
}
"""What agents call, below ``/v1`` and ``/{trajectory_uid}/{prompt_uid}/v1``."""
