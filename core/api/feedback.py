"""The feedback routes: people and services rate responses at any time, and can revise a rating.

Feedback on a step that is not in the pool yet is kept until the step arrives. ``core.pool.state.feedback_writer``
defines the effect of each kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, model_validator

from core.api.handling import CATCH_UP_S, Call
from core.api.routing import Router
from core.api.schemas import FEEDBACK, INT, LIMIT, OBJ, STR, array, obj
from core.api.wire import Number, Seconds, Uid, WireModel, check
from core.errors import InvalidInput
from core.records import feedback_record
from core.types import FeedbackKind

routes = Router()

MAX_TEXT_CHARS = 1_000_000
THUMBS = {"up": 1.0, "down": 0.0}
EXAMPLE = {
    "feedback": [
        {"feedback_uid": "msg-17-thumb", "response_id": "chatcmpl-abc", "kind": "thumbs", "value": "up"},
        {"step_uid": "t-1:0", "kind": "score", "value": 4, "scale": [1, 5], "author": "kim"},
        {"step_uid": "t-1:0", "kind": "correction", "value": "It should have said: 42."},
        {"trajectory_uid": "t-1", "kind": "event", "value": "accepted", "author": "editor-plugin"},
    ]
}


class FeedbackTarget(WireModel):
    """The target of feedback: exactly one of the three uids."""

    step_uid: Uid | None = None
    trajectory_uid: Uid | None = None
    response_id: Uid | None = Field(None, description="The id of the response that the agent received")
    choice_index: Annotated[int, Field(ge=0, le=1000, strict=True)] = Field(
        0, description="Index of the choice in that response"
    )


class FeedbackIn(FeedbackTarget):
    """One feedback entry. The target's fields are given directly or under ``target``.

    ``value`` by kind: thumbs ``up`` or ``down`` (also true, false); score a number, normalised by ``scale``
    ``[low, high]`` if given; correction and comment a text; event a name (``accepted``, ``copied``, ``regenerated``,
    ``abandoned``, ...). null withdraws it. Sending the same ``feedback_uid`` again revises it: the latest by
    ``given_at`` counts.
    """

    feedback_uid: Uid | None = Field(
        None,
        description="Uid chosen by the caller; sending it again with the same content changes nothing, with new "
        "content revises it",
    )
    target: FeedbackTarget | None = None
    kind: FeedbackKind
    value: bool | float | Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARS)] | None
    scale: tuple[Number, Number] | None = Field(None, description="For scores: its lowest and highest value")
    author: Annotated[str, Field(min_length=1, max_length=256)] = "user"
    source: Annotated[str, Field(min_length=1, max_length=256)] | None = Field(
        None, description="Default: service for events, else human"
    )
    note: Annotated[str, Field(max_length=MAX_TEXT_CHARS)] | None = None
    given_at: Seconds | None = Field(None, description="When it was given, UTC seconds; default: now")
    metadata: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _flatten(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and isinstance(data.get("target"), Mapping):
            inner = data["target"]
            if twice := sorted(set(inner) & set(data)):
                raise ValueError(f"{twice[0]} is given twice: in target and beside it")
            return {**{key: value for key, value in data.items() if key != "target"}, **inner}
        return data

    @model_validator(mode="after")
    def _fits(self) -> FeedbackIn:
        if sum(uid is not None for uid in (self.step_uid, self.trajectory_uid, self.response_id)) != 1:
            raise ValueError("name exactly one of step_uid, trajectory_uid and response_id")
        value, kind = self.value, self.kind
        if self.scale is not None:
            low, high = self.scale
            if kind != FeedbackKind.SCORE or not low < high:
                raise ValueError("a scale is only for scores; it is [lowest, highest] with lowest < highest")
            if isinstance(value, float) and not low <= value <= high:
                raise ValueError(f"the score {value:g} is not on its scale from {low:g} to {high:g}")
        if value is None:
            return self
        if kind == FeedbackKind.THUMBS:
            if isinstance(value, bool):
                self.value = "up" if value else "down"
            elif value not in THUMBS:
                raise ValueError("thumbs are up or down, or null to withdraw them")
        elif kind == FeedbackKind.SCORE:
            if isinstance(value, bool) or not isinstance(value, float):
                raise ValueError("a score is a number, or null to withdraw it")
        elif not isinstance(value, str) or not value.strip():
            raise ValueError(f"a {kind} is a text, or null to withdraw it")
        return self

    def entry(self, feedback_uid: str) -> dict[str, Any]:
        """The entry of the journal record."""
        reward = None
        if self.kind == FeedbackKind.THUMBS and isinstance(self.value, str):
            reward = THUMBS[self.value]
        elif self.kind == FeedbackKind.SCORE and isinstance(self.value, float):
            reward = self.value
            if self.scale is not None:
                reward = (self.value - self.scale[0]) / (self.scale[1] - self.scale[0])
        return {
            "feedback_uid": self.feedback_uid or feedback_uid,
            "step_uid": self.step_uid,
            "trajectory_uid": self.trajectory_uid,
            "response_id": self.response_id,
            "choice_index": self.choice_index,
            "kind": self.kind.value,
            "value": self.value,
            "reward": reward,
            "author": self.author,
            "source": self.source or ("service" if self.kind == FeedbackKind.EVENT else "human"),
            "note": self.note,
            "metadata": {**self.metadata, **({"scale": list(self.scale)} if self.scale is not None else {})},
            "given_at": self.given_at,
        }


class FeedbackBatchIn(WireModel):
    """``POST feedback``: atomic."""

    feedback: Annotated[list[FeedbackIn], Field(min_length=1, max_length=10_000)]


@routes(
    "POST",
    "/feedback",
    obj(accepted=INT, feedback=array(obj(feedback_uid=STR, state=STR))),
    example=EXAMPLE,
    body=FeedbackBatchIn,
)
def receive(call: Call) -> Any:
    """Record feedback of people and live services on responses.

    Thumbs set a reward of 1 or 0. A score sets a reward, normalised by its scale if given. A correction stores the
    corrected text and sets the tag ``corrected``. A comment becomes a note, an event the tag ``event:NAME``. null
    withdraws the feedback. Sending the same feedback_uid again revises it: the latest by given_at counts, all revisions
    are kept. Feedback on a step that is not in the pool yet waits for it. A single entry can be sent as the body.
    """
    deps = call.deps
    body = call.json()
    if isinstance(body, dict) and "feedback" not in body and "kind" in body:
        items = [check(FeedbackIn, body)]
    else:
        items = check(FeedbackBatchIn, body).feedback
    entries = [item.entry(f"fb-{deps.new_uid()}") for item in items]
    deps.journal.append(feedback_record(at=deps.clock(), feedback=entries)).result()
    deps.ingest.catch_up(CATCH_UP_S)
    states = deps.pool.feedback.states([entry["feedback_uid"] for entry in entries])
    return {
        "accepted": len(entries),
        "feedback": [
            {"feedback_uid": uid, "state": states.get(uid, "pending")}
            for uid in (entry["feedback_uid"] for entry in entries)
        ],
    }


@routes(
    "GET",
    "/feedback",
    obj(feedback=array(FEEDBACK), counts=obj(n_feedback=INT, n_pending=INT, by_kind=OBJ, by_value=OBJ)),
    query={
        "kind": {"enum": [kind.value for kind in FeedbackKind]},
        "state": {"enum": ["pending", "arrived"]},
        "step_uid": STR,
        "trajectory_uid": STR,
        "limit": LIMIT,
    },
)
def recent(call: Call) -> Any:
    """Current feedback, newest first."""
    query, pool = call.query, call.deps.pool
    kind, state = query.get("kind"), query.get("state")
    if kind is not None and kind not in set(FeedbackKind):
        raise InvalidInput(f"no feedback of kind {kind!r}", field="kind", hint=", ".join(FeedbackKind))
    if state not in (None, "pending", "arrived"):
        raise InvalidInput(f"{state!r} is not a state", field="state", hint="pending or arrived")
    items = pool.feedback.find(
        step_uid=query.get("step_uid"),
        trajectory_uid=query.get("trajectory_uid"),
        kind=kind,
        pending=None if state is None else state == "pending",
        limit=call.int_query("limit", 100, low=1, high=1000),
    )
    return {"feedback": items, "counts": pool.feedback.counts()}


@routes("GET", "/feedback/{uid:path}", {"allOf": [FEEDBACK, obj(revisions=array(OBJ))]}, statuses=(404,))
def one(call: Call) -> Any:
    """One feedback entry with its revisions."""
    return call.deps.pool.feedback.get(call.path["uid"])
