"""The fields of journal records that ingest reads, as msgspec structs for ``core.checked``.

An empty text is unknown, as null is. What stands in ``request`` and ``response`` is not converted: arrays, and the
``Message`` objects that steps share, stay what they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from core.errors import InvalidInput

Text = Annotated[str, Meta(min_length=1)]


class Identity(Struct, frozen=True):
    """``identity`` of a call."""

    trajectory_uid: str | None = None
    prompt_uid: str | None = None
    channel: str | None = None
    source: str | None = None
    agent: str | None = None
    identity_source: str | None = None
    metadata: dict[str, Any] | None = None


class EngineFacts(Struct, frozen=True):
    """``engine_facts`` of a call: what is known of its engine."""

    flavour: str | None = None
    version: str | None = None
    logprobs: str | None = None
    attempts: int | None = None
    renamed_fields: dict[str, Any] | None = None
    prompt_ids: Any = None


class CallFields(Struct, kw_only=True):
    """A ``call`` record."""

    step_uid: Text
    dialect: Text
    started_at: float
    finished_at: float
    engine_dialect: str | None = None
    identity: Identity = Identity()
    engine_facts: EngineFacts = EngineFacts()
    request: dict[str, Any] = {}
    response: dict[str, Any] = {}
    input_items: list[dict[str, Any]] = []
    http_status: int | None = None
    error: Any = None
    aborted: bool = False
    retry_count: int = 0
    dropped_fields: list[str] = []
    response_id: str | None = None
    connection: str | None = None
    client_headers: dict[str, Any] = {}
    model: str | None = None
    engine: str | None = None
    policy_version: int | None = None
    policy_version_end: int | None = None
    stream_mode: str | None = None
    tokenizer_hash: str | None = None


class SubmittedStep(Struct, kw_only=True):
    """One step of a ``steps`` record."""

    step_uid: Text
    trajectory_uid: Text
    prompt_uid: str | None = None
    step_index: int = -1
    created_at: float | None = None
    channel: str | None = None
    source: str | None = None
    agent: str | None = None
    model: str | None = None
    engine: str | None = None
    dialect: str | None = None
    identity_source: str | None = None
    call_kind: str | None = None
    transition: str | None = None
    status: str | None = None
    error: str | None = None
    token_source: str | None = None
    mismatch: str | None = None
    prompt_ids: Any = None
    response_ids: Any = None
    response_logprobs: Any = None
    response_mask: Any = None
    messages: list[dict[str, Any]] | None = None
    response_message: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    finish_reason: str | None = None
    reward: float | None = None
    policy_version: int | None = None
    policy_version_end: int | None = None
    is_last: bool = False
    latency_s: float | None = None
    sampling: dict[str, Any] = {}
    response_id: str | None = None
    stream_mode: str | None = None
    tokenizer_hash: str | None = None
    metadata: dict[str, Any] = {}


class StepsFields(Struct):
    """A ``steps`` record."""

    at: float
    steps: list[dict[str, Any]] = []


class FeedbackFields(Struct):
    """A ``feedback`` record."""

    at: float
    feedback: list[dict[str, Any]] = []


class FeedbackEntry(Struct, kw_only=True):
    """One entry of a ``feedback`` record."""

    feedback_uid: Text
    kind: Text
    author: Text
    source: Text
    step_uid: str | None = None
    trajectory_uid: str | None = None
    response_id: str | None = None
    choice_index: int = 0
    value: Any = None
    reward: float | None = None
    note: str | None = None
    metadata: dict[str, Any] = {}
    given_at: float | None = None


class PolicyFields(Struct):
    """A ``policy`` record."""

    at: float
    version: int
    event: Text
    metadata: dict[str, Any] = {}


class RevokeFields(Struct):
    """A ``revoke`` record."""

    at: float
    key_sha256: Text


class TrajectoryFields(Struct, kw_only=True):
    """A ``register`` or ``complete`` record."""

    at: float
    trajectory_uid: Text
    prompt_uid: str | None = None
    channel: str | None = None
    agent: str | None = None
    outcome: str | None = None
    metadata: dict[str, Any] = {}
    reward: float | None = None


class SessionFields(TrajectoryFields, kw_only=True):
    """A ``session`` record."""

    key_sha256: Text
    limits: dict[str, Any] = {}


def objects(request: Mapping[str, Any], name: str) -> list[dict[str, Any]] | None:
    """A list of objects of a request, the same objects, or None. Raises InvalidInput."""
    value = request.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise InvalidInput(f"{name} is not a list of objects.", field=name)
    return value
