"""Request models of the producers' routes, and validation (docs/architecture.md, "HTTP contract").

Unknown fields are refused, so that a misspelt field is an error and not a silent default. ``check`` converts the first
validation error to ``InvalidInput`` with the field's path.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from core.errors import InvalidInput
from core.pool.query.columns import STEP_COLUMNS
from core.pool.query.views import FILTERS
from core.types import (
    MAX_UID_CHARS,
    Annotation,
    AnnotationKind,
    CallKind,
    PolicyEventKind,
    Source,
    StepStatus,
    TokenSource,
    Transition,
    View,
    is_uid,
)

MAX_TOKEN_ID = 2**31 - 1
UID_MAX_CHARS = 512
PATH_MAX_BYTES, NAME_MAX_BYTES = 3500, 200
"""Limits of paths and names. Linux allows 4096 and 255; the rest is for files in the folder."""
LATEST = 4_102_444_800.0
"""2100-01-01 in seconds. Later times are refused: they are likely milliseconds."""


def _folder(value: object) -> Path:
    """Check the path of a folder on the service's machine. Raises ValueError."""
    if not isinstance(value, str) or not value:
        raise ValueError("it is not the path of a folder")
    if "\0" in value:
        raise ValueError("a path can't contain NUL")
    path = Path(value)
    if not path.is_absolute():
        raise ValueError("it must be absolute: the service has another working directory")
    if ".." in path.parts:
        raise ValueError("it must not contain '..'")
    if len(value.encode()) > PATH_MAX_BYTES or any(len(part.encode()) > NAME_MAX_BYTES for part in path.parts):
        raise ValueError(f"it is too long: at most {NAME_MAX_BYTES} bytes per name, {PATH_MAX_BYTES} in total")
    return path


def _call_uid(value: str) -> str:
    if not is_uid(value):
        raise ValueError("it must have printable characters only, and no blanks")
    return value


Folder = Annotated[Path, BeforeValidator(_folder, json_schema_input_type=str)]
Uid = Annotated[str, Field(min_length=1, max_length=UID_MAX_CHARS)]
CallUid = Annotated[str, Field(min_length=1, max_length=MAX_UID_CHARS), AfterValidator(_call_uid)]
"""A uid or channel of captured calls; the gateway would refuse each call that has another."""
TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID, strict=True)]
# Strict: a reward of false is an error, not 0.
Number = Annotated[float, Field(strict=True)]
Flag = Annotated[bool, Field(strict=True)]
Count = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID, strict=True)]
MaskBit = Annotated[int, Field(ge=0, le=1, strict=True)]
Version = Annotated[int, Field(ge=0, le=2**63 - 1, strict=True)]
Seconds = Annotated[float, Field(ge=0, le=LATEST, strict=True)]

ModelT = TypeVar("ModelT", bound="WireModel")


class WireModel(BaseModel):
    """Base of request bodies: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


def check(model: type[ModelT], body: object) -> ModelT:
    """Validate ``body``. Raises InvalidInput, which names the first invalid field and counts the others."""
    try:
        return model.model_validate(body)
    except ValidationError as err:
        problems = err.errors(include_url=False)
        first = problems[0]
        field = ".".join(str(part) for part in first["loc"]) or None
        more = f" ({len(problems) - 1} more)" if len(problems) > 1 else ""
        hint = None
        if first["type"] == "extra_forbidden":
            hint = "known fields: " + ", ".join(sorted(known_fields(model, first["loc"])))
        raise InvalidInput(first["msg"] + more, field=field, hint=hint) from err


def known_fields(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """Valid field names at the level of the last part of ``loc``, in nested models."""
    current: type[BaseModel] = model
    for part in loc[:-1]:
        if not isinstance(part, str) or part not in current.model_fields:
            continue
        nested = [arg for arg in _models_in(current.model_fields[part].annotation) if issubclass(arg, BaseModel)]
        if nested:
            current = nested[0]
    return [info.alias or name for name, info in current.model_fields.items()]


def _models_in(annotation: Any) -> list[type]:
    args = getattr(annotation, "__args__", ())
    if not args:
        return [annotation] if isinstance(annotation, type) else []
    return [model for arg in args for model in _models_in(arg)]


class StepIn(WireModel):
    """A step from a white-box producer, an import, or the studio's export.

    ``prompt_ids`` and ``response_ids`` are token ids; ``response_logprobs`` are nats, one per id of ``response_ids``.
    Lengths that disagree are refused, so that the producer can fix them. Fields after ``metadata`` are only sent by
    imports: they describe how the step was captured.
    """

    trajectory_uid: Uid
    step_index: Count
    prompt_uid: Uid | None = None
    step_uid: Uid | None = None
    prompt_ids: list[TokenId] | None = None
    response_ids: list[TokenId] | None = None
    response_logprobs: list[Number | None] | None = Field(None, description="null if unknown")
    response_mask: list[MaskBit] | None = Field(
        None, description="0: the token must not be in a loss; null: all tokens may be"
    )
    reward: Number | None = None
    policy_version: Version | None = None
    is_last: Flag = False
    channel: Annotated[str, Field(min_length=1)] | None = None
    source: Source = Source.WHITEBOX
    agent: str | None = None
    model: str | None = None
    messages: list[dict[str, Any]] | None = None
    response_message: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    finish_reason: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)

    created_at: Seconds | None = None
    engine: str | None = None
    dialect: str | None = None
    call_kind: CallKind | None = None
    transition: Transition | None = None
    identity_source: str | None = None
    status: StepStatus | None = None
    error: str | None = None
    token_source: TokenSource | None = None
    mismatch: str | None = None
    policy_version_end: Version | None = None
    latency_s: Seconds | None = None
    sampling: dict[str, Any] | None = None
    response_id: str | None = None
    stream_mode: str | None = None
    tokenizer_hash: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _claw_r1_name(cls, data: Any) -> Any:
        """Accept Claw-R1's name of the log-probs, ``rollout_log_probs``."""
        if isinstance(data, Mapping) and "rollout_log_probs" in data:
            data = dict(data)
            data.setdefault("response_logprobs", data.pop("rollout_log_probs"))
        return data

    @field_validator("response_logprobs")
    @classmethod
    def _finite(cls, value: list[float | None] | None) -> list[float | None] | None:
        if value is not None and not all(x is None or math.isfinite(x) for x in value):
            raise ValueError("log-probs must be finite; send null for unknown ones")
        return value

    @model_validator(mode="after")
    def _content(self) -> StepIn:
        if self.response_ids is None and self.response_message is None and self.messages is None:
            raise ValueError("a step needs response_ids, or messages with response_message")
        if (
            self.response_logprobs is not None
            and self.mismatch is None
            and len(self.response_logprobs) != len(self.response_ids or [])
        ):
            raise ValueError(
                f"response_logprobs has {len(self.response_logprobs)} entries, "
                f"response_ids {len(self.response_ids or [])}; they are never padded or cut"
            )
        if self.response_mask is not None:
            if len(self.response_mask) != len(self.response_ids or []):
                raise ValueError(
                    f"response_mask has {len(self.response_mask)} entries, response_ids {len(self.response_ids or [])}"
                )
            if not any(self.response_mask):
                raise ValueError("response_mask masks all tokens: label the step as not trainable instead")
        return self

    def wire(self, *, now: float, channel: str) -> dict[str, Any]:
        """The step for the journal record. The default uid is trajectory and index, so a retry is no duplicate."""
        step = self.model_dump(mode="json", exclude_none=True)
        step.setdefault("step_uid", f"{self.trajectory_uid}:{self.step_index}")
        step.setdefault("channel", channel)
        step.setdefault("created_at", now)
        return step


class StepsIn(WireModel):
    """``POST steps``: atomic."""

    steps: Annotated[list[StepIn], Field(min_length=1, max_length=10_000)]


class StepUidsIn(WireModel):
    """``POST steps/known``."""

    step_uids: Annotated[list[Uid], Field(max_length=100_000)]


class Target(WireModel):
    """The target of an opinion: exactly one of the two."""

    step_uid: Uid | None = None
    trajectory_uid: Uid | None = None

    @model_validator(mode="after")
    def _check_one_target(self) -> Target:
        if (self.step_uid is None) == (self.trajectory_uid is None):
            raise ValueError("name exactly one of step_uid and trajectory_uid")
        return self


class AnnotationIn(WireModel):
    """One opinion; the type of ``value`` depends on ``kind`` (see ``core.types.Annotation``)."""

    target: Target
    kind: AnnotationKind
    value: float | bool | str | None = None
    author: Annotated[str, Field(min_length=1)] = "api"
    source: Annotated[str, Field(min_length=1)] = "api"
    note: str | None = None

    @model_validator(mode="after")
    def _value_fits(self) -> AnnotationIn:
        value = self.value
        if self.kind == AnnotationKind.REWARD:
            if isinstance(value, bool) or not (value is None or isinstance(value, int | float)):
                raise ValueError("a reward is a number, or null to withdraw it")
        elif self.kind == AnnotationKind.QUALITY:
            if value not in {"good", "bad", "unsure", None}:
                raise ValueError("quality is good, bad, unsure or null")
        elif self.kind == AnnotationKind.TRAINABLE:
            if not (value is None or isinstance(value, bool)):
                raise ValueError("trainable is true, false, or null for the default rule")
        elif self.kind == AnnotationKind.CORRECT:
            if not (value is None or isinstance(value, bool)):
                raise ValueError("correct is true, false, or null to withdraw it")
        elif self.kind == AnnotationKind.EDIT:
            raise ValueError("an edit holds token ids: make it on the Inspect page, or with core.editing.save_edit")
        elif not (isinstance(value, str) and value):
            raise ValueError(f"a {self.kind} is a non-empty string")
        return self

    def annotation(self, now: float) -> Annotation:
        """The annotation for the pool, created at ``now`` (seconds since the epoch)."""
        return Annotation(
            kind=self.kind.value,
            value=self.value,
            author=self.author,
            source=self.source,
            created_at=now,
            step_uid=self.target.step_uid,
            trajectory_uid=self.target.trajectory_uid,
            note=self.note,
        )


class AnnotationsIn(WireModel):
    """``POST annotations``: atomic, one entry in the history."""

    annotations: Annotated[list[AnnotationIn], Field(min_length=1, max_length=100_000)]


class SessionIn(WireModel):
    """``POST sessions``: missing uids are generated."""

    trajectory_uid: CallUid | None = None
    prompt_uid: CallUid | None = None
    channel: CallUid | None = None
    agent: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    expires_in_s: Annotated[float, Field(gt=0, le=1e9, strict=True)] | None = Field(
        None, description="Lifetime of the key, seconds"
    )
    max_calls: Annotated[int, Field(ge=1, strict=True)] | None = Field(
        None, description="Most model calls, including those that the trajectory has already"
    )
    max_tokens: Annotated[int, Field(ge=1, strict=True)] | None = Field(
        None, description="Most tokens of prompts and answers; a call that starts below the limit is completed"
    )
    calls_per_minute: Annotated[int, Field(ge=1, strict=True)] | None = None
    models: list[Annotated[str, Field(min_length=1)]] = Field([], description="Globs of the allowed models")
    any_prompt: Flag = Field(False, description="Calls may name another prompt group by URL or header")

    def limits(self, now: float) -> dict[str, Any]:
        """The limits for the ``session`` record; only those that are set. ``now``: seconds since the epoch."""
        limits = {name: getattr(self, name) for name in ("max_calls", "max_tokens", "calls_per_minute", "models")}
        expires_at = None if self.expires_in_s is None else now + self.expires_in_s
        limits |= {"expires_at": expires_at, "any_prompt": self.any_prompt}
        return {name: value for name, value in limits.items() if value}


class CompleteIn(WireModel):
    """``POST trajectories/{uid}/complete``; ``channel`` and ``metadata`` are sent by Claw-R1's clients."""

    reward: Number | None = None
    outcome: str | None = None
    channel: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


class CompletionIn(CompleteIn):
    """One of ``CompletionsIn``."""

    trajectory_uid: Uid


class CompletionsIn(WireModel):
    """``POST trajectories/complete``."""

    completions: Annotated[list[CompletionIn], Field(min_length=1, max_length=10_000)]


class RegisterIn(WireModel):
    """``register_trajectory`` of Claw-R1."""

    channel: str | None = None
    agent: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


class PolicyIn(WireModel):
    """``POST policy``."""

    version: Version
    event: PolicyEventKind
    metadata: dict[str, Any] = Field(default_factory=dict)


FILTERS_NOTE: Final = "Typed filters, all of which must hold: " + "; ".join(
    f"{item.name} ({item.kind}): {item.doc}" for item in FILTERS.values()
)
WHERE_NOTE: Final = f"A condition over step columns: {', '.join(STEP_COLUMNS)}."


class ViewIn(WireModel):
    """A view in a request; a string is a saved view's name."""

    filters: dict[str, Any] = Field(default_factory=dict, description=FILTERS_NOTE)
    where: Annotated[str, Field(description=WHERE_NOTE)] = ""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: Any) -> Any:
        return {"filters": {"saved_view": data}} if isinstance(data, str) else data

    def view(self) -> View:
        """The view for the pool."""
        return View(filters=self.filters, where=self.where)


class PlanIn(WireModel):
    """``POST plans``. ``recipe`` is checked by ``core.batch.recipe``."""

    view: ViewIn = Field(default_factory=ViewIn)
    recipe: dict[str, Any] = Field(default_factory=dict)


class ExportIn(PlanIn):
    """``POST exports``: write a plan to files on the service's machine; ``out`` defaults to its export folder."""

    format: Annotated[str, Field(min_length=1)]
    out: Folder | None = None
    options: dict[str, Any] = Field(default_factory=dict)
