"""What the journal's payloads are: one JSON object each, ``{"kind", "v", "at", ...}``.

Facts are kept as they came: the raw bodies of agent and engine stand in the record unparsed, and tokens are
derived from them on reading (``core.tokens``), so a better reader can be run over old journals.
Keys never get in (``core.scrub``).
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
"""Lists and objects inside each other that a body may hold: a record of it nests a few more, and JSON ends at 254."""
KINDS: Final = frozenset({"call", "steps", "register", "complete", "session", "revoke", "policy", "feedback"})


def too_deep(value: Any, raw: bytes | None = None) -> bool:
    """Whether a value, read from ``raw``, is nested deeper than ``MAX_DEPTH``: no record could hold it."""
    if raw is not None and raw.count(b"{") + raw.count(b"[") <= MAX_DEPTH:
        return False
    # The encoder goes no deeper than 254, and is the quickest to look.
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
    """One exchange between an agent and an engine.

    Args:
        dialect: what the agent spoke; ``request`` is in it.
        request: the agent's body, valid JSON; ``parsed_request`` is the same, parsed.
        response: the engine's body, valid JSON, or None when there was none.
        engine_dialect: what the engine was asked in; ``response`` is in it. None means ``dialect``.
        engine_facts: what is known of the engine: ``flavour``, ``version``, ``logprobs`` (which kind it gives), and
            ``prompt_ids`` where it encoded again the prompt that it says it read.
        response_id: the id that the agent saw, where it is not the response's own.
        input_items: the whole input of a ``responses`` request that only names earlier parts of it.
        connection: the client's end of the connection, ``host:port``: what came over one is likelier one agent's.
        secrets: keys that this call presented or used; scrubbed out of everything.
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
    """Steps that a producer submitted, already validated, each with its ``step_uid``."""
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
    """A trajectory announced before or during its calls."""
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
    """A trajectory closed. ``reward=None`` means unscored, never 0."""
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
    """A session key bound to a trajectory; only the key's SHA-256 (hex) is kept."""
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
    """A session key taken back, for good."""
    return orjson.dumps({"kind": "revoke", "v": VERSION, "at": at, "key_sha256": key_sha256})


def feedback_record(*, at: float, feedback: Sequence[Mapping[str, Any]]) -> bytes:
    """What live services and people said of answers, already validated, each with its ``feedback_uid``.

    Entries: ``feedback_uid``, one of ``step_uid``, ``trajectory_uid`` and ``response_id`` (with ``choice_index``),
    ``kind``, ``value`` (None withdraws), ``reward``, ``author``, ``source``, ``note``, ``metadata``, and
    ``given_at``: seconds since the epoch, or None where only the time of arrival is known.
    """
    said = [{**one, "metadata": scrub_metadata(one.get("metadata") or {})} for one in feedback]
    return orjson.dumps({"kind": "feedback", "v": VERSION, "at": at, "feedback": said})


def policy_record(*, at: float, version: int, event: str, metadata: Mapping[str, Any] | None = None) -> bytes:
    """A trainer's report about its weights."""
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
    """Read a payload back.

    Raises:
        InvalidInput: not JSON, not an object, or a kind or version that this program does not know.
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
