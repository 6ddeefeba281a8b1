"""The project's data types as enums and frozen dataclasses; docs/glossary.md defines the terms.

This module imports only the standard library; every other module may import it.
Unknown is ``None`` everywhere: an unscored step has ``reward=None``, which is never 0.
Times are UTC seconds since the epoch (float) in memory and ISO 8601 on the wire.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final


class Source(StrEnum):
    """Where a step came from."""

    BLACKBOX = "blackbox"
    WHITEBOX = "whitebox"
    SERVICE = "service"
    IMPORT = "import"


class TokenSource(StrEnum):
    """How far the token ids of a step can be trusted, best first.

    ``engine``: ids as the engine sampled them. ``logprobs``: ids read from its log-prob entries.
    ``whitebox``: ids submitted by a producer. ``bytes``: text bytes only. ``retokenized``: text encoded
    again by the model's tokenizer. ``edited``: the answer was edited by a person and encoded. ``none``: no ids.
    """

    ENGINE = "engine"
    LOGPROBS = "logprobs"
    WHITEBOX = "whitebox"
    BYTES = "bytes"
    RETOKENIZED = "retokenized"
    EDITED = "edited"
    NONE = "none"


EXACT_TOKEN_SOURCES: frozenset[str] = frozenset({TokenSource.ENGINE, TokenSource.LOGPROBS, TokenSource.WHITEBOX})
"""Sources whose ids are the sampled ones; ratio-based algorithms need them."""


class Transition(StrEnum):
    """How step k+1's prompt relates to its parent step. ``None`` on the first step of a trajectory."""

    EXTENDS = "extends"
    REALIGNED = "realigned"
    TAIL_REPLACED = "tail_replaced"
    COMPACTED = "compacted"
    FORKED = "forked"


class CallKind(StrEnum):
    """The purpose of a model call. Only ``main`` calls are trainable, unless a person labels others as trainable."""

    MAIN = "main"
    AUXILIARY = "auxiliary"
    RETRY = "retry"
    SUBAGENT = "subagent"


class IdentitySource(StrEnum):
    """How a call's trajectory was identified. The first method that applies is used."""

    PATH = "path"
    HEADER = "header"
    KEY = "key"
    HARNESS = "harness"
    MODEL_NAME = "model_name"
    INFERRED = "inferred"
    PRODUCER = "producer"


class StepStatus(StrEnum):
    """The outcome of a call. All calls are kept; those that are not ``ok`` are not trainable by default."""

    OK = "ok"
    ERROR = "error"
    ABORTED = "aborted"
    MISMATCH = "mismatch"


class AnnotationKind(StrEnum):
    """The kind of an appended opinion."""

    REWARD = "reward"
    QUALITY = "quality"
    TRAINABLE = "trainable"
    CORRECT = "correct"
    TAG = "tag"
    NOTE = "note"
    CORRECTION = "correction"
    EDIT = "edit"


class FeedbackKind(StrEnum):
    """The kind of feedback of a person or a live service on a response (see ``core.pool.state.feedback_writer``)."""

    THUMBS = "thumbs"
    SCORE = "score"
    CORRECTION = "correction"
    COMMENT = "comment"
    EVENT = "event"


class PolicyEventKind(StrEnum):
    """The kind of a trainer's report about the policy's weights."""

    REGISTERED = "registered"
    SYNC_STARTED = "sync_started"
    SYNC_FINISHED = "sync_finished"


MAX_UID_CHARS: Final = 256
"""Longest uid and channel of a captured call."""


def is_uid(text: str) -> bool:
    """Whether a captured call can have this uid or channel: 1 to 256 printable characters without blanks."""
    return 0 < len(text) <= MAX_UID_CHARS and text.isprintable() and not any(map(str.isspace, text))


RUN_NAME = "run"
"""Key of the metadata of sessions, steps and registrations: the name of the run (experiment) they belong to."""
MAX_RUN_CHARS = 256
RUN_KEY = "learning_run"
"""Key of a policy event's metadata: the learning run that begins with this version, ``{name, ...}``."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who made a call. ``trajectory_uid=None`` means unknown: ingest infers it by shared prefix."""

    trajectory_uid: str | None = None
    prompt_uid: str | None = None
    channel: str = "train"
    source: str = Source.BLACKBOX
    agent: str | None = None
    identity_source: str = IdentitySource.INFERRED
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tokens:
    """The exact tokens of one model call.

    Attributes:
        prompt_ids: context token ids, ``[P]``; None if the engine did not return them.
        response_ids: sampled token ids, ``[R]``.
        response_logprobs: log μ(token) under the sampling policy, nats, ``[R]``; None if unknown.
        token_source: how far the ids can be trusted.
        mismatch: why the lengths disagree, or None. A mismatch is recorded, never padded or cut.
    """

    prompt_ids: Sequence[int] | None
    response_ids: Sequence[int] | None
    response_logprobs: Sequence[float] | None
    token_source: str
    mismatch: str | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One model call, ready to be stored. It holds facts only; opinions are annotations.

    ``parent_step_uid`` and ``n_shared_tokens``/``n_shared_messages`` come from linking (ingest): the step's
    prompt shares that many leading tokens with the parent's ``prompt_ids + response_ids`` and that many
    leading messages with the parent's ``messages + [response_message]``. ``response_mask`` is 0 for sampled tokens that
    must not be in a loss, such as redacted ones; None means all may be.
    """

    step_uid: str
    trajectory_uid: str
    prompt_uid: str
    step_index: int
    created_at: float
    channel: str = "train"
    source: str = Source.BLACKBOX
    agent: str | None = None
    model: str | None = None
    engine: str | None = None
    dialect: str | None = None
    identity_source: str = IdentitySource.INFERRED
    call_kind: str = CallKind.MAIN
    transition: str | None = None
    status: str = StepStatus.OK
    error: str | None = None
    token_source: str = TokenSource.NONE
    mismatch: str | None = None
    prompt_ids: Sequence[int] | None = None
    response_ids: Sequence[int] | None = None
    response_logprobs: Sequence[float] | None = None
    response_mask: Sequence[int] | None = None
    messages: Sequence[Mapping[str, Any]] | None = None
    response_message: Mapping[str, Any] | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    finish_reason: str | None = None
    reward: float | None = None
    policy_version: int | None = None
    policy_version_end: int | None = None
    is_last: bool = False
    parent_step_uid: str | None = None
    n_shared_tokens: int = 0
    n_shared_messages: int = 0
    latency_s: float | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    response_id: str | None = None
    stream_mode: str | None = None
    tokenizer_hash: str | None = None
    journal_segment: str | None = None
    journal_offset: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Annotation:
    """An appended opinion. Exactly one of ``step_uid`` and ``trajectory_uid`` is set.

    ``value`` by kind: reward float or None (None withdraws); quality ``good``, ``bad``, ``unsure`` or None;
    trainable bool or None (None restores the default rule); correct bool or None; tag ``name``, or ``-name`` to remove
    it; note text; correction the text of a correct response; edit an edited answer with its token ids
    (``core.pool.edits.EditValue``) or None to withdraw it.
    """

    kind: str
    value: Any
    author: str
    source: str
    created_at: float
    step_uid: str | None = None
    trajectory_uid: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class View:
    """A filter over the pool. ``filters`` are typed (see ``core.pool.query.views.FILTERS``); ``where`` is a
    boolean expression over the step columns, compiled to the same bound query."""

    filters: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""


@dataclass(frozen=True, slots=True)
class PolicyEvent:
    """One report of a trainer about the policy's weights."""

    version: int
    event: str
    created_at: float
    metadata: Mapping[str, Any] = field(default_factory=dict)
