"""The caller of a call, by a fixed order of identity sources.

The first source that names a trajectory is used: URL path, ``X-*`` headers, session key, known harness headers,
``turn__session`` model name. Later sources still fill missing fields (channel, agent, prompt group). Without any source
the trajectory is None, and ingest infers it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from core.errors import InvalidInput
from core.gateway.access.keys import (
    Binding,
    KeyStore,
    check_binding,
    check_model,
    check_prompt,
    hash_key,
    is_studio_key,
    presented_keys,
)
from core.types import MAX_UID_CHARS, RUN_NAME, Identity, IdentitySource, Source, is_uid

__all__ = ["Binding", "Caller", "KeyStore", "hash_key", "presented_keys", "resolve_caller"]

HARNESS_HEADERS: Final = (
    "x-claude-code-session-id", "session-id", "session_id", "thread-id", "x-session-id", "x-session-affinity",
)  # fmt: skip
"""Session headers of agents. Several agents share each of them, so they do not identify the agent."""

USER_AGENTS: Final = (
    ("claude-cli", "claude-code"),
    ("codex", "codex"),
    ("opencode", "opencode"),
    ("openclaw", "openclaw"),
    ("qwencode", "qwen-code"),
)
"""Prefixes of ``User-Agent`` that identify an agent."""

_TURN_MODEL = re.compile(r"^(?P<turn>main|side)__(?P<session>.+)$")
_SESSION_OF_USER = re.compile(r"_session_(?P<session>[0-9A-Za-z-]+)$")


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a call.

    Attributes:
        identity: its trajectory, prompt group, channel, source and agent.
        model: the model name; None if missing, or if it was a ``turn__session`` name.
        foreign_key: the agent's own provider key, to be passed on; None if it presented none.
        secrets: all keys that the call presented.
        binding: the session key's, whose limits apply to the call.
    """

    identity: Identity
    model: str | None
    foreign_key: str | None
    secrets: tuple[str, ...]
    binding: Binding | None = None


def resolve_caller(
    *,
    path: Mapping[str, str],
    headers: Mapping[str, str],
    model: str | None,
    presented: tuple[str, ...],
    keys: KeyStore,
    api_key: str | None,
    channel: str,
    metadata: Any = None,
) -> Caller:
    """Resolve the caller of an admitted call.

    Args:
        path: ``trajectory_uid`` and ``prompt_uid`` where the URL has them.
        headers: the call's headers, names in lower case.
        model: the request's model name.
        channel: channel of calls that name none.
        metadata: the request's own.

    Raises:
        InvalidInput: a uid that is too long, or contains blanks or control characters.
        Forbidden: a key is required, and the session key is bound to something else.
    """
    binding = next((bound for key in presented if (bound := keys.resolve(key)) is not None), None)
    known: dict[str, Any] = dict(binding.metadata) if binding is not None else {}
    turn = _TURN_MODEL.match(model) if model else None
    if turn is not None:
        known["call_kind_hint"] = "main" if turn["turn"] == "main" else "auxiliary"
        known["turn"] = turn["turn"]
        model = None
    if run := headers.get("x-run"):
        known[RUN_NAME] = _checked(run, "X-Run")
    harness, agent = _harness(headers, metadata)
    rungs = (
        (IdentitySource.PATH, path.get("trajectory_uid")),
        (IdentitySource.HEADER, headers.get("x-trajectory-uid")),
        (IdentitySource.KEY, binding.trajectory_uid if binding is not None else None),
        (IdentitySource.HARNESS, harness),
        (IdentitySource.MODEL_NAME, turn["session"] if turn is not None else None),
    )
    trajectory_uid, identity_source = None, IdentitySource.INFERRED
    for source, uid in rungs:
        if uid:
            trajectory_uid, identity_source = _checked(uid, "trajectory_uid"), source
            break
    prompt_uid = path.get("prompt_uid") or headers.get("x-prompt-uid")
    if not prompt_uid and binding is not None and binding.trajectory_uid == trajectory_uid:
        prompt_uid = binding.prompt_uid
    identity = Identity(
        trajectory_uid=trajectory_uid,
        prompt_uid=_checked(prompt_uid, "prompt_uid") if prompt_uid else None,
        channel=_checked(
            headers.get("x-channel") or (binding.channel if binding is not None else None) or channel,
            "channel",
        ),
        source=_source(headers.get("x-source") or (binding.source if binding is not None else None)),
        agent=headers.get("x-agent") or (binding.agent if binding is not None else None) or agent,
        identity_source=identity_source,
        metadata=known,
    )
    admin = any(is_studio_key(key, api_key) for key in presented)
    if binding is not None and not admin:
        check_model(binding, model)
        if api_key is not None or (binding.prompt_uid and binding.trajectory_uid == trajectory_uid):
            check_prompt(binding, prompt_uid)
    ours = {key for key in presented if keys.resolve(key) is not None or is_studio_key(key, api_key)}
    if api_key is not None and binding is not None and not admin:
        check_binding(binding, trajectory_uid=identity.trajectory_uid, channel=identity.channel)
    foreign = next((key for key in presented if key not in ours), None)
    return Caller(identity, model, foreign, presented, None if admin else binding)


def _harness(headers: Mapping[str, str], metadata: Any) -> tuple[str | None, str | None]:
    """The session id that an agent sends by itself, and the agent's name by its ``User-Agent``.

    Other programs and proxies may use such a header differently, so an invalid uid is ignored.
    """
    user_agent = headers.get("user-agent", "").lower()
    named = next((agent for start, agent in USER_AGENTS if user_agent.startswith(start)), None)
    return next((uid for uid in _sessions(headers, metadata) if is_uid(uid)), None), named


def _sessions(headers: Mapping[str, str], metadata: Any) -> Iterator[str]:
    for header in HARNESS_HEADERS:
        if uid := headers.get(header):
            yield uid
    # Claude Code also puts it into the body, as JSON or after other ids; proxies that drop its headers keep the body.
    user_id = metadata.get("user_id") if isinstance(metadata, Mapping) else None
    if isinstance(user_id, str):
        if user_id.startswith("{"):
            uid = _session_id(user_id)
        else:
            match = _SESSION_OF_USER.search(user_id)
            uid = match["session"] if match is not None else None
        if uid:
            yield uid


def _session_id(user_id: str) -> str | None:
    try:
        session_id = orjson.loads(user_id).get("session_id")
    except orjson.JSONDecodeError:
        return None
    return session_id if isinstance(session_id, str) else None


def _source(named: str | None) -> str:
    if named is None:
        return Source.BLACKBOX
    if named not in set(Source):
        raise InvalidInput(f"unknown source {named!r}", field="X-Source", hint=", ".join(Source))
    return named


def _checked(uid: str, field_name: str) -> str:
    if not is_uid(uid):
        raise InvalidInput(
            f"{field_name} must be 1 to {MAX_UID_CHARS} printable characters without blanks",
            field=field_name,
        )
    return uid
