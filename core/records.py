"""Creates and parses journal records: JSON objects ``{"kind", "v", "at", ...}``.

A record has the raw bodies of agent and engine. Tokens are derived when it is read (``core.tokens``), so an improved
reader can process old journals. Secrets are removed before a record is written (``core.scrub``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import orjson

from core.errors import InvalidInput
from core.scrub import SECRET_FIELDS, scrub_bytes, scrub_metadata
from core.types import Identity

VERSION: Final = 1
MAX_DEPTH: Final = 200
"""Most levels of nesting in a body: its record adds a few, and the JSON encoder allows 254."""
KINDS: Final = frozenset({"call", "steps", "register", "complete", "session", "revoke", "policy", "feedback"})


def too_deep(value: Any, raw: bytes | None = None) -> bool:
    """Whether a value, parsed from ``raw``, is nested deeper than ``MAX_DEPTH`` and can't be recorded."""
    if raw is not None and raw.count(b"{") + raw.count(b"[") <= MAX_DEPTH:
        return False
    # The encoder fails beyond 254 levels, which is the fastest check.
    for _ in range(254 - MAX_DEPTH):
        value = [value]
    try:
        orjson.dumps(value)
    except TypeError as error:
        return "Recursion" in str(error)
    return False


def call_record(
    *,
    at: float,
    step_uid: str,
    started_at: float,
    finished_at: float,
    identity: Identity,
    dialect: str,
    engine: str | None,
    engine_kind: str | None,
    model: str | None,
    policy_version: int | None,
    policy_version_end: int | None,
    stream: bool,
    stream_mode: str,
    client_headers: Mapping[str, str],
    request: bytes,
    parsed_request: Mapping[str, Any],
    engine_added: Sequence[str] = (),
    dropped_fields: Sequence[str] = (),
    response: bytes | None = None,
    http_status: int | None = None,
    error: Mapping[str, Any] | None = None,
    aborted: bool = False,
    retry_count: int = 0,
    tokenizer_hash: str | None = None,
    engine_dialect: str | None = None,
    engine_facts: Mapping[str, Any] | None = None,
    response_id: str | None = None,
    input_items: Sequence[Mapping[str, Any]] = (),
    connection: str | None = None,
    secrets: Iterable[str] = (),
) -> bytes:
    """The record of one exchange between an agent and an engine.

    Args:
        dialect: the agent's dialect, that of ``request``.
        request: the agent's body, valid JSON; ``parsed_request`` is the same, parsed.
        response: the engine's body, valid JSON, or None if there is none.
        engine_dialect: the dialect of the engine's request and of ``response``. None means ``dialect``.
        engine_facts: properties of the engine: ``flavour``, ``version``, ``logprobs`` (their kind), and
            ``prompt_ids`` if the engine encoded its rendered prompt again.
        response_id: the id in the agent's response, if it differs from the engine's.
        input_items: the full input of a ``responses`` request that refers to earlier items.
        connection: the client's ``host:port``; calls over one connection likely come from one agent.
        secrets: keys that the call used or contained; replaced everywhere in the record.
    """
    if SECRET_FIELDS.intersection(parsed_request):
        request = orjson.dumps({key: value for key, value in parsed_request.items() if key not in SECRET_FIELDS})
    record = {
        "kind": "call",
        "v": VERSION,
        "at": at,
        "step_uid": step_uid,
        "started_at": started_at,
        "finished_at": finished_at,
        "identity": {
            "trajectory_uid": identity.trajectory_uid,
            "prompt_uid": identity.prompt_uid,
            "channel": identity.channel,
            "source": identity.source,
            "agent": identity.agent,
            "identity_source": identity.identity_source,
            "metadata": identity.metadata,
        },
        "dialect": dialect,
        "engine": engine,
        "engine_kind": engine_kind,
        "model": model,
        "policy_version": policy_version,
        "policy_version_end": policy_version_end,
        "stream": stream,
        "stream_mode": stream_mode,
        "client_headers": client_headers,
        "request": orjson.Fragment(request),
        "engine_added": list(engine_added),
        "dropped_fields": list(dropped_fields),
        "response": orjson.Fragment(response) if response is not None else None,
        "http_status": http_status,
        "error": error,
        "aborted": aborted,
        "retry_count": retry_count,
        "tokenizer_hash": tokenizer_hash,
        "engine_dialect": engine_dialect or dialect,
    }
    if engine_facts:
        record["engine_facts"] = dict(engine_facts)
    if response_id is not None:
        record["response_id"] = response_id
    if connection is not None:
        record["connection"] = connection
    if input_items:
        record["input_items"] = list(input_items)
    payload = orjson.dumps(record)
    for secret in secrets:
        payload = scrub_bytes(payload, secret)
    return payload


def steps_record(*, at: float, steps: Sequence[Mapping[str, Any]]) -> bytes:
    """The record of steps that a producer submitted; they are validated and have a ``step_uid``."""
    return orjson.dumps({"kind": "steps", "v": VERSION, "at": at, "steps": list(steps)})


def register_record(
    *,
    at: float,
    trajectory_uid: str,
    prompt_uid: str | None = None,
    channel: str | None = None,
    agent: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> bytes:
    """The record of a trajectory that was registered before or during its calls."""
    return orjson.dumps(
        {
            "kind": "register",
            "v": VERSION,
            "at": at,
            "trajectory_uid": trajectory_uid,
            "prompt_uid": prompt_uid,
            "channel": channel,
            "agent": agent,
            "metadata": scrub_metadata(metadata or {}),
        }
    )


def complete_record(
    *,
    at: float,
    trajectory_uid: str,
    prompt_uid: str | None = None,
    channel: str | None = None,
    reward: float | None = None,
    outcome: str | None = None,
) -> bytes:
    """The record of a completed trajectory. ``reward=None`` means unscored, never 0."""
    return orjson.dumps(
        {
            "kind": "complete",
            "v": VERSION,
            "at": at,
            "trajectory_uid": trajectory_uid,
            "prompt_uid": prompt_uid,
            "channel": channel,
            "reward": reward,
            "outcome": outcome,
        }
    )


def session_record(
    *,
    at: float,
    key_sha256: str,
    trajectory_uid: str,
    prompt_uid: str | None = None,
    channel: str,
    agent: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    limits: Mapping[str, Any] | None = None,
) -> bytes:
    """The record of a session key bound to a trajectory; only the key's SHA-256 (hex) is stored."""
    return orjson.dumps(
        {
            "kind": "session",
            "v": VERSION,
            "at": at,
            "key_sha256": key_sha256,
            "trajectory_uid": trajectory_uid,
            "prompt_uid": prompt_uid,
            "channel": channel,
            "agent": agent,
            "metadata": scrub_metadata(metadata or {}),
            "limits": dict(limits or {}),
        }
    )


def revoke_record(*, at: float, key_sha256: str) -> bytes:
    """The record of a revoked session key."""
    return orjson.dumps({"kind": "revoke", "v": VERSION, "at": at, "key_sha256": key_sha256})


def feedback_record(*, at: float, feedback: Sequence[Mapping[str, Any]]) -> bytes:
    """The record of feedback of people and live services, validated, each entry with its ``feedback_uid``.

    Entries: ``feedback_uid``, one of ``step_uid``, ``trajectory_uid`` and ``response_id`` (with ``choice_index``),
    ``kind``, ``value`` (None withdraws), ``reward``, ``author``, ``source``, ``note``, ``metadata``, and
    ``given_at``: seconds since the epoch, or None if only the time of arrival is known.
    """
    entries = [{**one, "metadata": scrub_metadata(one.get("metadata") or {})} for one in feedback]
    return orjson.dumps({"kind": "feedback", "v": VERSION, "at": at, "feedback": entries})


def policy_record(*, at: float, version: int, event: str, metadata: Mapping[str, Any] | None = None) -> bytes:
    """The record of a trainer's report about its weights."""
    return orjson.dumps(
        {
            "kind": "policy",
            "v": VERSION,
            "at": at,
            "version": version,
            "event": event,
            "metadata": scrub_metadata(metadata or {}),
        }
    )


def parse(payload: bytes) -> dict[str, Any]:
    """Parse a record.

    Raises:
        InvalidInput: not JSON, not an object, or of an unknown kind or version.
    """
    try:
        record = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"a journal record is not JSON: {error}", field="payload") from error
    if not isinstance(record, dict) or record.get("kind") not in KINDS:
        raise InvalidInput("a journal record of unknown kind", field="kind", hint=", ".join(sorted(KINDS)))
    if record.get("v") != VERSION:
        raise InvalidInput(
            f"a journal record of version {record.get('v')!r}",
            field="v",
            hint=f"this program reads version {VERSION}; open the data with the program that wrote it",
        )
    return record
